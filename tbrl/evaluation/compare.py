"""Paired comparison of two runs on the same tasks.

Pairing removes the differences between tasks, which are much larger than those between runs. The
interval is a bootstrap over tasks; the p-value is a sign-flip permutation test over tasks
(H0: the runs are exchangeable within each task), two-sided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tbrl.errors import ConfigError
from tbrl.evaluation.metrics import (
    Attempts,
    Interval,
    clustered_interval,
    dependable_tasks,
    pass_rate,
)

EXACT_UP_TO = 14
"""Differing tasks up to which all 2^m sign patterns are enumerated."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """After against before."""

    tasks: int
    before: float
    """pass@1"""
    after: float
    difference: Interval
    """after - before in pass@1, with the interval of the paired difference."""
    p_value: float
    gained: tuple[str, ...]
    """Tasks that now pass every attempt and did not before."""
    lost: tuple[str, ...]
    """Tasks that passed every attempt before and no longer do."""
    improved: int
    """Tasks whose success rate rose."""
    worsened: int


def compare(before: Attempts, after: Attempts, resamples: int = 2000, seed: int = 0) -> Comparison:
    """Raises ConfigError unless both runs hold exactly the same tasks."""
    order = _same_tasks(before, after)
    differences = pass_rate(after)[order] - pass_rate(before)
    gained, lost = set(dependable_tasks(after)), set(dependable_tasks(before))
    return Comparison(
        tasks=len(before.tasks),
        before=float(pass_rate(before).mean()),
        after=float(pass_rate(after).mean()),
        difference=clustered_interval(differences, resamples, seed),
        p_value=sign_flip_p_value(differences, seed=seed),
        gained=tuple(sorted(gained - lost)),
        lost=tuple(sorted(lost - gained)),
        improved=int((differences > 0).sum()),
        worsened=int((differences < 0).sum()),
    )


def _same_tasks(before: Attempts, after: Attempts) -> list[int]:
    """Rows of `after` in the order of `before`."""
    row = {task: i for i, task in enumerate(after.tasks)}
    only_before = [task for task in before.tasks if task not in row]
    only_after = sorted(set(after.tasks) - set(before.tasks))
    if only_before or only_after:
        example = (only_before or only_after)[0]
        raise ConfigError(
            f"compare: {len(only_before)} tasks only before and {len(only_after)} only after"
            f" (e.g. {example}); evaluate both policies on the same tasks"
        )
    return [row[task] for task in before.tasks]


def sign_flip_p_value(differences: np.ndarray, resamples: int = 20_000, seed: int = 0) -> float:
    """P(|mean of randomly signed differences| >= |observed mean|). `differences` float64 [T].

    Exact enumeration where few tasks differ; else Monte Carlo with the observed pattern counted
    ((hits + 1)/(resamples + 1), so never 0: Phipson and Smyth 2010).
    """
    moved = np.abs(differences[differences != 0.0])
    observed = abs(float(differences.sum())) - 1e-9
    if len(moved) == 0:
        return 1.0
    if len(moved) <= EXACT_UP_TO:
        patterns = (np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1
        return float((np.abs((2 * patterns - 1) @ moved) >= observed).mean())
    rng = np.random.default_rng(seed)
    # Equal magnitudes are one binomial each: 20,000 resamples of any number of tasks stay small.
    sizes, counts = np.unique(moved.round(12), return_counts=True)
    plus = rng.binomial(counts, 0.5, size=(resamples, len(counts)))
    hits = int((np.abs((2 * plus - counts) @ sizes) >= observed).sum())
    return (hits + 1) / (resamples + 1)
