"""Estimators of repeated attempts: exact against full enumeration and scipy."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from tbrl.errors import ConfigError, InvariantError
from tbrl.evaluation import metrics
from tbrl.evaluation.metrics import Attempts, TaskLabels


def attempts_with(successes, n):
    """One task per entry of `successes`, its first c attempts passed."""
    passed = np.array([[a < c for a in range(n)] for c in successes], dtype=bool)
    return Attempts(tuple(f"t{i}" for i in range(len(successes))), passed)


@pytest.mark.parametrize("n", range(1, 7))
def test_estimators_equal_the_enumeration_of_all_choices_of_k(n):
    for pattern in product([False, True], repeat=n):
        one = Attempts(("t",), np.array([pattern]))
        for k in range(1, n + 1):
            chosen = list(combinations(pattern, k))
            some = sum(any(c) for c in chosen) / len(chosen)
            every = sum(all(c) for c in chosen) / len(chosen)
            assert metrics.pass_at_k(one, k) == pytest.approx(some, abs=1e-15)
            assert metrics.pass_hat_unbiased(one, k) == pytest.approx(every, abs=1e-15)
            assert metrics.pass_hat_literal(one, k) == float(all(pattern[:k]))
            # With replacement: all n^k sequences of draws.
            drawn = list(product(pattern, repeat=k))
            replaced = sum(all(d) for d in drawn) / len(drawn)
            assert metrics.pass_hat_plug_in(one, k) == pytest.approx(replaced, abs=1e-12)


@pytest.mark.parametrize("n", range(1, 7))
def test_unbiased_forms_have_the_right_expectation_for_every_rate(n):
    """Sum over all outcomes of probability x estimate equals p^k, and 1-(1-p)^k."""
    for p in (0.1, 0.5, 0.83):
        for k in range(1, n + 1):
            hat = at = literal = 0.0
            for pattern in product([False, True], repeat=n):
                weight = p ** sum(pattern) * (1 - p) ** (n - sum(pattern))
                one = Attempts(("t",), np.array([pattern]))
                hat += weight * metrics.pass_hat_unbiased(one, k)
                literal += weight * metrics.pass_hat_literal(one, k)
                at += weight * metrics.pass_at_k(one, k)
            assert hat == pytest.approx(p**k)
            assert literal == pytest.approx(p**k)
            assert at == pytest.approx(1 - (1 - p) ** k)


@settings(deadline=None)
@given(st.integers(1, 400), st.data())
def test_estimators_equal_the_hypergeometric_for_large_n(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    one = attempts_with([c], n)
    law = hypergeom(n, c, k)
    assert metrics.pass_at_k(one, k) == pytest.approx(1 - law.pmf(0), abs=1e-9)
    assert metrics.pass_hat_unbiased(one, k) == pytest.approx(law.pmf(k), rel=1e-6, abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=20), st.integers(1, 12))
def test_plug_in_never_lies_below_the_unbiased_form(successes, k):
    several = attempts_with(successes, 12)
    assert metrics.pass_hat_plug_in(several, k) >= metrics.pass_hat_unbiased(several, k) - 1e-12


def test_a_nearly_dependable_task_adds_to_the_plug_in_form_only():
    """19 and 18 of 20 add 0.36 and 0.12 to (c/n)^20, and nothing to the unbiased form."""
    assert metrics.pass_hat_plug_in(attempts_with([19], 20), 20) == pytest.approx(0.36, abs=0.005)
    assert metrics.pass_hat_plug_in(attempts_with([18], 20), 20) == pytest.approx(0.12, abs=0.005)
    assert metrics.pass_hat_unbiased(attempts_with([19, 18], 20), 20) == 0.0
    summary = metrics.summarize(attempts_with([20, 19, 18], 20), ks=[20])
    assert summary.pass_hat[0].gap == pytest.approx((0.3585 + 0.1216) / 3, abs=1e-3)


@pytest.mark.parametrize(
    ("dependable", "share"), [(68, 13.41), (107, 21.1), (38, 7.5), (82, 16.2), (102, 20.1)]
)
def test_dependable_share_of_507_tasks(dependable, share):
    several = attempts_with([20] * dependable + [7] * (507 - dependable), 20)
    summary = metrics.summarize(several, ks=[20])
    assert summary.dependable == dependable
    assert 100 * summary.dependable_share.value == pytest.approx(share, abs=0.05)
    assert summary.pass_hat[0].unbiased == summary.pass_hat[0].literal == dependable / 507


@pytest.mark.parametrize(
    "estimator",
    [
        metrics.pass_at_k,
        metrics.pass_hat_literal,
        metrics.pass_hat_unbiased,
        metrics.pass_hat_plug_in,
    ],
)
def test_more_attempts_than_there_are_is_refused(estimator):
    with pytest.raises(ConfigError, match=r"k = 5 needs 5 attempts per task, 4 are at hand"):
        estimator(attempts_with([4, 4], 4), 5)


def test_a_hole_in_the_matrix_is_no_campaign():
    with pytest.raises(InvariantError, match="complete boolean matrix"):
        Attempts(("t",), np.array([[1.0, np.nan]]))


def test_interval_respects_clustering_by_task():
    """Twenty equal attempts of a task are one observation: the interval must not shrink."""
    rates = np.array([0.0, 1.0] * 20)
    once = metrics.clustered_interval(rates, 4000)
    twenty = metrics.clustered_interval(metrics.pass_rate(attempts_with([0, 20] * 20, 20)), 4000)
    assert (once.low, once.high) == (twenty.low, twenty.high)
    width = once.high - once.low
    assert width == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(40), rel=0.1)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    hits = 0
    for trial in range(200):
        rates = rng.beta(2, 2, size=60)
        interval = metrics.clustered_interval(rates, 400, seed=trial)
        hits += interval.low <= 0.5 <= interval.high
    assert 180 <= hits <= 200


def test_parts_by_label_add_up():
    labels = tuple(TaskLabels(domain=d) for d in ("a", "b", "a"))
    passed = np.array([[True, True], [False, True], [False, False]])
    several = Attempts(("x", "y", "z"), passed, labels)
    parts = metrics.summarize_by(several, lambda label: label.domain)
    assert {name: part.tasks for name, part in parts.items()} == {"a": 2, "b": 1}
    assert parts["a"].pass_at_1.value == parts["b"].pass_at_1.value == 0.5
    assert several.select(lambda label: label.domain == "c") is None
