"""The report: one self-contained HTML page (report.html.jinja), no external asset."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from tbrl.evaluation import canvas, plots
from tbrl.evaluation import report_charts as charts
from tbrl.evaluation.compare import Comparison, compare
from tbrl.evaluation.cost import has_prices
from tbrl.evaluation.metrics import Attempts, Summary, TaskLabels, summarize
from tbrl.evaluation.report_cost import money, role_columns, role_rows, unknown_usage
from tbrl.evaluation.report_data import Report, RunResults
from tbrl.evaluation.task_pages import task_views

PARTS: tuple[tuple[str, str, Callable[[TaskLabels], bool]], ...] = (
    ("All held-out tasks", "", lambda labels: True),
    (
        "Ordinary templates",
        "without those that one shared rule decides",
        lambda labels: labels.ordinary,
    ),
    ("Training domains", "new tasks, new names and ids", lambda labels: not labels.transfer),
    ("Held-out domains", "tools and rules never trained on", lambda labels: labels.transfer),
)


@dataclass(frozen=True, slots=True)
class HeadlineRow:
    """One part of the tasks, before and after."""

    name: str
    note: str
    before: Summary | None
    after: Summary | None
    paired: Comparison | None


def headline(report: Report) -> list[HeadlineRow]:
    """Rows of the headline table; parts that hold all or none of the tasks are left out."""
    before, after = (_attempts(report.run(name)) for name in ("before", "after"))
    if before is None and after is None:
        rest = charts.complete_runs(report)
        after = rest[0].attempts if rest else None
    whole = before or after
    if whole is None:
        return []
    rows: list[HeadlineRow] = []
    for name, note, keep in PARTS:
        count = sum(map(keep, whole.labels))
        if count == 0 or (count == len(whole.tasks) and rows):
            continue
        old, new = (run.select(keep) if run else None for run in (before, after))
        options = report.options
        rows.append(
            HeadlineRow(
                name,
                note,
                summarize(old, (), options.resamples, options.seed) if old else None,
                summarize(new, (), options.resamples, options.seed) if new else None,
                compare(old, new, options.resamples, options.seed) if old and new else None,
            )
        )
    return rows


def _attempts(run: RunResults | None) -> Attempts | None:
    return run.attempts if run else None


def attribution_rows(report: Report) -> list[tuple[str, list[tuple[int, float]]]]:
    """(class, per run (zeros, share of that run's zeros))."""
    classes = sorted({name for run in report.runs for name in run.aggregate.attribution})
    totals = [sum(run.aggregate.attribution.values()) for run in report.runs]

    def cells(name: str) -> list[tuple[int, float]]:
        counts = [run.aggregate.attribution[name] for run in report.runs]
        return [(c, c / t if t else 0.0) for c, t in zip(counts, totals, strict=True)]

    return [(name.replace("_", " "), cells(name)) for name in classes]


def probe_advice(report: Report) -> str:
    """How many more probes would make bands certain (curation/posterior.py), in one sentence."""
    needs = [row["more_probes"] for row in report.curation if row["n"] > 0]
    if not needs:
        return ""
    certain = sum(need == 0 for need in needs)
    finite = sorted(need for need in needs if need)
    text = f"The band of {certain} of {len(needs)} probed tasks is 90 % certain"
    if finite:
        text += f"; half of the others need up to {finite[len(finite) // 2]} more probes"
    beyond = sum(need is None for need in needs)
    return text + (f", and {beyond} lie too close to a boundary for any budget." if beyond else ".")


def write_kind(labels: TaskLabels) -> str:
    """Ticket-only against business-write tasks."""
    if labels.ticket_only is None:
        return "not known"
    return "ticket only" if labels.ticket_only else "business write"


def breakdown_rows(report: Report) -> list[tuple[str, list[tuple[int, int, int]]]]:
    """(kind of task, per run (tasks, scored attempts, zeros))."""
    parts = [run.aggregate.failures_by(write_kind) for run in report.runs]
    kinds = sorted({kind for part in parts for kind in part})
    return [(kind, [part.get(kind, (0, 0, 0)) for part in parts]) for kind in kinds]


def effort(run: RunResults) -> dict[str, str]:
    """What a run took, per attempt and as a whole; a dash where it is not known."""
    total, cost = run.aggregate, run.cost
    agent = total.usage.agent

    def each(value: float, known: bool = True) -> str:
        if not known:
            return "unknown"
        return canvas.plain(value / total.rows) if total.rows and value else "–"

    return {
        "scored": f"{total.scored:,}",
        "failed": f"{total.failed_tries:,}",
        "turns": each(total.agent_turns),
        "input": each(agent.input, not agent.unknown),
        "output": each(agent.output, not agent.unknown),
        "seconds": each(total.seconds["total"]),
        "cost": money(cost.campaign() if cost else None),
        "cost_failed": money(cost.failed_tries() if cost else None),
        "per_attempt": money(cost.per_attempt() if cost else None),
        "per_task": money(cost.per_task() if cost else None),
        "per_success": money(cost.per_success() if cost else None),
        "per_dependable": money(cost.per_dependable_task() if cost else None),
    }


def absent(report: Report) -> list[str]:
    """What the report lacks, said rather than left out."""
    missing = []
    for run in report.runs:
        if run.attempts is None:
            missing.append(f"{run.name}: {run.coverage}: no headline number")
    for name in ("before", "after"):
        if report.run(name) is None:
            missing.append(f"no evaluation/{name}.jsonl")
    if not report.steps:
        missing.append("no training steps in metrics.jsonl")
    if not report.curation:
        missing.append("no curation/aggregates.jsonl")
    missing.extend(unknown_usage(report))
    if not has_prices(report.options.prices):
        missing.append("no prices (evaluation.prices): tokens are shown instead of costs")
    return missing


# ---------------------------------------------------------------- rendering


def render(report: Report) -> str:
    """The whole page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tbrl.evaluation", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "pct": lambda value: f"{100 * value:.1f}",
        "signed": lambda value: f"{100 * value:+.1f}".replace("-", "−"),
        "plain": canvas.plain,
        "pvalue": p_value,
    }
    by_template = charts.part_pairs(report, lambda labels: f"{labels.domain} · {labels.template}")
    by_domain = charts.part_pairs(report, _domain)
    return environment.get_template("report.html.jinja").render(
        report=report,
        runs=[(run, charts.color_of(report, run)) for run in report.runs],
        headline=headline(report),
        curves=[(caption, Markup(svg)) for caption, svg in charts.curves(report)],
        phases=charts.PHASES,
        verdicts=charts.VERDICTS,
        phase_chart=Markup(charts.phase_chart(report)),
        verdict_chart=Markup(charts.verdict_chart(report)),
        template_chart=Markup(plots.dumbbells(by_template)) if by_template else "",
        domain_chart=Markup(plots.dumbbells(by_domain)) if by_domain else "",
        histogram=Markup(charts.rate_histogram(report)),
        scatter=Markup(charts.scatter(report)),
        reliability=Markup(charts.reliability(report)),
        role_columns=[column.name for column in role_columns(report)],
        role_rows=role_rows(report),
        cost_chart=Markup(charts.cost_chart(report)),
        band_chart=Markup(charts.band_chart(report)),
        yield_chart=Markup(charts.yield_chart(report)),
        probe_advice=probe_advice(report),
        attribution=attribution_rows(report),
        breakdown=breakdown_rows(report),
        tasks=task_views(report),
        absent=absent(report),
        runs_legend=lambda runs: [(run.name, color) for run, color in runs],
        runs_map=lambda runs, name: [effort(run)[name] for run, _ in runs],
    )


def _domain(labels: TaskLabels) -> str:
    return f"{labels.domain} (held out)" if labels.transfer else labels.domain


def p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def write_report(report: Report, path: Path) -> None:
    """Write the page aside, then rename: a reader never sees half of it."""
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(render(report), encoding="utf-8")
    os.replace(aside, path)
