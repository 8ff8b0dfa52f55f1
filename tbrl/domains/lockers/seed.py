"""Rows of the shared world: earlier customers, their lockers and parcels."""

from __future__ import annotations

from tbrl.types import JsonObject

SITES = ("station", "market", "campus", "harbour")

SEED: dict[str, list[JsonObject]] = {
    "customers": [
        {"id": 1, "name": "Corner Books", "pin": 111},
        {"id": 2, "name": "Valley Clinic", "pin": 222},
    ],
    "lockers": [{"id": number, "site": site} for number, site in enumerate(SITES, start=21)],
    "parcels": [
        {"id": "P11", "customer_id": 1, "locker_id": 21},
        {"id": "P12", "customer_id": 2, "locker_id": 22, "paid": 0},
    ],
}
