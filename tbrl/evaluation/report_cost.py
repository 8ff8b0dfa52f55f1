"""Tokens and money as reports show them: a number, a lower bound that is called one, or a dash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tbrl.evaluation.cost import Amount
from tbrl.evaluation.report_data import Report, RunResults
from tbrl.usage import ROLES, Role, Usage


def money(amount: Amount | None) -> str:
    """`unknown` where nothing of it is known; a dash where there is none."""
    if amount is None:
        return "–"
    value = amount.known
    text = f"{value:,.2f}" if value >= 1 or not value else f"{value:.2g}"
    return _bounded(text, value > 0, not amount.unknown)


def _bounded(text: str, known: bool, exact: bool) -> str:
    if exact:
        return text
    return f"unknown (≥ {text})" if known else "unknown"


def _tokens(count: int, used: Usage) -> str:
    return _bounded(f"{count:,}", count > 0, not used.unknown)


def _cached(used: Usage) -> str:
    share = used.cache_hit_share
    if share is not None:
        return f"{used.cached:,} ({100 * share:.0f} %)"
    exact = not used.unknown and not used.cache_unknown
    return _bounded(f"{used.cached:,}", used.cached > 0, exact)


@dataclass(frozen=True, slots=True)
class Column:
    """One role of one run."""

    run: RunResults
    role: Role

    @property
    def name(self) -> str:
        return f"{self.run.name}, {self.role}"

    @property
    def failed(self) -> Usage:
        return self.run.aggregate.failed_usage.of(self.role)

    @property
    def all(self) -> Usage:
        """Failed tries included."""
        return self.run.aggregate.usage.of(self.role) + self.failed


def role_columns(report: Report) -> list[Column]:
    """Roles that asked a model; the agent always."""
    columns = [Column(run, role) for run in report.runs for role in ROLES]
    return [c for c in columns if c.role == "agent" or c.all.requests]


_TOKEN_ROWS: tuple[tuple[str, Callable[[Column], str]], ...] = (
    ("requests", lambda c: f"{c.all.requests:,}"),
    ("tokens read", lambda c: _tokens(c.all.input, c.all)),
    ("of these cached", lambda c: _cached(c.all)),
    ("tokens written", lambda c: _tokens(c.all.output, c.all)),
    ("read in failed tries", lambda c: _tokens(c.failed.input, c.failed)),
    ("written in failed tries", lambda c: _tokens(c.failed.output, c.failed)),
)
_COST_ROWS: tuple[tuple[str, str], ...] = (
    ("cost", "campaign"),
    ("of it failed tries", "failed_tries"),
    ("cost per attempt", "per_attempt"),
    ("cost per task", "per_task"),
    ("cost per dependable task", "per_dependable_task"),
)


def role_rows(report: Report) -> list[tuple[str, list[str]]]:
    """(label, one cell per column of `role_columns`): the whole campaign, then what it cost."""
    columns = role_columns(report)
    rows = [(label, [show(c) for c in columns]) for label, show in _TOKEN_ROWS]
    if any(run.cost for run in report.runs):
        rows += [(label, [_cost(c, name) for c in columns]) for label, name in _COST_ROWS]
    return rows


def _cost(column: Column, name: str) -> str:
    cost = column.run.cost
    return money(getattr(cost, name)(column.role)) if cost else "–"


def unknown_usage(report: Report) -> Iterator[str]:
    """Where numbers lack something, in words."""
    for c in role_columns(report):
        of = f"{c.run.name}: of {c.all.requests:,} requests of the {c.role}"
        if c.all.unknown:
            yield f"{of}, {c.all.unknown:,} without token counts: tokens and costs lack them"
        if c.all.cache_unknown:
            yield f"{of}, {c.all.cache_unknown:,} do not say what was cached: priced as if none"
