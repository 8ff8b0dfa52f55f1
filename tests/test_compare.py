"""Paired comparison of two runs."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import permutation_test

from tbrl.errors import ConfigError
from tbrl.evaluation.compare import compare, sign_flip_p_value
from tbrl.evaluation.metrics import Attempts


def run_of(rates, n=10, names=None):
    names = names or tuple(f"t{i}" for i in range(len(rates)))
    return Attempts(names, np.array([[a < round(r * n) for a in range(n)] for r in rates]))


def test_p_value_equals_the_enumeration_of_all_signs():
    differences = np.array([0.3, -0.1, 0.2, 0.0, 0.5])
    means = [np.dot(signs, differences) for signs in product([1, -1], repeat=5)]
    expected = np.mean([abs(m) >= abs(differences.sum()) - 1e-12 for m in means])
    assert sign_flip_p_value(differences) == pytest.approx(expected)


def test_p_value_agrees_with_scipy_for_many_tasks():
    rng = np.random.default_rng(0)
    differences = rng.integers(-4, 6, size=120) / 20
    reference = permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=20_000, rng=1
    )
    assert sign_flip_p_value(differences) == pytest.approx(reference.pvalue, abs=0.01)


def test_equal_runs_differ_by_nothing():
    run = run_of([0.2, 0.5, 1.0])
    result = compare(run, run)
    assert (result.difference.value, result.p_value, result.gained, result.lost) == (0, 1, (), ())


def test_pairing_finds_a_small_gain_that_unpaired_intervals_would_hide():
    before = np.tile([0.0, 0.3, 0.6, 0.8], 25)
    result = compare(run_of(before), run_of(before + 0.1))
    assert result.difference.low > 0 and result.p_value < 0.001
    assert (result.improved, result.worsened) == (100, 0)


def test_gained_and_lost_name_the_tasks_whatever_the_order_of_rows():
    before = run_of([1.0, 0.5, 0.2], names=("a", "b", "c"))
    after = run_of([0.9, 1.0, 0.2], names=("a", "b", "c"))
    swapped = Attempts(("c", "b", "a"), after.passed[::-1])
    for other in (after, swapped):
        result = compare(before, other)
        assert (result.gained, result.lost) == (("b",), ("a",))
        assert (result.improved, result.worsened) == (1, 1)
        assert result.difference.value == pytest.approx((-0.1 + 0.5) / 3)


def test_other_tasks_are_refused():
    with pytest.raises(ConfigError, match=r"1 tasks only before and 1 only after \(e.g. b\)"):
        compare(run_of([1, 1], names=("a", "b")), run_of([1, 1], names=("a", "c")))
