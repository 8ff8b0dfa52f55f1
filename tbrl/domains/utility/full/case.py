"""A supplier's customer: several supplies, two of one kind at different addresses, one meant."""

from __future__ import annotations

import random
from typing import Any

from tbrl.domains.base import DemoTurn, Names
from tbrl.domains.casework import CaseFile, Plan
from tbrl.domains.drafting import call
from tbrl.domains.utility.full.seed import DAYS, TARIFFS, free_visits
from tbrl.types import JsonObject

STREETS = ("Elm Road", "Mill Lane", "Station Street", "Quarry Hill", "Orchard Way", "Canal Street")
KINDS = ("water", "electricity", "gas")
TOMORROW = DAYS[0]


class SupplyFile(CaseFile):
    """Adds supplies. The first one is meant; the second is of the same kind, somewhere else."""

    domain = "utility"

    def __init__(self, rng: random.Random, task_ref: str, names: Names, kind: str = "") -> None:
        super().__init__(rng, task_ref, names)
        self.business = rng.random() < 0.25
        self.priority = not self.business and rng.random() < 0.35
        self.customer |= {
            "kind": "business" if self.business else "home",
            "priority": int(self.priority),
        }
        self.kind = kind or rng.choice(KINDS)
        kinds = [self.kind, self.kind, *rng.sample(KINDS, rng.randint(0, 2))]
        streets = rng.sample(STREETS, len(kinds))
        self.supplies = [
            self._supply(self.customer_id, kind, street)
            for kind, street in zip(kinds, streets, strict=True)
        ]
        self.supply = self.supplies[0]
        self.supply_id = int(self.supply["id"])
        self.address = str(self.supply["address"])
        asked_by = ["which address", "which supply", "what address", "address is it"]
        self.fact("address", self.address, asked_by, f"It is the {self.kind} at {{value}}.")
        if self.namesake:
            other = next(c["id"] for c in self.rows["customers"] if c["id"] != self.customer_id)
            self._supply(int(other), self.kind, streets[0])

    def bill(self, supply: JsonObject, **columns: Any) -> JsonObject:
        """An open bill of a supply; give at least reading and units."""
        units = int(columns["units"])
        price = TARIFFS[supply["tariff"]][1]
        row = {
            "id": self.new_id(),
            "supply_id": supply["id"],
            "day": "2026-02-16",
            "amount": round(units * price, 2),
            **columns,
        }
        return self.add("bills", row)

    def first_day(self, work: str, from_day: str = TOMORROW) -> str:
        """First day with a free visit."""
        return next(d for d in DAYS if d >= from_day and free_visits(d, work))

    def visit(self, work: str, from_day: str = TOMORROW) -> Plan:
        """Find the first free day and book it."""
        yield call("find_visit_days", work=work, from_day=from_day)
        day = self.first_day(work, from_day)
        yield call("book_visit", supply_id=self.supply_id, work=work, day=day)

    def read(self) -> Plan:
        """Look at the customer, then at the supply."""
        yield call("get_customer", customer_id=self.customer_id)
        yield call("get_supply", supply_id=self.supply_id)

    def hand_over(self, kind: str, tag: str, priority: str = "normal") -> DemoTurn:
        """A ticket about the supply."""
        return self.ticket(kind, priority, [tag], supply_id=self.supply_id)

    def entry(self, kind: str, amount: float) -> DemoTurn:
        return call("add_entry", supply_id=self.supply_id, kind=kind, amount=amount)

    def _supply(self, owner: int, kind: str, street: str) -> JsonObject:
        tariffs = [code for code, row in TARIFFS.items() if row[0] == kind and not row[3]]
        return self.add(
            "supplies",
            {
                "id": self.new_id(),
                "customer_id": owner,
                "kind": kind,
                "address": f"{self.rng.randint(1, 60)} {street}",
                "tariff": self.rng.choice(tariffs),
                "meter": self.rng.choice(["smart", "manual"]),
                "meter_year": self.rng.randint(2004, 2023),
            },
        )
