"""Streaming aggregation of a results file: memory grows with tasks, not with rows.

orjson decodes line by line: measured against polars and pyarrow it uses the least CPU and memory
on both kinds of file (few long rows, many short ones), and it alone can name the line at fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tbrl.errors import ConfigError
from tbrl.evaluation.coverage import Coverage, Key, coverage_of
from tbrl.evaluation.metrics import Attempts, TaskLabels
from tbrl.evaluation.results import ResultRow, agent_usage_of, read_failures, read_rows
from tbrl.types import JsonObject
from tbrl.usage import RoleUsage, Usage

LABEL_COLUMNS = frozenset({"tags", "priority", "type", "category", "severity", "labels"})
"""Columns that only sort a record into a drawer: a zero that differs in nothing else is a
disagreement about labels, not about what was done."""


Tokens = dict[str, Counter[str]]
"""{role: {count of Usage: sum}}"""


@dataclass(slots=True)
class TaskTotals:
    """Sums over the rows of one task."""

    labels: TaskLabels
    seen: int = 0
    """Bit a: attempt a has a row."""
    passed: int = 0
    """Bit a: attempt a passed."""
    errors: int = 0
    """Bit a: attempt a is a system error."""


@dataclass(slots=True)
class Aggregate:
    """A results file in brief."""

    source: str
    policy: str = ""
    tasks: dict[str, TaskTotals] = field(default_factory=dict)
    """In the order of first appearance."""
    rows: int = 0
    tokens: Tokens = field(default_factory=lambda: defaultdict(Counter))
    """Of scored attempts."""
    failed_tokens: Tokens = field(default_factory=lambda: defaultdict(Counter))
    """Of what failed and has no score."""
    failed_tries: int = 0
    agent_turns: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Wall seconds by phase, all attempts together."""
    finish_reasons: Counter[str] = field(default_factory=Counter)
    attribution: Counter[str] = field(default_factory=Counter)
    """Scored zeros by class (rewards/attribution.py)."""
    label_only: int = 0
    """Scored zeros whose differences are all in LABEL_COLUMNS of records that both sides have."""

    def add(self, row: ResultRow) -> None:
        task = self.tasks.get(row.uid)
        if task is None:
            task = self.tasks[row.uid] = TaskTotals(row.labels)
        bit = 1 << row.attempt
        task.seen |= bit
        if row.passed is None:
            task.errors |= bit
        elif row.passed:
            task.passed |= bit
        self.rows += 1
        self.policy = row.policy
        self.finish_reasons[row.finish_reason] += 1
        ours = row.raw.get("tbrl")
        if ours is None:
            self._add_foreign_usage(row)
            return
        if row.passed is False:
            self.attribution[ours.get("attribution") or "unattributed"] += 1
            self.label_only += is_label_only(ours.get("differences", ()))
        self.agent_turns += ours.get("agent_turns", 0)
        _add_tokens(self.tokens, ours["tokens"])
        sums = self.seconds
        for phase, seconds in ours.get("seconds", {}).items():
            sums[phase] += seconds

    def _add_foreign_usage(self, row: ResultRow) -> None:
        """Foreign rows count the agent's tokens only."""
        into = self.failed_tokens if row.passed is None else self.tokens
        _add_tokens(into, {"agent": agent_usage_of(row.raw).to_json()})
        self.failed_tries += row.passed is None
        self.agent_turns += len(row.raw.get("usage") or ())
        self.seconds["total"] += row.raw.get("metadata", {}).get("execution_time", 0.0)

    def add_failure(self, row: JsonObject) -> None:
        """A line of the failures file: it costs, and has no part in any rate."""
        self.failed_tries += 1
        _add_tokens(self.failed_tokens, row["tokens"])

    # ------------------------------------------------------------ what it says

    @property
    def usage(self) -> RoleUsage:
        """Of scored attempts."""
        return RoleUsage(**{role: Usage(**counts) for role, counts in self.tokens.items()})

    @property
    def failed_usage(self) -> RoleUsage:
        """Of what failed and has no score."""
        return RoleUsage(**{role: Usage(**counts) for role, counts in self.failed_tokens.items()})

    @property
    def successes(self) -> int:
        return sum(task.passed.bit_count() for task in self.tasks.values())

    @property
    def scored(self) -> int:
        return self.rows - self.errors

    def failures_by(self, key: Callable[[TaskLabels], str]) -> dict[str, tuple[int, int, int]]:
        """{part: (tasks, scored attempts, zeros)}, e.g. by ticket-only against business-write."""
        parts: dict[str, tuple[int, int, int]] = {}
        for task in self.tasks.values():
            name = key(task.labels)
            tasks, scored, zeros = parts.get(name, (0, 0, 0))
            here = task.seen.bit_count() - task.errors.bit_count()
            parts[name] = (tasks + 1, scored + here, zeros + here - task.passed.bit_count())
        return parts

    @property
    def errors(self) -> int:
        return sum(task.errors.bit_count() for task in self.tasks.values())

    def outcomes(self) -> dict[Key, bool | None]:
        """{(task, attempt): passed, or None for an error}."""
        return {
            (uid, a): None if task.errors >> a & 1 else bool(task.passed >> a & 1)
            for uid, task in self.tasks.items()
            for a in range(task.seen.bit_length())
            if task.seen >> a & 1
        }

    def coverage(self, tasks: Sequence[str] = (), attempts: int = 0) -> Coverage:
        """Against tasks x attempts; by default every task that occurs, and as many attempts as the
        largest attempt number says."""
        if not self.tasks:
            raise ConfigError(f"{self.source}: no rows; run stage=evaluate first")
        attempts = attempts or max(task.seen.bit_length() for task in self.tasks.values())
        return coverage_of(tuple(tasks) or tuple(self.tasks), attempts, self.outcomes())

    def attempts(self, tasks: Sequence[str] = (), attempts: int = 0) -> Attempts:
        """The complete matrix, or ConfigError saying what it lacks: no headline number then."""
        coverage = self.coverage(tasks, attempts)
        coverage.require(self.source)
        refs = tuple(tasks) or tuple(self.tasks)
        count = coverage.expected // len(refs)
        passed = np.array(
            [[self.tasks[ref].passed >> a & 1 for a in range(count)] for ref in refs], dtype=bool
        )
        return Attempts(refs, passed, tuple(self.tasks[ref].labels for ref in refs))


def _add_tokens(total: Tokens, tokens: Mapping[str, Mapping[str, int]]) -> None:
    for role, used in tokens.items():
        if used["requests"]:
            counts = total[role]
            for name, count in used.items():
                counts[name] += count


def is_label_only(differences: Sequence[JsonObject]) -> bool:
    """At least one difference, and all of them in labels."""
    return bool(differences) and all(d["column"] in LABEL_COLUMNS for d in differences)


def aggregate(path: Path) -> Aggregate:
    """Aggregate a results file; ConfigError as in `read_rows`."""
    return aggregate_rows(read_rows(path), path)


def aggregate_rows(rows: Iterable[ResultRow], path: Path) -> Aggregate:
    """Aggregate the rows of a file that are already being read, and its failures."""
    total = Aggregate(str(path))
    for failure in read_failures(path):
        total.add_failure(failure)
    for row in rows:
        total.add(row)
    return total
