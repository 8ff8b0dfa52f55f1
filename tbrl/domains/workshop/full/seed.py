"""Rows of the full-size world: parts, loan cars, three weeks of bays, an earlier fleet customer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tbrl.domains.casework import TODAY
from tbrl.domains.desk import read_articles
from tbrl.types import JsonObject

PARTS: dict[str, tuple[str, float, int, int]] = {
    "OF-1": ("oil filter", 18.5, 9, 0),
    "BD-4": ("brake discs, front pair", 142.0, 3, 0),
    "BP-2": ("brake pads, front set", 64.0, 5, 0),
    "WP-7": ("water pump", 118.0, 2, 0),
    "TB-3": ("timing belt kit", 165.0, 2, 0),
    "SA-9": ("shock absorbers, rear pair", 210.0, 2, 0),
    "HV-5": ("charging port", 240.0, 1, 0),
    "GB-8": ("gearbox control unit", 480.0, 0, 1),
    "AX-6": ("drive shaft", 255.0, 0, 1),
    "AB-1": ("airbag module", 190.0, 4, 0),
    "FH-2": ("fuel hose set", 45.0, 4, 0),
    "BM-3": ("battery contactor", 130.0, 4, 0),
}
"""{code: (name, price, stock, special order)}."""

BAYS = ("general", "high_voltage")
DAYS = tuple(
    day.isoformat() for day in (TODAY + timedelta(days=n) for n in range(26)) if day.weekday() < 5
)


def free_hours(day: str, bay: str) -> float:
    """Of the seed rows: uneven, but the same everywhere."""
    number = DAYS.index(day)
    return float((number * 5 + (3 if bay == "general" else 1)) % 7)


SEED: dict[str, list[JsonObject]] = {
    "parts": [
        {"code": code, "name": name, "price": price, "stock": stock, "special_order": special}
        for code, (name, price, stock, special) in PARTS.items()
    ],
    "customers": [
        {
            "id": 1001,
            "name": "Harbour Couriers",
            "phone": "020 1001 55",
            "birth_date": "1999-04-01",
            "postcode": "B1 100",
            "tier": "fleet",
        }
    ],
    "vehicles": [
        {
            "id": 1002,
            "customer_id": 1001,
            "plate": "HC 100",
            "model": "Tarn Cargo",
            "year": 2021,
            "fuel": "diesel",
        }
    ],
    "slots": [
        {"day": day, "bay": bay, "free_hours": free_hours(day, bay)} for day in DAYS for bay in BAYS
    ],
    "loan_cars": [
        {"class": "small", "free": 3},
        {"class": "estate", "free": 2},
        {"class": "van", "free": 1},
    ],
    "articles": read_articles((Path(__file__).parent / "articles.md").read_text()),
}
