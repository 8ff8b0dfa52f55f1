"""Charts of the report, as inline SVG (see canvas.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tbrl.evaluation.canvas import (
    AFTER,
    BEFORE,
    HALF,
    WIDE,
    Canvas,
    Format,
    padded,
    percent,
    plain,
    shorten,
    ticks,
)


@dataclass(frozen=True, slots=True)
class Series:
    """One named line."""

    name: str
    points: Sequence[tuple[float, float]]
    color: str = AFTER
    dashed: bool = False


def line_chart(
    series: Sequence[Series],
    x_label: str = "",
    y_show: Format = plain,
    y_range: tuple[float, float] | None = None,
    markers: bool = False,
    width: int = WIDE,
    height: int = 300,
) -> str:
    """Lines over a common x axis; a single series needs no legend."""
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points]
    low, high = y_range or padded(ys)
    canvas = Canvas((min(xs), max(xs)), (low, high), width, height)
    canvas.y_axis(ticks(low, high, 4), y_show)
    canvas.x_axis(ticks(min(xs), max(xs), 6 if width > 400 else 4), label=x_label)
    for s in series:
        canvas.path(s.points, s.color, stroke_dasharray="5 4" if s.dashed else "none")
        for x, y in s.points if markers else ():
            canvas.add(
                "circle",
                f"{s.name}: {plain(x)}, {y_show(y)}",
                cx=canvas.px(x),
                cy=canvas.py(y),
                r=3 if len(xs) < 60 else 2,
                fill=s.color,
            )
    return canvas.svg(", ".join(s.name for s in series))


@dataclass(frozen=True, slots=True)
class Pair:
    """A category before and after; each (value, low, high) or None."""

    name: str
    before: tuple[float, float, float] | None
    after: tuple[float, float, float] | None
    note: str = ""


def dumbbells(pairs: Sequence[Pair], show: Format = percent, width: int = WIDE) -> str:
    """One row per category: from the hollow dot before to the full dot after, with intervals."""
    row, left = 31, 210
    canvas = Canvas((0.0, 1.0), (0.0, 1.0), width, 30 + row * len(pairs) + 26, left, 96, 30, 26)
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = canvas.px(value)
        canvas.add("line", x1=x, x2=x, y1=22, y2=canvas.height - 26, class_="grid")
        canvas.text(x, canvas.height - 8, show(value))
    for i, pair in enumerate(pairs):
        _dumbbell(canvas, pair, 30 + row * i + row / 2, show)
    return canvas.svg("before and after by category")


def _dumbbell(canvas: Canvas, pair: Pair, y: float, show: Format) -> None:
    canvas.text(canvas.left - 14, y + 4, shorten(pair.name, 26), "end", "name")
    ends = ((pair.before, BEFORE, y - 4), (pair.after, AFTER, y + 4))
    for point, color, at in ends:
        if point is not None and point[2] > point[1]:
            low, high = canvas.px(point[1]), canvas.px(point[2])
            canvas.add("line", x1=low, x2=high, y1=at, y2=at, stroke=color, class_="interval")
    if pair.before and pair.after:
        low, high = canvas.px(pair.before[0]), canvas.px(pair.after[0])
        canvas.add("line", x1=low, x2=high, y1=y, y2=y, class_="bridge")
        change = 100 * (pair.after[0] - pair.before[0])
        css = "rise" if change > 0 else "fall" if change < 0 else "tick"
        canvas.text(canvas.width - 8, y + 4, f"{change:+.1f} pp".replace("-", "−"), "end", css)
    for point, color, _ in ends:
        if point is not None:
            title = (
                f"{pair.name}: {100 * point[0]:.1f} % [{100 * point[1]:.1f}, {100 * point[2]:.1f}]"
            )
            hollow = color == BEFORE
            canvas.add(
                "circle",
                f"{title} {pair.note}".strip(),
                cx=canvas.px(point[0]),
                cy=y,
                r=6,
                fill="var(--card)" if hollow else color,
                stroke=color,
                stroke_width=2.5,
            )


@dataclass(frozen=True, slots=True)
class Bars:
    """One named set of bar heights."""

    name: str
    heights: Sequence[float]
    color: str


def grouped_bars(
    labels: Sequence[str], sets: Sequence[Bars], y_label: str = "", height: int = 260
) -> str:
    """Bars side by side per label (one set: plain bars); counts above short bars."""
    top = max((h for s in sets for h in s.heights), default=1.0) or 1.0
    canvas = Canvas((0.0, float(len(labels))), (0.0, top * 1.1), HALF, height, 40, 4, 24, 28)
    canvas.y_axis(ticks(0.0, top * 1.1, 4), label=y_label)
    slot = canvas.px(1.0) - canvas.px(0.0)
    bar = slot * 0.76 / len(sets)
    for i, label in enumerate(labels):
        canvas.text(canvas.px(i + 0.5), canvas.height - canvas.bottom + 18, label)
        for j, s in enumerate(sets):
            x, y = canvas.px(i) + slot * 0.12 + j * bar, canvas.py(s.heights[i])
            floor_y = canvas.py(0.0)
            title = f"{label} {s.name}: {plain(s.heights[i])}"
            canvas.add(
                "rect", title, x=x, y=y, width=bar * 0.92, height=floor_y - y, rx=2, fill=s.color
            )
            if s.heights[i] and len(labels) <= 8:
                canvas.text(x + bar * 0.46, y - 5, plain(s.heights[i]), css="value")
    return canvas.svg(", ".join(s.name for s in sets))


def stacked_bars(
    xs: Sequence[float],
    sets: Sequence[Bars],
    x_label: str = "",
    width: int = WIDE,
    height: int = 300,
) -> str:
    """Stacked bars, one per x: phases of a step, verdicts of groups."""
    totals = [sum(s.heights[i] for s in sets) for i in range(len(xs))]
    top = max(totals, default=1.0) or 1.0
    canvas = Canvas((0.0, float(len(xs))), (0.0, top * 1.05), width, height)
    canvas.y_axis(ticks(0.0, top * 1.05, 4))
    slot = canvas.px(1.0) - canvas.px(0.0)
    every = max(1, ceil(len(xs) * 46 / width))
    for i, x in enumerate(xs):
        base = 0.0
        if i % every == 0:
            canvas.text(canvas.px(i + 0.5), canvas.height - canvas.bottom + 18, plain(x))
        for s in sets:
            low, high = canvas.py(base), canvas.py(base + s.heights[i])
            title = f"{x_label} {plain(x)}, {s.name}: {plain(s.heights[i])}"
            canvas.add(
                "rect",
                title,
                x=canvas.px(i) + slot * 0.06,
                y=high,
                width=slot * 0.88,
                height=low - high,
                fill=s.color,
            )
            base += s.heights[i]
    canvas.text(
        (canvas.left + canvas.width - canvas.right) / 2, canvas.height - 4, x_label, css="axis"
    )
    return canvas.svg(", ".join(s.name for s in sets))


@dataclass(frozen=True, slots=True)
class Dot:
    """One point of a scatter plot."""

    x: float
    y: float
    size: float
    """Radius in pixels."""
    title: str
    color: str = AFTER
    label: str = ""


def before_after_scatter(dots: Sequence[Dot]) -> str:
    """Success rate after against before, one bubble per pair of rates; above the line is better."""
    canvas = Canvas((-0.04, 1.04), (-0.04, 1.04), HALF, 430)
    corner = [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    points = " ".join(f"{canvas.px(x):.1f},{canvas.py(y):.1f}" for x, y in corner)
    canvas.add("polygon", points=points, class_="better")
    values = (0.0, 0.25, 0.5, 0.75, 1.0)
    canvas.y_axis(values, percent, "after")
    canvas.x_axis(values, percent, "before")
    canvas.path([(0.0, 0.0), (1.0, 1.0)], "var(--muted)", stroke_width=1, stroke_dasharray="4 4")
    for dot in dots:
        canvas.add(
            "circle",
            dot.title,
            cx=canvas.px(dot.x),
            cy=canvas.py(dot.y),
            r=dot.size,
            fill=dot.color,
            class_="bubble",
        )
    return canvas.svg("success rate per task, before and after")


def labelled_scatter(
    dots: Sequence[Dot], x_label: str, y_label: str, y_show: Format = percent
) -> str:
    """Few named points, e.g. runs by cost and dependability."""
    x_high = max(dot.x for dot in dots) * 1.25 or 1.0
    y_high = max(dot.y for dot in dots) * 1.25 or 0.1
    canvas = Canvas((0.0, x_high), (0.0, y_high), HALF, 290, top=24)
    canvas.y_axis(ticks(0.0, y_high, 4), y_show, y_label)
    canvas.x_axis(ticks(0.0, x_high, 5), label=x_label)
    for dot in dots:
        x, y = canvas.px(dot.x), canvas.py(dot.y)
        canvas.add("circle", dot.title, cx=x, cy=y, r=dot.size, fill=dot.color)
        canvas.text(x + dot.size + 6, y + 4, dot.label, "start", "name")
    return canvas.svg(f"{y_label} against {x_label}")
