"""Curation over many settings at once: what each would keep, and how firmly.

A point is a set of boundaries, a group size and a number of probes. Points are independent and
run in a thread pool (the work is in numpy and scipy, which release the interpreter lock).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np

from tbrl.curation.expected_yield import mixed_probability
from tbrl.curation.posterior import BANDS, UNPROBED, band_of, band_table
from tbrl.curation.probes import Probes
from tbrl.curation.selection import Rule


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One setting."""

    boundaries: tuple[float, ...]
    group_size: int = 8
    probes: int = 0
    """Use the first so many clean probes of each task; 0 = all."""

    @property
    def name(self) -> str:
        edges = "/".join(f"{b:g}" for b in self.boundaries)
        return f"{edges} g={self.group_size} n={self.probes or 'all'}"


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one setting keeps."""

    point: SweepPoint
    pool: int
    bands: dict[str, int]
    """Tasks per band, `unprobed` included."""
    mixed: float
    """Mean probability of a mixed group over the pool; 0.0 for an empty pool."""
    mixed_per_step: float
    """Expected mixed groups among the first groups_per_step attempts of a step."""
    stability: float
    """Mean Jaccard overlap of the pool with the pool that fresh probes would give."""
    firm: float
    """Share of candidates whose membership holds in 95 % of resampled probe sets."""


def grid(
    boundaries: Sequence[Sequence[float]],
    group_sizes: Sequence[int] = (8,),
    probes: Sequence[int] = (0,),
) -> list[SweepPoint]:
    """All combinations."""
    return [
        SweepPoint(tuple(map(float, edges)), group, n)
        for edges, group, n in product(boundaries, group_sizes, probes)
    ]


def sweep(
    probes: Mapping[str, Probes],
    points: Sequence[SweepPoint],
    keep: Sequence[str],
    groups_per_step: int,
    resamples: int = 200,
    seed: int = 0,
    threads: int = 2,
) -> list[SweepResult]:
    """One result per point, in order; deterministic in `seed` whatever the number of threads."""

    def evaluate(point: SweepPoint) -> SweepResult:
        return evaluate_point(probes, point, keep, groups_per_step, resamples, seed)

    with ThreadPoolExecutor(max_workers=threads) as pool:
        return list(pool.map(evaluate, points))


def evaluate_point(
    probes: Mapping[str, Probes],
    point: SweepPoint,
    keep: Sequence[str],
    groups_per_step: int,
    resamples: int,
    seed: int,
) -> SweepResult:
    """Bands, yield and stability of one setting."""
    rule = Rule(point.boundaries, tuple(keep))
    used = [p.first(point.probes) if point.probes else p for _, p in sorted(probes.items())]
    counts = [(p.k, p.n) for p in used]
    band = {pair: band_of(*pair, rule.boundaries) for pair in set(counts)}
    chance = {pair: mixed_probability(*pair, point.group_size) for pair in set(counts)}
    bands = [band[pair] for pair in counts]
    kept = np.array([name in rule.keep for name in bands], dtype=bool)
    mixed = [chance[pair] for pair, inside in zip(counts, kept, strict=True) if inside]
    mean_mixed = float(np.mean(mixed)) if mixed else 0.0
    stability, firm = _stability(counts, kept, rule, resamples, seed)
    return SweepResult(
        point=point,
        pool=int(kept.sum()),
        bands={name: bands.count(name) for name in (*BANDS, UNPROBED)},
        mixed=mean_mixed,
        mixed_per_step=groups_per_step * mean_mixed,
        stability=stability,
        firm=firm,
    )


def _stability(
    counts: Sequence[tuple[int, int]], kept: np.ndarray, rule: Rule, resamples: int, seed: int
) -> tuple[float, float]:
    """Draw fresh probe sets from the posterior predictive (rate ~ Jeffreys posterior, successes ~
    binomial) and classify them again. Returns (mean Jaccard overlap, share of firm members)."""
    rng = np.random.default_rng(seed)
    k, n = np.array(counts, dtype=np.int64).reshape(-1, 2).T
    rates = rng.beta(k + 0.5, n - k + 0.5, size=(resamples, len(k)))
    fresh = rng.binomial(n, rates)
    again = np.zeros_like(fresh, dtype=bool)
    for size in np.unique(n[n > 0]):
        inside = np.array([band in rule.keep for band in band_table(int(size), rule.boundaries)])
        columns = n == size
        again[:, columns] = inside[fresh[:, columns]]
    union = (again | kept).sum(axis=1)
    overlap = np.where(union > 0, (again & kept).sum(axis=1) / np.maximum(union, 1), 1.0)
    agreement = (again == kept).mean(axis=0)
    return float(overlap.mean()), float((agreement >= 0.95).mean())
