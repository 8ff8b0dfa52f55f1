"""Exact metrics of repeated attempts.

Everything is computed from one boolean matrix, tasks x attempts, that is complete: a failed or
missing attempt has no place in it, so no number can be had by dropping one. k is never larger
than the attempts at hand: there is no fallback.

    pass@1        mean over tasks of c/n
    pass@k        mean of 1 - C(n-c, k)/C(n, k)        (Chen et al. 2021, unbiased)
    observed k/k  tasks that passed all their attempts  (a count, no estimate)
    pass^k        the chance that k attempts all pass, three ways:
      literal     share of tasks whose first k attempts all passed  (unbiased, noisy)
      unbiased    mean of C(c, k)/C(n, k)               (tau-bench, Yao et al. 2024)
      plug-in     mean of (c/n)^k                       (biased upward by Jensen's inequality)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import comb

import numpy as np

from tbrl.errors import ConfigError, InvariantError


@dataclass(frozen=True, slots=True)
class TaskLabels:
    """What a task is grouped by in reports."""

    domain: str = ""
    template: str = ""
    ordinary: bool = True
    """False where one shared rule decides the template (see domains/base.py)."""
    ticket_only: bool | None = None
    """The golden effects touch helpdesk tables only; None = not known."""
    transfer: bool = False
    """The domain is a held-out one: none of its tasks was ever trained on."""
    eval_only: bool = False
    """Golden differences are shown behind an explicit option only."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """A complete campaign: every task has every attempt, each scored.

    >>> a = Attempts(("t1", "t2"), np.array([[True, False], [True, True]]))
    >>> pass_at_1(a), pass_hat_unbiased(a, 2)
    (0.75, 0.5)
    """

    tasks: tuple[str, ...]
    passed: np.ndarray
    """bool [T, n]"""
    labels: tuple[TaskLabels, ...] = field(default=())
    """One per task, or empty."""

    def __post_init__(self) -> None:
        if self.passed.dtype != np.bool_ or self.passed.ndim != 2:
            raise InvariantError("attempts: `passed` must be a complete boolean matrix [T, n]")
        if len(self.tasks) != len(self.passed) or (
            self.labels and len(self.labels) != len(self.tasks)
        ):
            raise InvariantError("attempts: tasks, labels and rows of `passed` differ in number")
        if len(set(self.tasks)) != len(self.tasks):
            raise InvariantError("attempts: a task appears twice")
        if self.passed.size == 0:
            raise ConfigError("evaluation: no scored attempts; run stage=evaluate first")

    @property
    def n(self) -> int:
        """Attempts per task."""
        return int(self.passed.shape[1])

    @property
    def successes(self) -> np.ndarray:
        """int64 [T]"""
        return self.passed.sum(axis=1)

    def select(self, keep: Callable[[TaskLabels], bool]) -> Attempts | None:
        """The tasks whose labels satisfy `keep`; None when there are none."""
        rows = [i for i, labels in enumerate(self.labels) if keep(labels)]
        if not rows:
            return None
        return Attempts(
            tuple(self.tasks[i] for i in rows),
            self.passed[rows],
            tuple(self.labels[i] for i in rows),
        )


def _per_count(attempts: Attempts, value: Callable[[int], float]) -> np.ndarray:
    """value(c) for each task, float64 [T]; exact integer combinatorics, once per distinct c."""
    table = np.array([value(c) for c in range(attempts.n + 1)])
    return table[attempts.successes]


def _check_k(attempts: Attempts, k: int) -> None:
    if not 1 <= k <= attempts.n:
        raise ConfigError(
            f"evaluation: k = {k} needs {k} attempts per task, {attempts.n} are at hand;"
            " raise evaluation.attempts and repair the campaign"
        )


def pass_rate(attempts: Attempts) -> np.ndarray:
    """c/n of each task, float64 [T]."""
    return np.divide(attempts.successes, attempts.n)


def pass_at_1(attempts: Attempts) -> float:
    return float(pass_rate(attempts).mean())


def pass_at_k_per_task(attempts: Attempts, k: int) -> np.ndarray:
    """Unbiased pass@k of each task, float64 [T]."""
    _check_k(attempts, k)
    n = attempts.n
    return _per_count(attempts, lambda c: 1.0 - comb(n - c, k) / comb(n, k))


def pass_at_k(attempts: Attempts, k: int) -> float:
    return float(pass_at_k_per_task(attempts, k).mean())


def pass_hat_literal_per_task(attempts: Attempts, k: int) -> np.ndarray:
    """1.0 where the first k attempts all passed, float64 [T]."""
    _check_k(attempts, k)
    return (attempts.passed[:, :k].sum(axis=1) == k).astype(np.float64)


def pass_hat_literal(attempts: Attempts, k: int) -> float:
    return float(pass_hat_literal_per_task(attempts, k).mean())


def pass_hat_unbiased_per_task(attempts: Attempts, k: int) -> np.ndarray:
    """C(c, k)/C(n, k) of each task, float64 [T]."""
    _check_k(attempts, k)
    n = attempts.n
    return _per_count(attempts, lambda c: comb(c, k) / comb(n, k))


def pass_hat_unbiased(attempts: Attempts, k: int) -> float:
    return float(pass_hat_unbiased_per_task(attempts, k).mean())


def pass_hat_plug_in_per_task(attempts: Attempts, k: int) -> np.ndarray:
    """(c/n)^k of each task, float64 [T]."""
    _check_k(attempts, k)
    return pass_rate(attempts) ** k


def pass_hat_plug_in(attempts: Attempts, k: int) -> float:
    return float(pass_hat_plug_in_per_task(attempts, k).mean())


def dependable_tasks(attempts: Attempts) -> tuple[str, ...]:
    """Tasks that passed all their attempts (observed k/k with k = n)."""
    every = np.flatnonzero(attempts.successes == attempts.n)
    return tuple(attempts.tasks[i] for i in every)


# ---------------------------------------------------------------- intervals


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over tasks and its bootstrap interval."""

    value: float
    low: float
    high: float


