"""Rows of the shared world: the doctors, and earlier patients with visits of their own."""

from __future__ import annotations

from tbrl.types import JsonObject

DOCTORS = ("Berg", "Lund", "Falk", "Holm")

SEED: dict[str, list[JsonObject]] = {
    "patients": [
        {"id": 1, "name": "Pat Winter", "pin": 111},
        {"id": 2, "name": "Sam Summer", "pin": 222, "plan": "private"},
    ],
    "doctors": [{"name": name} for name in DOCTORS],
    "visits": [
        {"id": "V11", "patient_id": 1, "doctor": "Berg", "hours": 9},
        {"id": "V12", "patient_id": 2, "doctor": "Holm", "hours": 6, "prepaid": 1},
    ],
}
