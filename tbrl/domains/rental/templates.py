"""Task templates of the rental desk (compact size)."""

from __future__ import annotations

import random
from typing import Any

from tbrl.domains.base import DemoTurn, Drafted, Names, Template
from tbrl.domains.drafting import ALL_DONE, ASK_PIN, TICKET_OPEN, Case, Plan, call, say, verdict
from tbrl.domains.rental.seed import ITEMS
from tbrl.types import JsonObject

LATE_FEE = 20
DAMAGE_FEE = 50


class RentalCase(Case):
    """One rental of one customer."""

    domain = "rental"
    letter = "R"

    def __init__(self, rng: random.Random, task_ref: str, names: Names) -> None:
        super().__init__(rng, task_ref, names)
        self.item = rng.choice(ITEMS)
        self.late = rng.choice([0, rng.randint(1, 9)])
        self.deposit = rng.choice(["held", "none"])
        self.insured = self.even()
        self.tier = rng.choice(["gold", "basic"])
        self.stock = rng.choice([0, rng.randint(1, 9)])
        self.fragile = self.even()
        self.reserved = self.even()

    def patch(self) -> dict[str, list[JsonObject]]:
        customer = {"id": self.number, "name": self.name, "tier": self.tier, "pin": self.pin}
        item = {
            "name": self.item,
            "stock": self.stock,
            "fragile": int(self.fragile),
            "reserved": int(self.reserved),
        }
        rental = {
            "id": self.id,
            "customer_id": self.number,
            "item": self.item,
            "late": self.late,
            "deposit": self.deposit,
            "insured": int(self.insured),
        }
        return {"customers": [customer], "items": [item], "rentals": [rental]}

    def ticket(self, kind: str, high: bool, **more: Any) -> DemoTurn:
        priority = "high" if high else "low"
        return call("open_ticket", rental_id=self.id, type=kind, priority=priority, **more)