def clustered_interval(
    per_task: np.ndarray, resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Percentile bootstrap over tasks (the clusters): attempts of one task are not independent,
    so whole tasks are drawn with replacement. `per_task` float64 [T]. With a single task the
    interval collapses to the value; always show the number of tasks beside it."""
    rng = np.random.default_rng(seed)
    count = len(per_task)
    # Values repeat (c is a small integer), so a resample is a multinomial over distinct values:
    # memory stays at resamples x distinct values, however many tasks there are.
    values, multiplicity = np.unique(per_task, return_counts=True)
    draws = rng.multinomial(count, multiplicity / count, size=resamples)
    means = draws @ values / count
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Interval(float(per_task.mean()), float(low), float(high))


# ---------------------------------------------------------------- summary


@dataclass(frozen=True, slots=True)
class PassHat:
    """pass^k at one k, three ways."""

    k: int
    literal: float
    unbiased: float
    plug_in: float

    @property
    def gap(self) -> float:
        """How much the plug-in form flatters: plug_in - unbiased."""
        return self.plug_in - self.unbiased


@dataclass(frozen=True, slots=True)
class Summary:
    """The headline numbers of one campaign or of one part of it."""

    tasks: int
    attempts: int
    """Per task."""
    pass_at_1: Interval
    pass_at_k: tuple[tuple[int, float], ...]
    pass_hat: tuple[PassHat, ...]
    dependable: int
    """Tasks that passed all attempts."""
    dependable_share: Interval
    never_solved: int


def default_ks(n: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 5, 8, 10, 16, 20, 50, 100 up to n, and n itself."""
    return tuple(sorted({k for k in (1, 2, 3, 4, 5, 8, 10, 16, 20, 50, 100) if k <= n} | {n}))


def summarize(
    attempts: Attempts, ks: Sequence[int] = (), resamples: int = 2000, seed: int = 0
) -> Summary:
    """All metrics of `attempts`; `ks` defaults to `default_ks`."""
    ks = tuple(ks) or default_ks(attempts.n)
    return Summary(
        tasks=len(attempts.tasks),
        attempts=attempts.n,
        pass_at_1=clustered_interval(pass_rate(attempts), resamples, seed),
        pass_at_k=tuple((k, pass_at_k(attempts, k)) for k in ks),
        pass_hat=tuple(
            PassHat(
                k,
                pass_hat_literal(attempts, k),
                pass_hat_unbiased(attempts, k),
                pass_hat_plug_in(attempts, k),
            )
            for k in ks
        ),
        dependable=len(dependable_tasks(attempts)),
        dependable_share=clustered_interval(
            pass_hat_literal_per_task(attempts, attempts.n), resamples, seed
        ),
        never_solved=int((attempts.successes == 0).sum()),
    )


def summarize_by(
    attempts: Attempts, key: Callable[[TaskLabels], str], resamples: int = 2000, seed: int = 0
) -> dict[str, Summary]:
    """One Summary per value of `key`, sorted; parts too small to differ are still shown."""
    parts: dict[str, Summary] = {}
    for name in sorted({key(labels) for labels in attempts.labels}):
        part = attempts.select(partial(_has_key, key, name))
        if part is not None:
            parts[name] = summarize(part, resamples=resamples, seed=seed)
    return parts


def _has_key(key: Callable[[TaskLabels], str], name: str, labels: TaskLabels) -> bool:
    return key(labels) == name
