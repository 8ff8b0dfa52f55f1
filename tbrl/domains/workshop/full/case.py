"""A workshop customer's case: several vehicles, several jobs, one of them meant."""

from __future__ import annotations

import random
from typing import Any

from tbrl.domains.base import Names
from tbrl.domains.casework import CaseFile, Plan, days_from_today
from tbrl.domains.drafting import call
from tbrl.domains.workshop.full.seed import DAYS, free_hours
from tbrl.types import JsonObject

MODELS = (
    ("Tarn Corva", "petrol"),
    ("Tarn Cargo", "diesel"),
    ("Ilmo Nova", "electric"),
    ("Ilmo Sprint", "electric"),
    ("Brava Seven", "hybrid"),
    ("Brava City", "petrol"),
    ("Orlan Tour", "diesel"),
    ("Orlan Mini", "petrol"),
)
WORKS = {
    "brakes": "BD-4",
    "water pump": "WP-7",
    "timing belt": "TB-3",
    "rear shock absorbers": "SA-9",
    "charging port": "HV-5",
}
"""{work: its part}; the last is for electric vehicles."""


class JobFile(CaseFile):
    """Adds vehicles with a plate and jobs. The first vehicle is the one that is meant."""

    domain = "workshop"

    def __init__(self, rng: random.Random, task_ref: str, names: Names) -> None:
        super().__init__(rng, task_ref, names)
        self.tier = rng.choice(["standard", "standard", "plus", "plus", "fleet"])
        self.customer["tier"] = self.tier
        self._slots = {(d, b): free_hours(d, b) for d in DAYS for b in ("general", "high_voltage")}
        models = rng.sample(MODELS, rng.randint(2, 4))
        self.vehicles = [self._vehicle(self.customer_id, *model) for model in models]
        self.vehicle = self.vehicles[0]
        self.model = models[0][0]
        self.electric = models[0][1] == "electric"
        self.bay = "high_voltage" if self.electric else "general"
        asked_by = ["which vehicle", "which car", "plate", "registration"]
        says = f"It is the {self.model}, plate {{value}}."
        self.fact("vehicle", self.vehicle["plate"], asked_by, says)
        if self.namesake:
            other = next(c["id"] for c in self.rows["customers"] if c["id"] != self.customer_id)
            self._vehicle(int(other), *models[0])

    def job(self, vehicle: JsonObject, **columns: Any) -> JsonObject:
        """A job on one of the vehicles; give at least status and day."""
        electric = vehicle["fuel"] == "electric"
        row = {
            "id": self.new_id(),
            "vehicle_id": vehicle["id"],
            "kind": "repair",
            "bay": "high_voltage" if electric else "general",
            "hours": self.rng.choice([1.5, 2.0, 3.0]),
            "estimate": float(self.rng.randrange(120, 640, 5)),
            **columns,
        }
        return self.add("jobs", row)

    def works(self, vehicle: JsonObject) -> list[str]:
        """Repairs that this vehicle can have."""
        return list(WORKS) if vehicle["fuel"] == "electric" else list(WORKS)[:-1]

    def next_job_id(self) -> int:
        """The id that the next booking gets."""
        return max((int(row["id"]) for row in self.rows.get("jobs", [])), default=0) + 1

    def day(self, low: int, high: int) -> str:
        """A day on which the workshop works, the low-th to high-th from today."""
        return self.rng.choice(DAYS[low : high + 1])

    def free(self, day: str, bay: str) -> float:
        return self._slots[day, bay]

    def set_free(self, day: str, bay: str, hours: float) -> None:
        """Overrides the seed's free hours of one day."""
        self._slots[day, bay] = hours
        self.add("slots", {"day": day, "bay": bay, "free_hours": hours})

    def first_day(self, bay: str, from_day: str, hours: float) -> str:
        """First day with room."""
        return next(d for d in DAYS if d >= from_day and self.free(d, bay) >= hours)

    def booked(self, notice: int) -> JsonObject:
        """The meant job, so many days from today, and booked jobs on the other vehicles."""
        deposit = float(self.rng.randrange(50, 150, 10))
        work = self.rng.choice(self.works(self.vehicle))
        job = self.job(
            self.vehicle, work=work, status="booked", day=days_from_today(notice), deposit=deposit
        )
        for vehicle in self.vehicles[1:]:
            other = self.rng.choice(self.works(vehicle))
            self.job(vehicle, work=other, status="booked", day=self.day(0, 12), deposit=80.0)
        return job

    def book(
        self,
        kind: str,
        hours: float,
        estimate: float,
        from_day: str,
        bay: str = "",
        **more: int,
    ) -> Plan:
        """Find the first day with room and book it."""
        bay = bay or self.bay
        yield call("find_slots", bay=bay, from_day=from_day, hours=hours)
        yield call(
            "book_job",
            vehicle_id=self.vehicle["id"],
            kind=kind,
            day=self.first_day(bay, from_day, hours),
            bay=bay,
            hours=hours,
            estimate=estimate,
            **more,
        )

    def read(self, job: JsonObject | None = None) -> Plan:
        """Look at the customer, then at the job."""
        yield call("get_customer", customer_id=self.customer_id)
        if job is not None:
            yield call("get_job", job_id=job["id"])

    def _vehicle(self, owner: int, model: str, fuel: str) -> JsonObject:
        number = self.new_id()
        return self.add(
            "vehicles",
            {
                "id": number,
                "customer_id": owner,
                "plate": f"{self.rng.choice('BHKLMR')}{self.rng.choice('ADEKT')} {number}",
                "model": model,
                "year": self.rng.randint(2011, 2024),
                "fuel": fuel,
            },
        )
