"""Rows of the shared world: the catalogue, and earlier customers with rentals of their own."""

from __future__ import annotations

from tbrl.types import JsonObject

ITEMS = ("drill", "saw", "mower", "ladder", "pump", "mixer", "sander", "heater")

SEED: dict[str, list[JsonObject]] = {
    "customers": [
        {"id": 1, "name": "Greenfield School", "tier": "gold", "pin": 111},
        {"id": 2, "name": "Harbour Boats", "tier": "basic", "pin": 222},
    ],
    "items": [{"name": name, "stock": 3} for name in ITEMS],
    "rentals": [
        {"id": "R11", "customer_id": 1, "item": "mower", "deposit": "none"},
        {"id": "R12", "customer_id": 2, "item": "pump", "deposit": "held"},
    ],
}
