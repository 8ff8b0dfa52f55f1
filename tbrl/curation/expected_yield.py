"""What a pool will give: probability of mixed groups, and refills per step.

A group of g rollouts teaches only if its rewards are mixed. Under the posterior Beta(a, b) the
number of successes in a group is beta-binomial, so P(mixed) = 1 - P(0) - P(g).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import betabinom

from tbrl.curation.posterior import posterior
from tbrl.errors import ConfigError


def mixed_probability(k: int, n: int, group_size: int) -> float:
    """P(a group of `group_size` rollouts has both a success and a failure), under the posterior."""
    if group_size < 2:
        raise ConfigError(
            f"algorithm.group_size: {group_size} can never be mixed; take 2 or more (default 8)"
        )
    a, b = posterior(k, n)
    return float(
        1.0 - betabinom.pmf(0, group_size, a, b) - betabinom.pmf(group_size, group_size, a, b)
    )


@dataclass(frozen=True, slots=True)
class PoolYield:
    """What to expect of a training pool."""

    pool: int
    """Tasks."""
    group_size: int
    groups_per_step: int
    mixed: float
    """Mean probability that a group of a task drawn from the pool is mixed."""
    attempts_per_step: float
    """Groups rolled out until `groups_per_step` are mixed: groups_per_step / mixed."""
    refills_per_step: float
    """attempts_per_step - groups_per_step: zero-variance groups thrown away."""
    mixed_per_first_wave: float
    """Mixed groups among the first `groups_per_step` attempts of a step."""


def pool_yield(
    counts: Sequence[tuple[int, int]], group_size: int, groups_per_step: int
) -> PoolYield:
    """Expected yield of a pool of tasks with (k, n) probes each.

    Each slot takes tasks of a uniform permutation until one is mixed, so its attempts are close to
    geometric in the pool's mean probability (exactly so while the pool is much longer than the
    attempts of one step). Raises ConfigError for an empty pool.
    """
    if not counts:
        raise ConfigError("curation: the pool is empty; widen curation.keep or add candidate tasks")
    distinct = {pair: mixed_probability(*pair, group_size) for pair in set(counts)}
    mixed = float(np.mean([distinct[pair] for pair in counts]))
    attempts = groups_per_step / mixed
    return PoolYield(
        pool=len(counts),
        group_size=group_size,
        groups_per_step=groups_per_step,
        mixed=mixed,
        attempts_per_step=attempts,
        refills_per_step=attempts - groups_per_step,
        mixed_per_first_wave=groups_per_step * mixed,
    )
