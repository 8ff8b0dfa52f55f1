"""How hard a task is for a policy: Jeffreys posterior of its success rate, and the band it is in.

k successes in n clean probes give Beta(k + 1/2, n - k + 1/2) (Jeffreys prior, Brown, Cai and
DasGupta 2001). The band is the one with the largest posterior mass. Two bands whose masses are
equal within `TIE` go to the harder one: a task is never kept on the strength of a coin toss that
favours easiness. n = 0 has no band: the prior alone says nothing about a task.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import beta, betabinom

from tbrl.errors import ConfigError

BANDS = ("rarely_solved", "difficult", "intermediate", "frequently_solved", "nearly_always_solved")
UNPROBED = "unprobed"
"""Band of a task with n = 0."""
BOUNDARIES = (0.08, 0.40, 0.60, 0.90)
TIE = 1e-12
"""Masses closer than this are equal: above the rounding of the incomplete beta function."""


def check_boundaries(boundaries: Sequence[float]) -> tuple[float, ...]:
    """Four increasing numbers inside (0, 1); ConfigError otherwise."""
    edges = tuple(float(b) for b in boundaries)
    inside = all(0.0 < b < 1.0 for b in edges)
    if len(edges) != len(BANDS) - 1 or not inside or list(edges) != sorted(set(edges)):
        raise ConfigError(
            f"curation.boundaries: {list(boundaries)} must be {len(BANDS) - 1} increasing numbers"
            f" inside (0, 1), e.g. {list(BOUNDARIES)}"
        )
    return edges


def check_counts(k: int, n: int) -> None:
    """ConfigError unless 0 <= k <= n."""
    if not 0 <= k <= n:
        raise ConfigError(f"probes: {k} successes of {n} is not possible; recount the probe files")


def posterior(k: int, n: int) -> tuple[float, float]:
    """Parameters (a, b) of the Jeffreys posterior; n = 0 gives the prior Beta(1/2, 1/2)."""
    check_counts(k, n)
    return k + 0.5, n - k + 0.5


def band_masses(k: int, n: int, boundaries: Sequence[float] = BOUNDARIES) -> np.ndarray:
    """Posterior mass of each band, float64 [5], summing to 1. Bands are [lower, upper)."""
    a, b = posterior(k, n)
    edges = np.array([0.0, *check_boundaries(boundaries), 1.0])
    return np.diff(beta.cdf(edges, a, b))


def band_of(k: int, n: int, boundaries: Sequence[float] = BOUNDARIES) -> str:
    """Name of the band of largest posterior mass; the harder of equals; `unprobed` for n = 0."""
    if n == 0:
        return UNPROBED
    masses = band_masses(k, n, boundaries)
    return BANDS[int(np.argmax(masses >= masses.max() - TIE))]


def band_table(n: int, boundaries: Sequence[float] = BOUNDARIES) -> list[str]:
    """Band of k = 0 .. n successes in n probes."""
    return [band_of(k, n, boundaries) for k in range(n + 1)]


def probability_above(k: int, n: int, threshold: float) -> float:
    """Posterior probability that the success rate is above `threshold`."""
    a, b = posterior(k, n)
    return float(beta.sf(threshold, a, b))


def more_probes_until_certain(
    k: int,
    n: int,
    boundaries: Sequence[float] = BOUNDARIES,
    certainty: float = 0.9,
    limit: int = 256,
) -> int | None:
    """Probe budget advice: fewest further probes after which the winning band is expected to hold
    `certainty` of the posterior. The expectation is over the posterior predictive (beta-binomial)
    of the further probes. 0 when it already does; None when `limit` more would not do: the rate
    is probably close to a boundary."""
    a, b = posterior(k, n)

    def expected_certainty(more: int) -> float:
        successes = np.arange(more + 1)
        weight = betabinom.pmf(successes, more, a, b)
        edges = np.array([0.0, *check_boundaries(boundaries), 1.0])[:, None]
        cdf = beta.cdf(edges, a + successes, b + more - successes)
        return float((weight * np.diff(cdf, axis=0).max(axis=0)).sum())

    # Expected certainty never falls with more probes (a maximum is convex), so bisection finds
    # the first budget that is enough.
    if expected_certainty(0) >= certainty:
        return 0
    if expected_certainty(limit) < certainty:
        return None
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        if expected_certainty(middle) >= certainty:
            high = middle
        else:
            low = middle
    return high
