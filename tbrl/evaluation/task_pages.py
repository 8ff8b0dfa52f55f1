"""Pages of single tasks: conversation, tool calls, effects, and what differed from golden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tbrl.evaluation.report_data import Report, RunResults
from tbrl.evaluation.results import ResultRow
from tbrl.types import JsonObject

KIND_OF_DIFFERENCE = {"deleted": "missing", "inserted": "extra", "updated": "wrong"}
"""RowChange.kind of a difference, in words (rewards/attribution.py)."""


@dataclass(frozen=True, slots=True)
class RecordChange:
    """All changed columns of one record."""

    table: str
    key: str
    kind: str
    cells: tuple[tuple[str, str, str], ...]
    """(column, before, after); canonical JSON, empty where there is no value."""


@dataclass(frozen=True, slots=True)
class Message:
    """One bubble of a conversation."""

    kind: str
    """system, user, assistant, think, call, tool."""
    text: str
    name: str = ""
    """Tool's name."""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt as shown."""

    run: str
    attempt: int
    passed: bool
    finish_reason: str
    attribution: str
    messages: tuple[Message, ...]
    effects: tuple[RecordChange, ...]
    differences: tuple[RecordChange, ...]
    """`before` is golden, `after` is what the agent left; empty where golden is not shown."""
    golden_hidden: bool


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task over all runs."""

    anchor: str
    task_ref: str
    domain: str
    template: str
    ordinary: bool
    rates: tuple[tuple[str, int, int], ...]
    """(run, passed, attempts)."""
    change: float | None
    """Success rate after - before."""
    attempts: tuple[AttemptView, ...]
    has_page: bool


def task_views(report: Report) -> list[TaskView]:
    """All tasks that occur, in the order of the first run; only the first `max_task_pages` carry
    attempts (the page would grow without bound)."""
    refs = dict.fromkeys(ref for run in report.runs for ref in run.aggregate.tasks)
    views = []
    for number, ref in enumerate(refs):
        runs = [run for run in report.runs if ref in run.aggregate.tasks]
        labels = runs[0].aggregate.tasks[ref].labels
        has_page = number < report.options.max_task_pages
        hidden = labels.eval_only and not report.options.show_golden
        views.append(
            TaskView(
                anchor=f"task-{number}",
                task_ref=ref,
                domain=labels.domain,
                template=labels.template,
                ordinary=labels.ordinary,
                rates=tuple((run.name, *_counts(run, ref)) for run in runs),
                change=_change(report, ref),
                attempts=tuple(_attempts(runs, ref, hidden)) if has_page else (),
                has_page=has_page,
            )
        )
    return views


def _counts(run: RunResults, ref: str) -> tuple[int, int]:
    task = run.aggregate.tasks[ref]
    return task.passed.bit_count(), (task.seen & ~task.errors).bit_count()


def _change(report: Report, ref: str) -> float | None:
    before, after = report.run("before"), report.run("after")
    if not before or not after:
        return None
    if ref not in before.aggregate.tasks or ref not in after.aggregate.tasks:
        return None
    (c0, n0), (c1, n1) = _counts(before, ref), _counts(after, ref)
    return c1 / n1 - c0 / n0 if n0 and n1 else None


def _attempts(runs: list[RunResults], ref: str, golden_hidden: bool) -> list[AttemptView]:
    rows = [
        (run.name, examples[ref])
        for run in runs
        for examples in (run.examples.failed, run.examples.passed)
        if ref in examples
    ]
    return [_attempt(name, row, golden_hidden) for name, row in rows]


def _attempt(run: str, row: ResultRow, golden_hidden: bool) -> AttemptView:
    ours = row.raw.get("tbrl", {})
    differences = ours.get("differences", ())
    return AttemptView(
        run=run,
        attempt=row.attempt,
        passed=bool(row.passed),
        finish_reason=row.finish_reason,
        attribution=ours.get("attribution", ""),
        messages=tuple(m for raw in row.raw.get("messages", ()) for m in _messages(raw)),
        effects=by_record(ours.get("effects", ()), {}),
        differences=() if golden_hidden else by_record(differences, KIND_OF_DIFFERENCE),
        golden_hidden=golden_hidden and bool(differences),
    )


def by_record(changes: Sequence[JsonObject], names: Mapping[str, str]) -> tuple[RecordChange, ...]:
    """Rows of RowChange put together by record and kind, in order; `names` renames kinds."""
    grouped: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    for c in changes:
        place = c["table"], c["key"], names.get(c["kind"], c["kind"])
        grouped.setdefault(place, []).append((c["column"], c["before"], c["after"]))
    return tuple(RecordChange(*place, tuple(cells)) for place, cells in grouped.items())


def _messages(raw: JsonObject) -> list[Message]:
    kind = raw.get("T")
    if kind == "ParallelToolCall":
        return [Message("call", _pretty(c["arguments"]), c["name"]) for c in raw["tool_calls"]]
    if kind == "ToolResponse":
        is_error = raw.get("metadata", {}).get("is_error", False)
        return [Message("tool", raw["content"], raw["name"], is_error)]
    think = raw.get("metadata", {}).get("tag") == "think"
    return [Message("think" if think else raw.get("role", "user"), raw.get("content", ""))]


def _pretty(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_pretty(each)}" for key, each in value.items())
    return orjson.dumps(value).decode()
