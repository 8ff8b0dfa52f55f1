"""A campaign: tasks x attempts, each scored exactly once, durable as it goes.

    keys not yet scored --> N workers --> run(task, attempt, try) --> Scored: row appended at once
                                              |  Failed: noted in <stem>.failures.jsonl with the
                                              |  tokens it used (they are paid for), run again at
                                              '- most max_tries times, never counted as an attempt

A slow or hung episode holds one worker until the runner's own deadline ends it; all others go on
and their rows are on disk. Stopped in any way, the next start runs what is missing. Probes and
evaluations are both campaigns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import orjson

from tbrl.errors import BackendFailure, ConfigError
from tbrl.evaluation.coverage import Coverage, Key, coverage_of
from tbrl.evaluation.metrics import TaskLabels
from tbrl.evaluation.results import failure_of, failures_beside, read_rows, row_of
from tbrl.records.jsonl import JsonlWriter, recover_tail
from tbrl.types import Episode, Failed, JsonObject
from tbrl.usage import RoleUsage, unanswered

Run = Callable[[str, int, int], Awaitable[Episode]]
"""run(task_ref, attempt, try_) -> Episode; holds the per-episode deadline."""

Start = Literal["fresh", "resume", "repair"]

SYNC_S = 1.0
"""Attempts that a killed machine may cost; a killed process costs none."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is to be run."""

    path: Path
    """Results file, `.jsonl`."""
    tasks: dict[str, TaskLabels]
    """task_ref -> labels, in the order to run."""
    attempts: int
    """Per task."""
    policy: str
    """Names weights and sampling, e.g. a digest: rows of another policy never mix in."""
    concurrency: int = 64
    max_tries: int = 3
    """Runs of one (task, attempt) while it fails."""
    lost_run: RoleUsage = field(default_factory=unanswered)
    """What a run that was lost with its record is booked as."""

    @property
    def identity_path(self) -> Path:
        return self.path.with_suffix(".campaign.json")

    @property
    def failures_path(self) -> Path:
        return failures_beside(self.path)

    def identity(self) -> JsonObject:
        """What must not change between a campaign and its resumption."""
        return {"policy": self.policy, "attempts": self.attempts, "tasks": list(self.tasks)}


@dataclass(slots=True)
class Progress:
    """Counters for a live view."""

    expected: int
    done: int = 0
    passed: int = 0
    failures: int = 0
    """Failed runs, re-run or not."""
    recovered: int = 0
    """Scored after at least one failed run."""
    gave_up: list[Key] = field(default_factory=list)
    """Keys that failed max_tries times."""


@dataclass(frozen=True, slots=True)
class CampaignReport:
    """What a campaign came to."""

    coverage: Coverage
    progress: Progress
    torn_bytes: int
    """Half-written bytes of an earlier kill, moved to `<file>.torn`."""


async def run_campaign(
    campaign: Campaign,
    run: Run,
    start: Start = "fresh",
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> CampaignReport:
    """Run every key that has no score yet. `fresh` refuses an existing file; `resume` goes on with
    it or starts; `repair` wants it to exist. Keys given up are missing from the coverage, not
    scored. Another exception than BackendFailure stops the campaign; rows written stay."""
    torn = _prepare(campaign, start)
    scored = _scored(campaign.path)
    before = coverage_of(list(campaign.tasks), campaign.attempts, scored)
    progress = Progress(before.expected, before.scored, sum(map(bool, scored.values())))
    keys = iter(before.to_run)
    with (
        JsonlWriter(campaign.path, SYNC_S) as rows,
        JsonlWriter(campaign.failures_path, SYNC_S) as failures,
    ):
        workers = min(campaign.concurrency, len(before.to_run))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(
                        _work(campaign, run, keys, rows, failures, progress, on_progress)
                    )
        except BaseExceptionGroup as errors:
            # The first one cancelled the other workers: it is the one that tells why.
            raise errors.exceptions[0] from None
    coverage = coverage_of(list(campaign.tasks), campaign.attempts, _scored(campaign.path))
    return CampaignReport(coverage, progress, torn)


async def _work(
    campaign: Campaign,
    run: Run,
    keys: Iterator[Key],
    rows: JsonlWriter,
    failures: JsonlWriter,
    progress: Progress,
    on_progress: Callable[[Progress], None],
) -> None:
    for task_ref, attempt in keys:
        for try_ in range(campaign.max_tries):
            played = await _attempt(campaign, run, task_ref, attempt, try_)
            if isinstance(played, Episode):
                row = row_of(played, attempt, campaign.tasks[task_ref], campaign.policy)
                rows.write(row)
                progress.done += 1
                progress.passed += int(played.reward)
                progress.recovered += try_ > 0
                break
            failures.write(played)
            progress.failures += 1
        else:
            progress.gave_up.append((task_ref, attempt))
        on_progress(progress)


async def _attempt(
    campaign: Campaign, run: Run, task_ref: str, attempt: int, try_: int
) -> Episode | JsonObject:
    """A scored episode, or the failures file's line on why there is none."""
    try:
        episode = await run(task_ref, attempt, try_)
    except BackendFailure as failure:
        failed = Failed(failure.kind, failure.where, failure.detail)
        return failure_of(task_ref, attempt, try_, failed, campaign.lost_run)
    if isinstance(episode.outcome, Failed):
        return failure_of(task_ref, attempt, try_, episode.outcome, episode.usage)
    return episode


def _scored(path: Path) -> dict[Key, bool | None]:
    if not path.exists() or path.stat().st_size == 0:
        return {}
    return {(row.uid, row.attempt): row.passed for row in read_rows(path)}


def _prepare(campaign: Campaign, start: Start) -> int:
    """Check that files and request agree; write the identity; returns torn bytes moved aside."""
    path = campaign.path
    if not campaign.tasks or campaign.attempts < 1:
        raise ConfigError(
            f"campaign {path}: {len(campaign.tasks)} tasks x {campaign.attempts} attempts is empty"
        )
    if start == "fresh" and path.exists():
        raise ConfigError(
            f"{path}: exists already; resume=true goes on with it, or name another run"
        )
    if start == "repair" and not path.exists():
        raise ConfigError(f"{path}: nothing to repair; run without evaluation.repair first")
    identity = campaign.identity()
    if path.exists():
        _check_identity(campaign, identity)
    campaign.identity_path.parent.mkdir(parents=True, exist_ok=True)
    campaign.identity_path.write_bytes(orjson.dumps(identity, option=orjson.OPT_INDENT_2))
    return recover_tail(path)


def _check_identity(campaign: Campaign, identity: JsonObject) -> None:
    where = campaign.identity_path
    if not where.exists():
        raise ConfigError(f"{campaign.path}: {where.name} is missing beside it; start another run")
    earlier = orjson.loads(where.read_bytes())
    for name in ("policy", "tasks", "attempts"):
        if name == "attempts" and earlier[name] <= campaign.attempts:
            continue
        if earlier[name] != identity[name]:
            raise ConfigError(
                f"{campaign.path}: was started with other {name} (see {where.name});"
                " use the same settings or name another run"
            )


def load_identity(path: Path) -> JsonObject | None:
    """Identity written beside a results file, or None: what its coverage is measured against."""
    where = path.with_suffix(".campaign.json")
    return orjson.loads(where.read_bytes()) if where.exists() else None
