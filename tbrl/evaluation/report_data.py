"""What the report is made of, read from the files of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from tbrl.config import PricesConfig
from tbrl.errors import ConfigError
from tbrl.evaluation.aggregate import Aggregate, aggregate_rows
from tbrl.evaluation.campaign import load_identity
from tbrl.evaluation.cost import Cost, campaign_cost, has_prices
from tbrl.evaluation.coverage import Coverage
from tbrl.evaluation.metrics import Attempts, Summary, summarize
from tbrl.evaluation.results import ResultRow, read_rows
from tbrl.records.jsonl import decode_line
from tbrl.types import JsonObject


@dataclass(slots=True)
class Examples:
    """First passed and first failed attempt of each task, whole."""

    passed: dict[str, ResultRow] = field(default_factory=dict)
    failed: dict[str, ResultRow] = field(default_factory=dict)

    def offer(self, row: ResultRow) -> None:
        if row.passed is not None:
            (self.passed if row.passed else self.failed).setdefault(row.uid, row)


@dataclass(frozen=True, slots=True)
class RunResults:
    """One results file."""

    name: str
    aggregate: Aggregate
    coverage: Coverage
    attempts: Attempts | None
    """None where the coverage is not exact: then there is no headline number."""
    summary: Summary | None
    cost: Cost | None
    """None without prices."""
    examples: Examples


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """How the report is made."""

    prices: PricesConfig = field(default_factory=PricesConfig)
    resamples: int = 2000
    seed: int = 0
    show_golden: bool = False
    """Show golden differences of evaluation-only tasks."""
    max_task_pages: int = 400
    """Tasks with a page of their own; the report says how many have none."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the page shows."""

    name: str
    runs: tuple[RunResults, ...]
    """`before` and `after` first where there are such, then the compared ones."""
    steps: tuple[JsonObject, ...]
    """Lines of metrics.jsonl that are steps."""
    curation: tuple[JsonObject, ...]
    """Lines of curation/aggregates.jsonl."""
    audit: JsonObject
    """curation/audit.json."""
    manifest: JsonObject
    config: str
    """config.yaml as it is."""
    provenance: str
    options: ReportOptions

    def run(self, name: str) -> RunResults | None:
        return next((run for run in self.runs if run.name == name), None)


def load_report(
    root: Path, options: ReportOptions, compare: Sequence[Path] = (), name: str = ""
) -> Report:
    """Read a run folder; missing parts are empty. `compare` are further results files or run
    folders (their `evaluation/after.jsonl`, or `before` where there is no after)."""
    if not root.is_dir():
        raise ConfigError(f"report: {root} is no run folder")
    files = {
        path.stem: path
        for path in sorted((root / "evaluation").glob("*.jsonl"), key=_before_then_after)
        if path.stem != "tasks" and not path.stem.endswith(".failures")
    }
    for path in compare:
        file = _results_file(path)
        label = path.name if path.is_dir() else path.stem
        while label in files:
            label += "'"
        files[label] = file
    return Report(
        name=name or root.name,
        runs=tuple(load_results(path, label, options) for label, path in files.items()),
        steps=tuple(row for row in _jsonl(root / "metrics.jsonl") if "reward_mean" in row),
        curation=tuple(_jsonl(root / "curation" / "aggregates.jsonl")),
        audit=_json(root / "curation" / "audit.json"),
        manifest=_json(root / "curation" / "manifest.json"),
        config=_text(root / "config.yaml"),
        provenance=_text(root / "provenance.json"),
        options=options,
    )


def load_results(path: Path, name: str, options: ReportOptions) -> RunResults:
    """Read a results file once: totals, coverage, examples."""
    examples = Examples()

    def watched() -> Iterator[ResultRow]:
        for row in read_rows(path):
            examples.offer(row)
            yield row

    total = aggregate_rows(watched(), path)
    identity = load_identity(path) or {}
    tasks, count = identity.get("tasks", ()), identity.get("attempts", 0)
    coverage = total.coverage(tasks, count)
    attempts = total.attempts(tasks, count) if coverage.exact else None
    summary = None
    cost = None
    if attempts is not None:
        summary = summarize(attempts, resamples=options.resamples, seed=options.seed)
        if has_prices(options.prices):
            cost = campaign_cost(
                total.usage,
                total.failed_usage,
                options.prices,
                attempts=total.scored,
                tasks=summary.tasks,
                successes=total.successes,
                dependable=summary.dependable,
            )
    return RunResults(name, total, coverage, attempts, summary, cost, examples)


def _before_then_after(path: Path) -> tuple[int, str]:
    return {"before": 0, "after": 1}.get(path.stem, 2), path.stem


def _results_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in ("after", "before"):
        file = path / "evaluation" / f"{name}.jsonl"
        if file.is_file():
            return file
    raise ConfigError(f"compare: {path} holds no evaluation/after.jsonl; run stage=evaluate there")


def _jsonl(path: Path) -> list[JsonObject]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        return [decode_line(line, f"{path}:{i}") for i, line in enumerate(file, start=1)]


def _json(path: Path) -> JsonObject:
    return orjson.loads(path.read_bytes()) if path.is_file() else {}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
