"""Recorded against recomputed: outcomes, advantages, the update, the sampling.

Each check yields one line per difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tbrl.learner.advantages import episode_advantages, group_advantages
from tbrl.records.episodes import StoredGroup
from tbrl.records.receipts import StepReceipt
from tbrl.replay.consistency import Recorded, name_of
from tbrl.types import Episode, EpisodeKey, Outcome, Scored


@dataclass(frozen=True, slots=True)
class Updated:
    """A step taken again by a learner that holds the weights from before it."""

    no_op: bool
    parameter_digest_before: str
    parameter_digest_after: str
    metrics: dict[str, float]
    """Same names as in metrics.jsonl."""


def reward_differences(episodes: Sequence[Episode], graded: Sequence[Outcome]) -> Iterable[str]:
    for episode, outcome in zip(episodes, graded, strict=True):
        if outcome != episode.outcome:
            yield f"{name_of(episode)}: recorded {episode.outcome}, graded {outcome}"


def advantage_differences(
    receipt: StepReceipt,
    trained: list[StoredGroup],
    outcomes: Mapping[EpisodeKey, Outcome],
    divide_by_std: bool,
) -> Iterable[str]:
    """What the learner takes (from the stored group), from the rewards that the controller saw
    and from the outcomes as graded now."""
    seen = {s.slot: s.rewards for s in receipt.slots}
    for s in trained:
        taken = episode_advantages(s.group, divide_by_std).values
        graded = [outcomes[e.key] for e in s.group.episodes]
        anew = [o.reward if isinstance(o, Scored) else None for o in graded]
        for source, rewards in (("graded", anew), ("receipt", seen.get(s.group.slot, ()))):
            values = group_advantages(rewards, divide_by_std).values
            if values != taken:
                yield f"slot {s.group.slot}: advantages {taken}, by {source} rewards {values}"


def update_differences(recorded: Recorded, again: Updated) -> tuple[int, tuple[str, ...]]:
    receipt = recorded.receipt
    pairs: list[tuple[str, Any, Any]] = [
        ("no_op", receipt.no_op, again.no_op),
        ("digest before", receipt.parameter_digest_before, again.parameter_digest_before),
        ("digest after", receipt.parameter_digest_after, again.parameter_digest_after),
    ]
    pairs += [
        (name, recorded.metrics[name], value)
        for name, value in again.metrics.items()
        if name in recorded.metrics
    ]
    differences = tuple(f"{name}: recorded {a}, now {b}" for name, a, b in pairs if a != b)
    return len(pairs), differences


def sampling_differences(episodes: Sequence[Episode], replayed: Sequence[Episode]) -> Iterable[str]:
    for old, new in zip(episodes, replayed, strict=True):
        for name in ("prompt_ids", "response_ids", "action_mask"):
            if not np.array_equal(getattr(old, name), getattr(new, name)):
                yield f"{name_of(old)}: {name} differ from position {_first(old, new, name)}"
                break
        else:
            gap = np.abs(old.behaviour_logprobs - new.behaviour_logprobs)
            if gap.any():
                yield f"{name_of(old)}: behaviour logprobs differ by up to {gap.max():.3g}"
        if old.outcome != new.outcome or old.state_hash != new.state_hash:
            yield f"{name_of(old)}: recorded {old.outcome}, now {new.outcome}"


def _first(old: Episode, new: Episode, name: str) -> int:
    a, b = getattr(old, name), getattr(new, name)
    shared = min(len(a), len(b))
    unequal = np.nonzero(a[:shared] != b[:shared])[0]
    return int(unequal[0]) if len(unequal) else shared
