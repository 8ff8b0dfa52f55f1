"""The replay of one step: all checks in order, and their report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tbrl.errors import InvariantError
from tbrl.records.episodes import StoredGroup, read_groups
from tbrl.records.run_dir import RunDir
from tbrl.replay.comparison import (
    Updated,
    advantage_differences,
    reward_differences,
    sampling_differences,
    update_differences,
)
from tbrl.replay.consistency import (
    Recorded,
    file_differences,
    group_differences,
    ledger_differences,
    seed_differences,
    token_differences,
)
from tbrl.types import Episode, EpisodeGroup, Outcome, Scored

Regrade = Callable[[Sequence[Episode]], Sequence[Outcome]]
"""Grades recorded terminal states again, in order."""
Resample = Callable[[Sequence[Episode]], Sequence[Episode]]
"""Plays the same keys again under the policy that sampled them, in order."""


Update = Callable[[int, Sequence[tuple[int, EpisodeGroup]]], Updated]
"""(step, committed groups as (slot, group) in slot order) -> what the learner says."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    compared: int
    """Things compared, each counted once."""
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """All checks of one step."""

    step: int
    checks: tuple[Check, ...]

    @property
    def equal(self) -> bool:
        return not any(check.differences for check in self.checks)

    def lines(self, limit: int = 5) -> list[str]:
        """For people: one line a check, and up to `limit` differences below it."""
        out = []
        for check in self.checks:
            count = len(check.differences)
            verdict = "equal" if not count else f"{count} DIFFERENCES"
            out.append(
                f"step {self.step}  {check.name:<10} {check.compared:>6} compared  {verdict}"
            )
            out.extend(f"    {line}" for line in check.differences[:limit])
            if count > limit:
                out.append(f"    ... and {count - limit} more")
        return out


def replay_step(
    run: RunDir,
    step: int,
    regrade: Regrade | None = None,
    resample: Resample | None = None,
    update: Update | None = None,
    advantage_std: bool = False,
) -> ReplayReport:
    """Recompute one step. Raises ConfigError when the step was not recorded."""
    recorded = Recorded.read(run, step)
    checks = [Check("file", 1, tuple(file_differences(run, recorded)))]
    stored, damage = _read(run, step)
    checks.append(Check("content", sum(len(s.group.episodes) for s in stored), damage))
    if damage:
        # What could not be read cannot be compared: the damage is the finding.
        return ReplayReport(step, tuple(checks))
    episodes = [episode for s in stored for episode in s.group.episodes]
    trained = sorted((s for s in stored if s.fate == "trained"), key=lambda s: s.group.slot)
    checks += [
        Check("groups", len(trained), tuple(group_differences(recorded.receipt, trained))),
        Check("ledger", len(stored), tuple(ledger_differences(recorded, stored))),
        Check("tokens", len(episodes), tuple(token_differences(episodes))),
        Check("seeds", *seed_differences(recorded.receipt.seed_root, episodes)),
    ]
    outcomes = {e.key: e.outcome for e in episodes}
    if regrade is not None:
        scored = [e for e in episodes if isinstance(e.outcome, Scored)]
        graded = regrade(scored)
        outcomes |= {e.key: o for e, o in zip(scored, graded, strict=True)}
        checks.append(Check("rewards", len(scored), tuple(reward_differences(scored, graded))))
    differences = advantage_differences(recorded.receipt, trained, outcomes, advantage_std)
    checks.append(Check("advantages", len(trained), tuple(differences)))
    if update is not None:
        again = update(step, [(s.group.slot, s.group) for s in trained])
        checks.append(Check("update", *update_differences(recorded, again)))
    if resample is not None:
        replayed = resample(episodes)
        checks.append(
            Check("sampling", len(episodes), tuple(sampling_differences(episodes, replayed)))
        )
    return ReplayReport(step, tuple(checks))


def _read(run: RunDir, step: int) -> tuple[list[StoredGroup], tuple[str, ...]]:
    stored: list[StoredGroup] = []
    try:
        stored.extend(read_groups(run.episodes(step)))
    except (InvariantError, FileNotFoundError) as error:
        return stored, (str(error),)
    return stored, ()
