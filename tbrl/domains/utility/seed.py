"""Rows of the shared world: the plans, and earlier customers with accounts of their own."""

from __future__ import annotations

from tbrl.types import JsonObject

PLANS = ("basic", "green", "night", "flat")

SEED: dict[str, list[JsonObject]] = {
    "customers": [
        {"id": 1, "name": "Riverside Hotel", "pin": 111, "kind": "shop"},
        {"id": 2, "name": "Ida Lang", "pin": 222},
    ],
    "plans": [{"name": name, "price": 20 + 5 * number} for number, name in enumerate(PLANS)],
    "accounts": [
        {"id": "A11", "customer_id": 1, "plan": "flat", "debt": 60},
        {"id": "A12", "customer_id": 2, "plan": "basic", "deposit": "held"},
    ],
    "meters": [{"account_id": "A11", "cover": 1}, {"account_id": "A12"}],
}
