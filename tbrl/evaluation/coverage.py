"""Coverage: a headline number needs every expected (task, attempt) exactly once, scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tbrl.errors import ConfigError

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Expected keys against those at hand."""

    expected: int
    scored: int
    missing: tuple[Key, ...]
    """Expected, no row."""
    failed: tuple[Key, ...]
    """Expected, the row is a system error."""
    unexpected: tuple[Key, ...]
    """A row that nobody asked for."""

    @property
    def exact(self) -> bool:
        return not (self.missing or self.failed or self.unexpected)

    @property
    def to_run(self) -> tuple[Key, ...]:
        """What a repair runs."""
        return (*self.missing, *self.failed)

    def __str__(self) -> str:
        parts = [f"{self.scored} of {self.expected} attempts scored"]
        for name in ("missing", "failed", "unexpected"):
            keys: tuple[Key, ...] = getattr(self, name)
            if keys:
                parts.append(f"{len(keys)} {name} (e.g. {keys[0][0]} attempt {keys[0][1]})")
        return ", ".join(parts)

    def require(self, where: str) -> None:
        """ConfigError unless exact: no headline number otherwise."""
        if not self.exact:
            raise ConfigError(
                f"{where}: {self}; no headline number: complete it with evaluation.repair=true"
            )


def coverage_of(
    tasks: Sequence[str], attempts: int, outcome: Mapping[Key, bool | None]
) -> Coverage:
    """Compare {(task, attempt): passed, or None for an error} with tasks x range(attempts)."""
    expected = [(task, attempt) for task in tasks for attempt in range(attempts)]
    wanted = set(expected)
    return Coverage(
        expected=len(expected),
        scored=sum(outcome.get(key) is not None for key in expected),
        missing=tuple(key for key in expected if key not in outcome),
        failed=tuple(key for key in expected if key in outcome and outcome[key] is None),
        unexpected=tuple(sorted(key for key in outcome if key not in wanted)),
    )
