"""Cost of campaigns and of dependable tasks."""

import pytest

from tbrl.errors import ConfigError
from tbrl.evaluation.cost import campaign_cost, tokens_cost

PRICES = {"agent": {"input": 2.0, "cached": 0.2, "output": 10.0}, "user": {"input": 1.0}}


def test_cached_input_is_priced_apart_and_only_once():
    tokens = {"agent": {"input": 1_000_000, "cached": 400_000, "output": 100_000}}
    assert tokens_cost(tokens, PRICES) == {"agent": pytest.approx(1.2 + 0.08 + 1.0)}


def test_without_a_cached_price_cached_input_costs_as_input():
    tokens = {"user": {"input": 1_000_000, "cached": 500_000, "output": 0}}
    assert tokens_cost(tokens, PRICES) == {"user": pytest.approx(1.0)}


@pytest.mark.parametrize(("dependable", "price"), [(68, 82), (107, 102), (38, 241)])
def test_price_of_a_dependable_task_is_the_whole_campaign_over_tasks_that_always_pass(
    dependable, price
):
    """507 x 20 attempts; the campaign is paid for whether or not a task is dependable."""
    total = dependable * price
    tokens = {"agent": {"input": total * 250_000, "cached": 0, "output": total * 50_000}}
    cost = campaign_cost(tokens, PRICES, successes=5000, dependable=dependable)
    assert cost.campaign == pytest.approx(total)
    assert cost.per_dependable_task == pytest.approx(price)
    assert cost.per_success == pytest.approx(total / 5000)


def test_nothing_dependable_has_no_price_rather_than_a_zero():
    cost = campaign_cost({"agent": {"input": 10}}, PRICES, successes=0, dependable=0)
    assert cost.per_success is None and cost.per_dependable_task is None


@pytest.mark.parametrize(
    ("tokens", "prices", "message"),
    [
        ({"judge": {"input": 5}}, PRICES, "no price for role 'judge'"),
        ({}, {"agnet": {}}, "unknown role 'agnet'"),
        ({}, {"agent": {"inputs": 1.0}}, "unknown kind 'inputs'"),
        ({}, {"agent": {"input": -1.0}}, "negative"),
    ],
)
def test_bad_prices_are_named(tokens, prices, message):
    with pytest.raises(ConfigError, match=message):
        tokens_cost(tokens, prices)
