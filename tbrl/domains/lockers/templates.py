"""Task templates of the parcel lockers (compact size)."""

from __future__ import annotations

import random
from typing import Any

from tbrl.domains.base import DemoTurn, Drafted, Names, Template
from tbrl.domains.drafting import ALL_DONE, ASK_PIN, TICKET_OPEN, Case, Plan, call, say, verdict
from tbrl.domains.lockers.seed import SITES
from tbrl.types import JsonObject

STORAGE_FEE = 5
RETURN_FEE = 8
CLAIM_FEE = 3


class ParcelCase(Case):
    """One parcel in one locker."""

    domain = "lockers"
    letter = "P"

    def __init__(self, rng: random.Random, task_ref: str, names: Names) -> None:
        super().__init__(rng, task_ref, names)
        self.site = rng.choice(SITES)
        self.power = self.even()
        self.jammed = self.even()
        self.stored = rng.choice([rng.randint(1, 5), rng.randint(6, 9)])
        self.paid = self.even()
        self.fragile = self.even()
        self.insured = self.even()

    def patch(self) -> dict[str, list[JsonObject]]:
        customer = {"id": self.number, "name": self.name, "pin": self.pin}
        locker = {
            "id": self.number,
            "site": self.site,
            "power": int(self.power),
            "jammed": int(self.jammed),
        }
        parcel = {
            "id": self.id,
            "customer_id": self.number,
            "locker_id": self.number,
            "stored": self.stored,
            "paid": int(self.paid),
            "fragile": int(self.fragile),
            "insured": int(self.insured),
        }
        return {"customers": [customer], "lockers": [locker], "parcels": [parcel]}

    def ticket(self, kind: str, high: bool, **more: Any) -> DemoTurn:
        priority = "high" if high else "low"
        return call("open_ticket", parcel_id=self.id, type=kind, priority=priority, **more)


