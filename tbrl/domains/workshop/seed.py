"""Rows of the shared world: the parts shelf, and earlier customers with jobs of their own."""

from __future__ import annotations

from tbrl.types import JsonObject

PARTS = ("battery", "filter", "lamp", "mirror", "tyre", "clutch", "belt", "sensor")

SEED: dict[str, list[JsonObject]] = {
    "customers": [
        {"id": 1, "name": "Northside Taxis", "pin": 111},
        {"id": 2, "name": "Old Mill Bakery", "pin": 222},
    ],
    "cars": [
        {"id": 1, "customer_id": 1, "fuel": "electric", "warranty": 1},
        {"id": 2, "customer_id": 2},
    ],
    "parts": [{"name": name, "stock": 3} for name in PARTS],
    "jobs": [
        {"id": "J11", "car_id": 1},
        {"id": "J12", "car_id": 2, "paid": 1, "dirty": 1},
    ],
}
