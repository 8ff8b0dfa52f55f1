"""A small SVG canvas: linear axes, ticks, text, tooltips; colours are the page's CSS variables.

Written by hand rather than by a plotting library so that one file works in light and dark, scales
with the page, uses its typeface, and answers a pointer with the exact number (`<title>`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, log10

BEFORE, AFTER = "var(--before)", "var(--after)"
SERIES = (BEFORE, AFTER, "var(--s3)", "var(--s4)", "var(--s5)", "var(--s6)")

WIDE, HALF, THIRD = 960, 460, 290
"""Widths that charts have on the page, in pixels: type is then the same size everywhere."""

Format = Callable[[float], str]


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def plain(value: float) -> str:
    """Short decimal: 1,200 / 0.25 / 3e-05."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers covering [low, high]."""
    span = (high - low) or abs(high) or 1.0
    raw = span / count
    power = 10.0 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = ceil(low / step - 1e-9)
    last = floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def padded(values: Sequence[float]) -> tuple[float, float]:
    """The range of values with a little air; from 0 where all are at least 0."""
    low, high = min(values), max(values)
    air = 0.08 * ((high - low) or abs(high) or 1.0)
    return (0.0 if low >= 0 else low - air), high + air


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


@dataclass(slots=True)
class Canvas:
    """A plot area with linear axes. x and y are data coordinates, px and py pixels."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    width: int = WIDE
    height: int = 300
    left: int = 52
    right: int = 16
    top: int = 14
    bottom: int = 42
    parts: list[str] = field(default_factory=list)

    def px(self, x: float) -> float:
        low, high = self.x_range
        return self.left + (x - low) / ((high - low) or 1.0) * (self.width - self.left - self.right)

    def py(self, y: float) -> float:
        low, high = self.y_range
        inside = self.height - self.top - self.bottom
        return self.top + (1 - (y - low) / ((high - low) or 1.0)) * inside

    def add(self, tag: str, title: str = "", text: str = "", **attributes: object) -> None:
        """One element; `title` is its tooltip."""
        body = (f"<title>{escape(title)}</title>" if title else "") + escape(text)
        listed = " ".join(
            f'{name.rstrip("_").replace("_", "-")}="{_number(value)}"'
            for name, value in attributes.items()
        )
        self.parts.append(f"<{tag} {listed}>{body}</{tag}>" if body else f"<{tag} {listed}/>")

    def text(
        self, x: float, y: float, text: str, anchor: str = "middle", css: str = "tick"
    ) -> None:
        self.add("text", text=text, x=x, y=y, text_anchor=anchor, class_=css)

    def path(self, points: Sequence[tuple[float, float]], color: str, **attributes: object) -> None:
        """A line through data points."""
        steps = " L".join(f"{self.px(x):.1f} {self.py(y):.1f}" for x, y in points)
        attributes = {"stroke_width": 2, **attributes}
        self.add("path", d=f"M{steps}", fill="none", stroke=color, **attributes)  # type: ignore

    def x_axis(self, values: Sequence[float], show: Format = plain, label: str = "") -> None:
        for value in values:
            self.text(self.px(value), self.height - self.bottom + 18, show(value))
        if label:
            middle = (self.left + self.width - self.right) / 2
            self.text(middle, self.height - 4, label, css="axis")

    def y_axis(self, values: Sequence[float], show: Format = plain, label: str = "") -> None:
        for value in values:
            y = self.py(value)
            self.add("line", x1=self.left, x2=self.width - self.right, y1=y, y2=y, class_="grid")
            self.text(self.left - 8, y + 4, show(value), "end")
        if label:
            self.text(self.left, self.top - 2, label, "start", "axis")

    def svg(self, label: str) -> str:
        """The finished chart; `label` is read by screen readers."""
        narrow, wide = 0.6 * self.width, 1.3 * self.width  # type stays legible on any screen
        return (
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" role="img"'
            f' style="min-width:{narrow:.0f}px;max-width:{wide:.0f}px"'
            f' aria-label="{escape(label)}">{"".join(self.parts)}</svg>'
        )


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else escape(str(value))