def keep_parcel(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Stored for long: a fee first. Unpaid: a payment ticket instead."""
    case = ParcelCase(rng, task_ref, names)
    return _keep("keep_parcel", case, days=rng.randint(1, 7))


def long_keep(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Over seven days: approval is needed, so a ticket and nothing else."""
    case = ParcelCase(rng, task_ref, names)
    return _keep("long_keep", case, days=rng.randint(8, 9))


def _keep(template: str, case: ParcelCase, days: int) -> Drafted:
    def plan(long: bool, old: bool, paid: bool) -> Plan:
        yield verdict("days", days, long)
        if long:
            yield case.ticket("approval", False)
            yield say(TICKET_OPEN)
            return
        yield call("get_parcel", parcel_id=case.id)
        yield verdict("stored", case.stored, old)
        if old:
            yield call("charge_fee", parcel_id=case.id, amount=STORAGE_FEE)
        yield verdict("paid", case.paid, paid)
        if not paid:
            yield case.ticket("payment", False)
            yield say(TICKET_OPEN)
        else:
            yield call("keep_parcel", parcel_id=case.id, days=days)
            yield say(ALL_DONE)

    query = case.ask(
        "Keep parcel {id} for {days} days more.",
        "I come for parcel {id} in {days} days. Please keep it.",
        days=days,
    )
    truth = {"long": days > 7, "old": case.stored > 5, "paid": case.paid}
    return case.draft(template, query, plan, truth)


def return_parcel(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Unpaid: a fee first. Fragile: wrap it."""
    case = ParcelCase(rng, task_ref, names)

    def plan(paid: bool, wrap: bool) -> Plan:
        yield call("get_parcel", parcel_id=case.id)
        yield verdict("paid", case.paid, paid)
        if not paid:
            yield call("charge_fee", parcel_id=case.id, amount=RETURN_FEE)
        yield verdict("fragile", case.fragile, wrap)
        yield call("return_parcel", parcel_id=case.id, wrap=wrap)
        yield say(ALL_DONE)

    query = case.ask(
        "Send parcel {id} back.", "Return parcel {id} please.", "Parcel {id} goes back to the shop."
    )
    return case.draft("return_parcel", query, plan, {"paid": case.paid, "wrap": case.fragile})


def move_parcel(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """A locker without power cannot open: a repair ticket. Otherwise a size that fits."""
    case = ParcelCase(rng, task_ref, names)
    shape = rng.choice(["big", "thin"])

    def plan(power: bool, big: bool) -> Plan:
        yield call("get_locker", parcel_id=case.id)
        yield verdict("power", case.power, power)
        if not power:
            yield case.ticket("repair", False)
            yield say(TICKET_OPEN)
            return
        yield verdict("shape", shape, big)
        yield call("move_parcel", parcel_id=case.id, size="large" if big else "small")
        yield say(ALL_DONE)

    query = case.ask(
        "Move parcel {id}. Shape: {shape}.",
        "Parcel {id}, {shape}. Put it in another locker.",
        shape=shape,
    )
    case.jammed = False
    return case.draft("move_parcel", query, plan, {"power": case.power, "big": shape == "big"})


def door(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Jammed: a repair ticket, high for food. Otherwise reset the locker."""
    case = ParcelCase(rng, task_ref, names)
    case.jammed = rng.random() < 0.7
    inside = rng.choice(["food", "shoes"])

    def plan(jammed: bool, food: bool) -> Plan:
        yield call("get_locker", parcel_id=case.id)
        yield verdict("jammed", case.jammed, jammed)
        if not jammed:
            yield call("reset_locker", parcel_id=case.id)
            yield say(ALL_DONE)
            return
        yield verdict("inside", inside, food)
        yield case.ticket("repair", food)
        yield say(TICKET_OPEN)

    query = case.ask(
        "The door of parcel {id} stays shut. Inside: {inside}.",
        "Parcel {id}, {inside}: the door does not open.",
        inside=inside,
    )
    return case.draft("door", query, plan, {"jammed": case.jammed, "food": inside == "food"})


def claim(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Not insured: a fee first. Then a claim ticket, high for fragile parcels."""
    case = ParcelCase(rng, task_ref, names)

    def plan(insured: bool, fragile: bool) -> Plan:
        yield call("get_parcel", parcel_id=case.id)
        yield verdict("insured", case.insured, insured)
        if not insured:
            yield call("charge_fee", parcel_id=case.id, amount=CLAIM_FEE)
        yield verdict("fragile", case.fragile, fragile)
        yield case.ticket("claim", fragile, tags=["damage"])
        yield say(TICKET_OPEN)

    query = case.ask(
        "Parcel {id} came crushed.", "Parcel {id} is damaged.", "I found parcel {id} broken."
    )
    truth = {"insured": case.insured, "fragile": case.fragile}
    return case.draft("claim", query, plan, truth)


def lost_code(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The PIN matches: a new code, by mail where the phone is gone."""
    case = ParcelCase(rng, task_ref, names)
    return _code("lost_code", case, pin=case.pin)


def wrong_pin(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The PIN does not match: an identity ticket and nothing else."""
    case = ParcelCase(rng, task_ref, names)
    return _code("wrong_pin", case, pin=case.other_pin())


def _code(template: str, case: ParcelCase, pin: int) -> Drafted:
    matches = pin == case.pin
    phone = case.rng.choice(["lost", "here"])

    def plan(match: bool, mail: bool) -> Plan:
        yield say(ASK_PIN)
        yield call("check_pin", parcel_id=case.id, pin=pin)
        yield verdict("match", matches, match)
        if not match:
            yield case.ticket("identity", True)
            yield say(TICKET_OPEN)
            return
        yield verdict("phone", phone, mail)
        yield call("send_code", parcel_id=case.id, channel="mail" if mail else "sms")
        yield say(ALL_DONE)

    query = case.ask(
        "I need the code of parcel {id}. Phone: {phone}.",
        "My phone: {phone}. Send the code of parcel {id}.",
        phone=phone,
    )
    return case.draft(template, query, plan, {"match": matches, "mail": phone == "lost"}, pin=pin)


TEMPLATES = (
    Template("keep_parcel", keep_parcel),
    Template("return_parcel", return_parcel),
    Template("move_parcel", move_parcel),
    Template("door", door),
    Template("claim", claim),
    Template("lost_code", lost_code),
    Template("long_keep", long_keep, ordinary=False),
    Template("wrong_pin", wrong_pin, ordinary=False),
)
