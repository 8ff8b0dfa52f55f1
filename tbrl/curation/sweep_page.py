"""The picture of a curation sweep: band counts, expected mixed groups and stability by setting."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from tbrl.curation.posterior import BANDS
from tbrl.curation.sweep import SweepResult

_COLORS = ("#b8bcc8", "#5b7fd1", "#2f9e8f", "#d99a2b", "#d9d2c4")
"""One per band, from rarely to nearly always solved: what is usually kept is saturated."""


def sweep_page(results: Sequence[SweepResult], title: str) -> str:
    """One self-contained HTML page."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        f"<title>{html.escape(title)}</title>"
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
        "padding:0 1rem;color:#1b1f27}svg{width:100%;height:auto}</style>"
        f"<h1>{html.escape(title)}</h1>{_svg(results)}"
        "<p>Bars: candidates by difficulty band. Second panel: mixed groups expected among a "
        "step's first attempts, and the overlap (Jaccard) of the pool with the one that fresh "
        "probes would give.</p></html>"
    )


def _svg(results: Sequence[SweepResult]) -> str:
    names = [result.point.name for result in results]
    with plt.rc_context({"svg.fonttype": "none", "font.size": 10}):
        height = 1.4 + 0.45 * len(results)
        figure, (bands, yields) = plt.subplots(1, 2, figsize=(11, height), sharey=True)
        left = [0] * len(results)
        for band, color in zip(BANDS, _COLORS, strict=True):
            counts = [result.bands[band] for result in results]
            bands.barh(names, counts, left=left, color=color, label=band.replace("_", " "))
            left = [a + b for a, b in zip(left, counts, strict=True)]
        bands.set_xlabel("candidates")
        bands.invert_yaxis()
        bands.legend(fontsize=8, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
        yields.barh(names, [r.mixed_per_step for r in results], color="#5b7fd1")
        yields.set_xlabel("mixed groups a step")
        for place, result in enumerate(results):
            text = f" pool {result.pool}, stability {result.stability:.2f}"
            yields.text(result.mixed_per_step, place, text, va="center", fontsize=9)
        yields.margins(x=0.5)
        for axes in (bands, yields):
            axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        out = io.StringIO()
        figure.savefig(out, format="svg")
        plt.close(figure)
    return out.getvalue()[out.getvalue().index("<svg") :]
