"""What a sweep came to, on one self-contained page: band counts, yield and stability by setting."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2
from markupsafe import Markup

from tbrl.curation.posterior import BANDS, UNPROBED
from tbrl.curation.sweep import SweepResult
from tbrl.errors import ConfigError
from tbrl.evaluation.canvas import WIDE, Canvas

BAND_COLORS = dict(
    zip(
        (*BANDS, UNPROBED),
        ("#b9b4a5", "#2f5fd0", "#0f8a7d", "#d9822b", "#d8d4c8", "#ecebe6"),
        strict=True,
    )
)

COLUMNS = (
    *("setting", "pool", "difficult", "intermediate", "frequently"),
    *("P(mixed)", "mixed groups a step", "stability", "firm"),
)


def rows_of(results: Sequence[SweepResult]) -> list[tuple[str, ...]]:
    """One row per setting, under COLUMNS."""
    return [
        (
            r.point.name,
            str(r.pool),
            *(str(r.bands[band]) for band in BANDS[1:4]),
            f"{r.mixed:.3f}",
            f"{r.mixed_per_step:.1f}",
            f"{r.stability:.2f}",
            f"{100 * r.firm:.0f} %",
        )
        for r in results
    ]


def sweep_chart(results: Sequence[SweepResult], keep: Sequence[str]) -> str:
    """One stacked bar per setting; at its end the pool and the stability of membership."""
    total = max((sum(r.bands.values()) for r in results), default=1) or 1
    row, left = 30, 250
    canvas = Canvas(
        (0.0, float(total)), (0.0, 1.0), WIDE, 24 + row * len(results), left, 190, 4, 20
    )
    for i, result in enumerate(results):
        y, base = 6.0 + row * i, 0.0
        canvas.text(left - 12, y + 14, result.point.name, "end", "name")
        for band, color in BAND_COLORS.items():
            count = result.bands[band]
            x, width = canvas.px(base), canvas.px(base + count) - canvas.px(base)
            faint = 1.0 if band in keep else 0.45
            title = f"{band.replace('_', ' ')}: {count}"
            canvas.add(
                "rect", title, x=x, y=y, width=width, height=20, fill=color, fill_opacity=faint
            )
            base += count
        text = f"pool {result.pool}, stability {result.stability:.2f}"
        canvas.text(WIDE - 180, y + 14, text, "start")
    return canvas.svg("candidates per band under each setting")


def sweep_page(
    results: Sequence[SweepResult],
    title: str,
    keep: Sequence[str] = ("difficult", "intermediate", "frequently_solved"),
) -> str:
    """The page as HTML: the plot, then the comparison table. ConfigError without results."""
    if not results:
        raise ConfigError("sweep: no settings to compare")
    loader = jinja2.PackageLoader("tbrl.curation", "")
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("sweep.html.jinja")
    return template.render(
        title=title,
        chart=Markup(sweep_chart(results, keep)),
        rows=rows_of(results),
        columns=COLUMNS,
        colors=BAND_COLORS,
    )
