import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbrl.learner.advantages import group_advantages


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((1, None, 0, 0), (2 / 3, None, -1 / 3, -1 / 3)),
        ((1, 1, 0, 0), (0.5, 0.5, -0.5, -0.5)),
        ((None, 1, 0), (None, 0.5, -0.5)),
        ((1, 1, None), (0.0, 0.0, None)),
        ((None, 1), (None, 0.0)),
        ((None, None), (None, None)),
        ((), ()),
    ],
)
def test_mean_is_over_scored_members_only(rewards, expected):
    values = group_advantages(rewards).values
    assert [v is None for v in values] == [e is None for e in expected]
    assert [v for v in values if v is not None] == pytest.approx(
        [e for e in expected if e is not None], abs=1e-15
    )


rewards_strategy = st.lists(st.sampled_from([0.0, 1.0, None]), max_size=10)


@given(rewards_strategy, st.booleans())
def test_failed_members_do_not_change_the_others(rewards, divide):
    present = [r for r in rewards if r is not None]
    with_failures = group_advantages(rewards, divide)
    without = group_advantages(present, divide)
    assert [v for v in with_failures.values if v is not None] == list(without.values)
    assert (with_failures.mean, with_failures.std) == (without.mean, without.std)


@given(st.lists(st.sampled_from([0.0, 1.0, 0.1]), min_size=1, max_size=12))
def test_no_variance_means_exact_zeros_and_no_signal(rewards):
    result = group_advantages(rewards, divide_by_std=True)
    assert result.has_signal == (len(set(rewards)) > 1)
    if not result.has_signal:
        assert result.values == (0.0,) * len(rewards)


def test_std_is_the_sample_deviation():
    result = group_advantages([1, 0, 0, 0], divide_by_std=True)
    std = math.sqrt((0.75**2 + 3 * 0.25**2) / 3)
    assert result.std == pytest.approx(std, abs=1e-15)
    assert result.values == pytest.approx([0.75 / std] + [-0.25 / std] * 3, abs=1e-15)
