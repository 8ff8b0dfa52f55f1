"""The report's essence for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tbrl.evaluation.metrics import Interval, Summary
from tbrl.evaluation.report import HeadlineRow, absent, attribution_rows, effort, headline, p_value
from tbrl.evaluation.report_cost import role_columns, role_rows
from tbrl.evaluation.report_data import Report


def print_summary(report: Report, console: Console) -> None:
    """Headline, reliability, failures and effort; what is absent is said last."""
    rows = headline(report)
    if rows:
        console.print(_headline_table(rows))
    console.print(_runs_table(report))
    if report.runs:
        console.print(_roles_table(report))
    if any(run.aggregate.attribution for run in report.runs):
        console.print(_attribution_table(report))
    for line in absent(report):
        console.print(f"[dim]not here: {line}[/dim]", highlight=False)


def _headline_table(rows: list[HeadlineRow]) -> Table:
    table = Table(title="Success on held-out tasks (pass@1, 95 % interval over tasks)")
    for name in ("tasks", "n", "before", "after", "difference, pp", "p"):
        table.add_column(name, justify="left" if name == "tasks" else "right")
    for row in rows:
        whole = row.after or row.before
        if whole is None:
            continue
        paired = row.paired
        table.add_row(
            row.name,
            str(whole.tasks),
            _rate(row.before),
            _rate(row.after),
            _difference(paired.difference) if paired else "–",
            p_value(paired.p_value) if paired else "–",
        )
    return table


def _rate(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    i = summary.pass_at_1
    return f"{100 * i.value:.1f} % [{100 * i.low:.1f}, {100 * i.high:.1f}]".replace("[", r"\[")


def _difference(i: Interval) -> str:
    color = "green" if i.low > 0 else "red" if i.high < 0 else "default"
    return f"[{color}]{100 * i.value:+.1f}[/] \\[{100 * i.low:+.1f}, {100 * i.high:+.1f}]"


def _runs_table(report: Report) -> Table:
    table = Table(title="Runs")
    table.add_column("")
    for run in report.runs:
        table.add_column(run.name, justify="right")
    table.add_row("coverage", *("exact" if r.coverage.exact else "incomplete" for r in report.runs))
    summaries = [run.summary for run in report.runs]
    for label, text in (
        ("dependable tasks, k/k", lambda s: f"{s.dependable} of {s.tasks}"),
        ("pass^8 unbiased", lambda s: _pass_hat(s, 8)),
        ("pass^k unbiased, k = n", lambda s: f"{100 * s.pass_hat[-1].unbiased:.1f} %"),
        ("pass@k, k = n", lambda s: f"{100 * s.pass_at_k[-1][1]:.1f} %"),
        ("never solved", lambda s: str(s.never_solved)),
    ):
        table.add_row(label, *(text(s) if s else "–" for s in summaries))
    efforts = [effort(run) for run in report.runs]
    priced = any(run.cost for run in report.runs)
    for label, key in (*_EFFORT_ROWS, *(_COST_ROWS if priced else ())):
        table.add_row(label, *(e[key] for e in efforts))
    return table


_EFFORT_ROWS = (
    ("turns per attempt", "turns"),
    ("tokens written per attempt", "output"),
    ("seconds per attempt", "seconds"),
    ("tries that failed", "failed"),
)
_COST_ROWS = (
    ("campaign cost", "cost"),
    ("of it failed tries", "cost_failed"),
    ("cost per attempt", "per_attempt"),
    ("cost per task", "per_task"),
    ("cost per dependable task", "per_dependable"),
)


def _pass_hat(summary: Summary, k: int) -> str:
    """Unbiased pass^k; a dash where fewer attempts were made."""
    found = [p.unbiased for p in summary.pass_hat if p.k == k]
    return f"{100 * found[0]:.1f} %" if found else "–"


def _roles_table(report: Report) -> Table:
    table = Table(title="Tokens and cost by role, failed tries included")
    table.add_column("")
    for column in role_columns(report):
        table.add_column(column.name, justify="right")
    for label, cells in role_rows(report):
        table.add_row(label, *cells)
    return table


def _attribution_table(report: Report) -> Table:
    table = Table(title="Why attempts fail")
    table.add_column("class")
    for run in report.runs:
        table.add_column(run.name, justify="right")
    for name, cells in attribution_rows(report):
        table.add_row(name, *(f"{count} ({100 * share:.0f} %)" for count, share in cells))
    return table
