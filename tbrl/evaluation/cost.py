"""What a campaign costs, and what a dependable task costs.

    campaign = scored attempts + failed tries          (both are paid for, only the first are rated)
    cost     = (input - cached) x input price + cached x cached price + output x output price
    per attempt, task, success, dependable task = campaign / how many of them

All of it by the role of the model: agent, user, judge. Where requests of a role used an unknown
number of tokens, its amounts are a lower bound and say so. Input of which an endpoint did not say
what was cached is priced as not cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tbrl.config import PriceConfig, PricesConfig
from tbrl.errors import ConfigError
from tbrl.usage import ROLES, Role, RoleUsage, Usage


@dataclass(frozen=True, slots=True)
class Amount:
    """Money, in the currency of the prices."""

    known: float = 0.0
    unknown: int = 0
    """Requests that are not in it, since nobody knows what they used."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.known + other.known, self.unknown + other.unknown)

    def per(self, count: int) -> Amount | None:
        """None: there is nothing to divide by, and no price rather than a zero."""
        return Amount(self.known / count, self.unknown) if count else None


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one campaign. Each number is of one role, or of all roles together."""

    scored: Mapping[Role, Amount]
    failed: Mapping[Role, Amount]
    """Of tries that failed and were run again, or given up."""
    attempts: int
    tasks: int
    successes: int
    dependable: int
    """Tasks that passed every attempt."""

    def campaign(self, role: Role | None = None) -> Amount:
        return _of(self.scored, role) + _of(self.failed, role)

    def failed_tries(self, role: Role | None = None) -> Amount:
        """The part of the campaign that brought no score."""
        return _of(self.failed, role)

    def per_attempt(self, role: Role | None = None) -> Amount | None:
        return self.campaign(role).per(self.attempts)

    def per_task(self, role: Role | None = None) -> Amount | None:
        return self.campaign(role).per(self.tasks)

    def per_success(self, role: Role | None = None) -> Amount | None:
        return self.campaign(role).per(self.successes)

    def per_dependable_task(self, role: Role | None = None) -> Amount | None:
        return self.campaign(role).per(self.dependable)


def _of(amounts: Mapping[Role, Amount], role: Role | None) -> Amount:
    return sum(amounts.values(), Amount()) if role is None else amounts[role]


def price_of(prices: PricesConfig, role: Role) -> PriceConfig:
    return getattr(prices, role)


def has_prices(prices: PricesConfig) -> bool:
    return any(price_of(prices, role).input is not None for role in ROLES)


def amounts(used: RoleUsage, prices: PricesConfig) -> dict[Role, Amount]:
    """Cost by role. ConfigError where a role was asked and has no price."""
    return {role: _amount(used.of(role), role, price_of(prices, role)) for role in ROLES}


def _amount(used: Usage, role: Role, price: PriceConfig) -> Amount:
    if not used.requests:
        return Amount()
    if price.input is None or price.output is None:
        raise ConfigError(
            f"evaluation.prices.{role}.input={price.input}: the {role} made {used.requests} "
            "requests; give its input and output price, 0 if it is free"
        )
    cached = price.input if price.cached is None else price.cached
    plain = used.input - used.cached
    money = (plain * price.input + used.cached * cached + used.output * price.output) / 1e6
    return Amount(money, used.unknown)


def campaign_cost(
    scored: RoleUsage,
    failed: RoleUsage,
    prices: PricesConfig,
    *,
    attempts: int,
    tasks: int,
    successes: int,
    dependable: int,
) -> Cost:
    """Cost of a campaign with these totals; ConfigError as `amounts`."""
    by_role = amounts(scored, prices), amounts(failed, prices)
    return Cost(*by_role, attempts, tasks, successes, dependable)