def return_item(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Late: a fee. Deposit held: refund it."""
    case = RentalCase(rng, task_ref, names)

    def plan(late: bool, held: bool) -> Plan:
        yield call("get_rental", rental_id=case.id)
        yield verdict("late", case.late, late)
        if late:
            yield call("charge_fee", rental_id=case.id, amount=LATE_FEE)
        yield verdict("deposit", case.deposit, held)
        yield call("return_item", rental_id=case.id, refund=held)
        yield say(ALL_DONE)

    query = case.ask("I return rental {id}.", "Rental {id} is back.", "Please close rental {id}.")
    truth = {"late": case.late > 0, "held": case.deposit == "held"}
    return case.draft("return_item", query, plan, truth)


def report_damage(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Not insured: a fee. Then a repair ticket, as urgent as the user's words."""
    case = RentalCase(rng, task_ref, names)
    need = rng.choice(["today", "later"])

    def plan(insured: bool, urgent: bool) -> Plan:
        yield call("get_rental", rental_id=case.id)
        yield verdict("insured", case.insured, insured)
        if not insured:
            yield call("charge_fee", rental_id=case.id, amount=DAMAGE_FEE)
        yield verdict("need", need, urgent)
        yield case.ticket("repair", urgent, tags=["damage"])
        yield say(TICKET_OPEN)

    query = case.ask(
        "Rental {id} broke. Needed: {need}.",
        "I broke rental {id}. Fix it, {need}.",
        "Rental {id} is damaged. I come: {need}.",
        need=need,
    )
    truth = {"insured": case.insured, "urgent": need == "today"}
    return case.draft("report_damage", query, plan, truth)


def extend(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Late: a fee first. Reserved by others: a stock ticket instead."""
    case = RentalCase(rng, task_ref, names)
    return _extend("extend", case, days=rng.randint(1, 7))


def long_extension(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Over seven days: approval is needed, so a ticket and nothing else."""
    case = RentalCase(rng, task_ref, names)
    return _extend("long_extension", case, days=rng.randint(8, 9))


def _extend(template: str, case: RentalCase, days: int) -> Drafted:
    def plan(long: bool, late: bool, reserved: bool) -> Plan:
        yield verdict("days", days, long)
        if long:
            yield case.ticket("approval", False)
            yield say(TICKET_OPEN)
            return
        yield call("get_rental", rental_id=case.id)
        yield verdict("late", case.late, late)
        if late:
            yield call("charge_fee", rental_id=case.id, amount=LATE_FEE)
        yield call("get_item", item=case.item)
        yield verdict("reserved", case.reserved, reserved)
        if reserved:
            yield case.ticket("stock", False)
            yield say(TICKET_OPEN)
        else:
            yield call("extend_rental", rental_id=case.id, days=days)
            yield say(ALL_DONE)

    query = case.ask(
        "I keep rental {id}, {item}, for {days} days more.",
        "Extend rental {id}, {item}, by {days} days.",
        item=case.item,
        days=days,
    )
    truth = {"long": days > 7, "late": case.late > 0, "reserved": case.reserved}
    return case.draft(template, query, plan, truth)


def waive_fee(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Over three days late: a fee ticket, high. Not gold: a fee ticket. Otherwise waive."""
    case = RentalCase(rng, task_ref, names)
    case.late = rng.choice([rng.randint(1, 3), rng.randint(1, 3), rng.randint(4, 9)])

    def plan(short: bool, gold: bool) -> Plan:
        yield call("get_rental", rental_id=case.id)
        yield verdict("short", case.late, short)
        if short:
            yield verdict("tier", case.tier, gold)
        if short and gold:
            yield call("waive_fee", rental_id=case.id)
            yield say(ALL_DONE)
        else:
            yield case.ticket("fee", not short)
            yield say(TICKET_OPEN)

    query = case.ask(
        "Waive the fee of rental {id}.",
        "Why a fee for rental {id}? Drop it.",
        "Please cancel the fee of rental {id}.",
    )
    truth = {"short": case.late <= 3, "gold": case.tier == "gold"}
    return case.draft("waive_fee", query, plan, truth)


def swap_item(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """In stock: swap, express for gold. Otherwise a stock ticket, high for gold."""
    case = RentalCase(rng, task_ref, names)

    def plan(stock: bool, gold: bool) -> Plan:
        yield call("get_item", item=case.item)
        yield verdict("stock", case.stock, stock)
        yield call("get_rental", rental_id=case.id)
        yield verdict("tier", case.tier, gold)
        if stock:
            yield call("swap_item", rental_id=case.id, express=gold)
            yield say(ALL_DONE)
        else:
            yield case.ticket("stock", gold)
            yield say(TICKET_OPEN)

    query = case.ask(
        "Swap rental {id}, {item}.",
        "Rental {id}, {item}, fails. I want another.",
        item=case.item,
    )
    truth = {"stock": case.stock > 0, "gold": case.tier == "gold"}
    return case.draft("swap_item", query, plan, truth)


def send_item(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The PIN matches; a fragile item travels with care."""
    case = RentalCase(rng, task_ref, names)
    return _send("send_item", case, pin=case.pin)


def wrong_pin(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The PIN does not match: an identity ticket and nothing else."""
    case = RentalCase(rng, task_ref, names)
    return _send("wrong_pin", case, pin=case.other_pin())


def _send(template: str, case: RentalCase, pin: int) -> Drafted:
    matches = pin == case.pin

    def plan(match: bool, careful: bool) -> Plan:
        yield say(ASK_PIN)
        yield call("check_pin", rental_id=case.id, pin=pin)
        yield verdict("match", matches, match)
        if not match:
            yield case.ticket("identity", True)
            yield say(TICKET_OPEN)
            return
        yield call("get_item", item=case.item)
        yield verdict("fragile", case.fragile, careful)
        yield call("send_item", rental_id=case.id, careful=careful)
        yield say(ALL_DONE)

    query = case.ask("Send me rental {id}, {item}.", "Deliver rental {id}, {item}.", item=case.item)
    return case.draft(template, query, plan, {"match": matches, "careful": case.fragile}, pin=pin)


TEMPLATES = (
    Template("return_item", return_item),
    Template("report_damage", report_damage),
    Template("extend", extend),
    Template("waive_fee", waive_fee),
    Template("swap_item", swap_item),
    Template("send_item", send_item),
    Template("long_extension", long_extension, ordinary=False),
    Template("wrong_pin", wrong_pin, ordinary=False),
)
