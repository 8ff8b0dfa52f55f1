"""The report's charts: from runs and rows to finished SVG. An empty string where data is absent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from tbrl.curation.posterior import BANDS
from tbrl.evaluation import canvas, plots
from tbrl.evaluation.canvas import AFTER, BEFORE, SERIES
from tbrl.evaluation.metrics import (
    Attempts,
    Interval,
    TaskLabels,
    clustered_interval,
    pass_rate,
)
from tbrl.evaluation.plots import Bars, Dot, Pair, Series
from tbrl.evaluation.report_cost import money
from tbrl.evaluation.report_data import Report, RunResults
from tbrl.types import JsonObject


def color_of(report: Report, run: RunResults) -> str:
    """`before` and `after` keep their colours; further runs take the others."""
    fixed = {"before": BEFORE, "after": AFTER}
    others = [r.name for r in report.runs if r.name not in fixed]
    if run.name in fixed:
        return fixed[run.name]
    free = SERIES[2:] if len(others) < len(report.runs) else SERIES[1:]
    return free[others.index(run.name) % len(free)]


def complete_runs(report: Report) -> list[RunResults]:
    return [run for run in report.runs if run.attempts is not None]


# ---------------------------------------------------------------- training


def curves(report: Report) -> list[tuple[str, str]]:
    """(caption, chart) of every series of metrics.jsonl worth a look."""
    steps = report.steps
    wanted = (
        ("Mean reward of all rollouts", "reward_mean", canvas.percent),
        ("Policy entropy, nats per token", "entropy", canvas.plain),
        ("Gradient norm", "grad_norm", canvas.plain),
        ("Sampler / learner mismatch, KL", "mismatch_kl", canvas.plain),
        ("Tokens per second", "tokens_per_s", canvas.plain),
        ("Prompt tokens from the prefix cache", "cache_hit_share", canvas.percent),
        ("Finished by the agent itself", "finished", canvas.percent),
    )
    found = []
    for caption, key, show in wanted:
        points = [(s["step"] + 1, float(s[key])) for s in steps if s.get(key) is not None]
        if len(points) > 1:
            found.append((caption, _curve(caption, points, show, key == "reward_mean")))
    return found


def _curve(
    caption: str, points: list[tuple[float, float]], show: canvas.Format, large: bool
) -> str:
    width, height = (canvas.WIDE, 300) if large else (canvas.THIRD, 180)
    if not large or len(points) < 8:
        return plots.line_chart(
            [Series(caption, points)],
            "step",
            show,
            markers=large,
            width=width,
            height=height,
        )
    window = max(3, len(points) // 10)
    values = [y for _, y in points]
    smooth = [
        (x, float(np.mean(values[max(0, i - window + 1) : i + 1])))
        for i, (x, _) in enumerate(points)
    ]
    series = [Series("step", points, "var(--faint)"), Series(f"mean of {window} steps", smooth)]
    return plots.line_chart(series, "training step", show, width=width, height=height)


PHASES = (
    ("rollout", SERIES[1]),
    ("reward", SERIES[2]),
    ("learner", SERIES[3]),
    ("weight_sync", SERIES[4]),
    ("idle", SERIES[0]),
)
VERDICTS = (("accepted", AFTER), ("zero_variance", BEFORE), ("failed", "var(--bad)"))


def phase_chart(report: Report) -> str:
    """Wall seconds of each step by phase."""
    rows = [step.get("seconds", {}) for step in report.steps]
    return _stack(rows, report, PHASES, canvas.WIDE, 280)


def verdict_chart(report: Report) -> str:
    """Groups of each step by verdict."""
    return _stack(report.steps, report, VERDICTS, canvas.THIRD, 156)


def _stack(
    rows: Sequence[JsonObject],
    report: Report,
    parts: Sequence[tuple[str, str]],
    width: int,
    height: int,
) -> str:
    if not rows:
        return ""
    sets = [
        Bars(name.replace("_", " "), [float(row.get(name, 0.0)) for row in rows], color)
        for name, color in parts
    ]
    xs = [step["step"] + 1 for step in report.steps]
    return plots.stacked_bars(xs, sets, "step", width, height)


# ---------------------------------------------------------------- before and after


def part_pairs(report: Report, key: Callable[[TaskLabels], str]) -> list[Pair]:
    """Mean success before and after per part, with intervals over its tasks."""
    ends = [report.run("before"), report.run("after")]
    if not any(ends):
        ends = [None, *complete_runs(report)[:1]]
    parts: dict[str, list[tuple[float, float, float] | None]] = defaultdict(lambda: [None, None])
    sizes: Counter[str] = Counter()
    for side, run in enumerate(ends):
        if run is None or run.attempts is None:
            continue
        for name, (count, interval) in _parts(run.attempts, key, report).items():
            parts[name][side] = (interval.value, interval.low, interval.high)
            sizes[name] = count
    pairs = [Pair(name, old, new, f"({sizes[name]} tasks)") for name, (old, new) in parts.items()]
    return sorted(pairs, key=lambda p: -_gain(p))


def _gain(pair: Pair) -> float:
    if pair.before and pair.after:
        return pair.after[0] - pair.before[0]
    return -1.0


def _parts(
    attempts: Attempts, key: Callable[[TaskLabels], str], report: Report
) -> dict[str, tuple[int, Interval]]:
    rates = pass_rate(attempts)
    rows: dict[str, list[int]] = defaultdict(list)
    for i, labels in enumerate(attempts.labels):
        rows[key(labels)].append(i)
    return {
        name: (len(found), clustered_interval(rates[found], report.options.resamples))
        for name, found in rows.items()
    }


def rate_histogram(report: Report) -> str:
    """Tasks by success rate, ten bins; always and never are bins of their own."""
    labels = ["never", "< 20", "< 40", "< 60", "< 80", "< 100 %", "always"]
    runs = complete_runs(report)[:3]
    if not runs:
        return ""
    sets = [Bars(run.name, _bins(run), color_of(report, run)) for run in runs]
    return plots.grouped_bars(labels, sets, "tasks", height=400)


def _bins(run: RunResults) -> list[float]:
    assert run.attempts is not None
    rates = pass_rate(run.attempts)
    inner = np.histogram(rates[(rates > 0) & (rates < 1)], [0, 0.2, 0.4, 0.6, 0.8, 1.0])[0]
    return [float((rates == 0).sum()), *map(float, inner), float((rates == 1).sum())]


def scatter(report: Report) -> str:
    """Success rate after against before, tasks with the same pair of rates as one bubble."""
    before, after = report.run("before"), report.run("after")
    if not before or not after or before.attempts is None or after.attempts is None:
        return ""
    later = dict(zip(after.attempts.tasks, pass_rate(after.attempts).tolist(), strict=True))
    bubbles: dict[tuple[float, float], list[str]] = defaultdict(list)
    for task, rate in zip(before.attempts.tasks, pass_rate(before.attempts).tolist(), strict=True):
        if task in later:
            bubbles[rate, later[task]].append(task)
    dots = [
        Dot(
            x,
            y,
            3.0 + 2.2 * len(tasks) ** 0.5,
            f"{100 * x:.0f} % → {100 * y:.0f} %: {len(tasks)} tasks, e.g. {tasks[0]}",
            AFTER if y > x else "var(--bad)" if y < x else BEFORE,
        )
        for (x, y), tasks in sorted(bubbles.items())
    ]
    return plots.before_after_scatter(dots)


def reliability(report: Report) -> str:
    """pass^k against k: unbiased as a line, the plug-in form dashed."""
    series = []
    for run in complete_runs(report):
        assert run.summary is not None
        color = color_of(report, run)
        hats = run.summary.pass_hat
        series.append(Series(f"{run.name} unbiased", [(h.k, h.unbiased) for h in hats], color))
        series.append(Series(f"{run.name} plug-in", [(h.k, h.plug_in) for h in hats], color, True))
    series = [s for s in series if len(s.points) > 1]
    if not series:
        return ""
    top = max(y for s in series for _, y in s.points)
    return plots.line_chart(
        series,
        "attempts that must all pass, k",
        canvas.percent,
        (0.0, min(1.0, top * 1.1 + 0.02)),
        True,
    )


def cost_chart(report: Report) -> str:
    """Campaign cost (or, without prices, output tokens per attempt) against dependability."""
    dots = []
    for run in complete_runs(report):
        assert run.summary is not None
        priced = run.cost is not None
        written = run.aggregate.usage.agent.output / max(1, run.aggregate.rows)
        x = run.cost.campaign().known if run.cost else written
        share = run.summary.dependable_share.value
        shown = money(run.cost.campaign()) if run.cost else canvas.plain(x)
        title = f"{run.name}: {shown}, {100 * share:.1f} % of tasks pass every attempt"
        dots.append(Dot(x, share, 7.0, title, color_of(report, run), run.name))
    if not dots:
        return ""
    label = "cost of the campaign" if priced else "output tokens per attempt (no prices given)"
    return plots.labelled_scatter(dots, label, "tasks that pass every attempt")


# ---------------------------------------------------------------- curation


def band_chart(report: Report) -> str:
    """Candidates per difficulty band: all, and those kept."""
    if not report.curation:
        return ""
    every = Counter(row["band"] for row in report.curation)
    kept = Counter(row["band"] for row in report.curation if row["reason"] == "kept")
    names = {"rarely_solved": "rarely", "frequently_solved": "frequently"}
    names["nearly_always_solved"] = "nearly always"
    labels = [names.get(band, band) for band in BANDS]
    sets = [
        Bars("candidates", [every[band] for band in BANDS], BEFORE),
        Bars("kept", [kept[band] for band in BANDS], AFTER),
    ]
    return plots.grouped_bars(labels, sets, "tasks")


def yield_chart(report: Report) -> str:
    """Kept tasks by the probability that a group of theirs is mixed."""
    chances = [row["mixed_probability"] for row in report.curation if row["reason"] == "kept"]
    if not chances:
        return ""
    heights = np.histogram(chances, np.linspace(0, 1, 11))[0]
    labels = [f"{10 * i}–{10 * i + 10}" for i in range(10)]
    return plots.grouped_bars(labels, [Bars("kept tasks", [*map(float, heights)], AFTER)], "tasks")
