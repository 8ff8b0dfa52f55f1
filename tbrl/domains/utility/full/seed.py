"""Rows of the full-size world: tariffs, four weeks of visits, help articles, an earlier business
customer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tbrl.domains.casework import TODAY
from tbrl.domains.desk import read_articles
from tbrl.types import JsonObject

TARIFFS: dict[str, tuple[str, float, float, int]] = {
    "W-OPEN": ("water", 2.4, 0.0, 0),
    "W-FIX": ("water", 2.15, 35.0, 0),
    "E-OPEN": ("electricity", 0.34, 0.0, 0),
    "E-FIX": ("electricity", 0.29, 60.0, 0),
    "E-GREEN": ("electricity", 0.31, 45.0, 0),
    "E-NIGHT": ("electricity", 0.25, 50.0, 1),
    "G-OPEN": ("gas", 0.12, 0.0, 0),
    "G-FIX": ("gas", 0.1, 55.0, 0),
    "G-FLEX": ("gas", 0.09, 20.0, 1),
}
"""{code: (supply, unit price, exit fee, smart meters only)}."""

WORKS = ("meter_swap", "meter_test", "leak_check")
DAYS = tuple(
    day.isoformat()
    for day in (TODAY + timedelta(days=n) for n in range(1, 29))
    if day.weekday() < 5
)


def free_visits(day: str, work: str) -> int:
    """Of the seed rows: uneven, but the same everywhere."""
    return (DAYS.index(day) * 3 + len(work)) % 4


SEED: dict[str, list[JsonObject]] = {
    "tariffs": [
        {"code": code, "supply": supply, "unit_price": price, "exit_fee": fee, "smart_only": smart}
        for code, (supply, price, fee, smart) in TARIFFS.items()
    ],
    "customers": [
        {
            "id": 1001,
            "name": "Harbour Laundry",
            "phone": "020 1001 77",
            "birth_date": "1988-09-01",
            "postcode": "B1 100",
            "kind": "business",
        }
    ],
    "supplies": [
        {
            "id": 1002,
            "customer_id": 1001,
            "kind": "water",
            "address": "2 Quay Street",
            "tariff": "W-OPEN",
            "meter": "manual",
            "meter_year": 2014,
        }
    ],
    "visit_days": [
        {"day": day, "work": work, "free": free_visits(day, work)} for day in DAYS for work in WORKS
    ],
    "articles": read_articles((Path(__file__).parent / "articles.md").read_text()),
}
