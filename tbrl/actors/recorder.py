"""Recorder: writes the episodes of each step; the controller never opens a payload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tbrl.actors.actor import actor
from tbrl.records.episodes import EpisodeWriter
from tbrl.types import EpisodeGroup


@actor()
class Recorder:
    def write_step(
        self, path: str, fates: list[str], *groups: EpisodeGroup
    ) -> tuple[list[str], str]:
        """(digest of each group, sha256 of the file). `groups` arrive as references."""
        with EpisodeWriter(Path(path)) as writer:
            digests = [
                writer.append(group, fate) for group, fate in zip(groups, fates, strict=True)
            ]
        return digests, writer.sha256


def write_step(recorder: Any, path: Path, groups: list[tuple[str, Any]]) -> Any:
    """Reference of the result; `groups` are (fate, reference of the payload)."""
    fates = [fate for fate, _ in groups]
    return recorder.write_step.remote(str(path), fates, *(group for _, group in groups))
