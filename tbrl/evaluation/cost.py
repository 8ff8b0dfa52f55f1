"""What a campaign costs, and what a dependable task costs.

Prices are per million tokens by model role (agent, user, judge): `input`, `cached` (input read
from a prefix cache), `output`, in one currency. The price of a dependable task is the cost of the
whole campaign divided by the number of tasks that passed every attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tbrl.errors import ConfigError

ROLES = ("agent", "user", "judge")
KINDS = ("input", "cached", "output")

Tokens = Mapping[str, Mapping[str, int]]
"""{role: {input, cached, output}}; `cached` is the part of `input` that was cached."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one campaign, in the currency of the prices."""

    campaign: float
    by_role: dict[str, float]
    per_success: float | None
    """None: nothing succeeded."""
    per_dependable_task: float | None
    """None: no task passed every attempt."""


def check_prices(prices: Mapping[str, Mapping[str, float]]) -> None:
    """ConfigError for an unknown role or kind, or a negative price."""
    for role, kinds in prices.items():
        if role not in ROLES:
            raise ConfigError(
                f"evaluation.prices: unknown role {role!r}; one of {', '.join(ROLES)}"
            )
        for kind, price in kinds.items():
            if kind not in KINDS:
                raise ConfigError(
                    f"evaluation.prices.{role}: unknown kind {kind!r}; one of {', '.join(KINDS)}"
                )
            if price < 0:
                raise ConfigError(f"evaluation.prices.{role}.{kind}: {price} is negative")


def tokens_cost(tokens: Tokens, prices: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Cost by role. A role that used tokens must have a price: free models say so with 0."""
    check_prices(prices)
    costs: dict[str, float] = {}
    for role, used in tokens.items():
        if not any(used.values()):
            continue
        if role not in prices:
            raise ConfigError(
                f"evaluation.prices: no price for role {role!r}, which used tokens; 0 if it is free"
            )
        price = prices[role]
        cached = used.get("cached", 0)
        costs[role] = (
            (used.get("input", 0) - cached) * price.get("input", 0.0)
            + cached * price.get("cached", price.get("input", 0.0))
            + used.get("output", 0) * price.get("output", 0.0)
        ) / 1e6
    return costs


def campaign_cost(
    tokens: Tokens, prices: Mapping[str, Mapping[str, float]], successes: int, dependable: int
) -> Cost:
    """Cost of a campaign with these totals. `dependable`: tasks that passed every attempt."""
    by_role = tokens_cost(tokens, prices)
    total = sum(by_role.values())
    return Cost(
        campaign=total,
        by_role=by_role,
        per_success=total / successes if successes else None,
        per_dependable_task=total / dependable if dependable else None,
    )
