"""Task templates of the car workshop (compact size)."""

from __future__ import annotations

import random
from typing import Any

from tbrl.domains.base import DemoTurn, Drafted, Names, Template
from tbrl.domains.drafting import ALL_DONE, ASK_PIN, TICKET_OPEN, Case, Plan, call, say, verdict
from tbrl.domains.workshop.seed import PARTS
from tbrl.types import JsonObject

UNPAID_FEE = 30
CHECK_FEE = 15
SHORT_NOTICE_FEE = 25


class JobCase(Case):
    """One job on one car."""

    domain = "workshop"
    letter = "J"

    def __init__(self, rng: random.Random, task_ref: str, names: Names) -> None:
        super().__init__(rng, task_ref, names)
        self.part = rng.choice(PARTS)
        self.stock = rng.choice([0, rng.randint(1, 9)])
        self.notice = rng.choice([rng.randint(1, 4), rng.randint(5, 9)])
        self.paid = self.even()
        self.dirty = self.even()
        self.warranty = self.even()
        self.fuel = rng.choice(["petrol", "electric"])

    def patch(self) -> dict[str, list[JsonObject]]:
        customer = {"id": self.number, "name": self.name, "pin": self.pin}
        car = {
            "id": self.number,
            "customer_id": self.number,
            "fuel": self.fuel,
            "warranty": int(self.warranty),
        }
        job = {
            "id": self.id,
            "car_id": self.number,
            "notice": self.notice,
            "paid": int(self.paid),
            "dirty": int(self.dirty),
        }
        part = {"name": self.part, "stock": self.stock}
        return {"customers": [customer], "cars": [car], "parts": [part], "jobs": [job]}

    def ticket(self, kind: str, high: bool, **more: Any) -> DemoTurn:
        priority = "high" if high else "low"
        return call("open_ticket", job_id=self.id, type=kind, priority=priority, **more)


def fit_part(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """No stock: a stock ticket. Under warranty: free of charge."""
    case = JobCase(rng, task_ref, names)

    def plan(stock: bool, warranty: bool) -> Plan:
        yield call("get_part", part=case.part)
        yield verdict("stock", case.stock, stock)
        if not stock:
            yield case.ticket("stock", False)
            yield say(TICKET_OPEN)
            return
        yield call("get_job", job_id=case.id)
        yield verdict("warranty", case.warranty, warranty)
        yield call("fit_part", job_id=case.id, part=case.part, free=warranty)
        yield say(ALL_DONE)

    query = case.ask(
        "Job {id} needs a part: {part}.",
        "Please fit a new part, {part}, in job {id}.",
        "I want a new part for job {id}: {part}.",
        part=case.part,
    )
    return case.draft("fit_part", query, plan, {"stock": case.stock > 0, "warranty": case.warranty})


def add_hours(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Unpaid: a fee first. Electric cars go to the high-voltage bay."""
    case = JobCase(rng, task_ref, names)
    return _hours("add_hours", case, hours=rng.randint(1, 7))


def many_hours(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Over seven hours: approval is needed, so a ticket and nothing else."""
    case = JobCase(rng, task_ref, names)
    return _hours("many_hours", case, hours=rng.randint(8, 9))


def _hours(template: str, case: JobCase, hours: int) -> Drafted:
    def plan(long: bool, paid: bool, electric: bool) -> Plan:
        yield verdict("hours", hours, long)
        if long:
            yield case.ticket("approval", False)
            yield say(TICKET_OPEN)
            return
        yield call("get_job", job_id=case.id)
        yield verdict("paid", case.paid, paid)
        if not paid:
            yield call("charge_fee", job_id=case.id, amount=UNPAID_FEE)
        yield verdict("fuel", case.fuel, electric)
        bay = "high" if electric else "main"
        yield call("add_hours", job_id=case.id, hours=hours, bay=bay)
        yield say(ALL_DONE)

    query = case.ask(
        "Add {hours} hours to job {id}.",
        "Work {hours} hours more on job {id}.",
        "Job {id} may take {hours} hours more.",
        hours=hours,
    )
    truth = {"long": hours > 7, "paid": case.paid, "electric": case.fuel == "electric"}
    return case.draft(template, query, plan, truth)


def collect(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Unpaid: a fee first. Dirty: wash it."""
    case = JobCase(rng, task_ref, names)

    def plan(paid: bool, dirty: bool) -> Plan:
        yield call("get_job", job_id=case.id)
        yield verdict("paid", case.paid, paid)
        if not paid:
            yield call("charge_fee", job_id=case.id, amount=UNPAID_FEE)
        yield verdict("dirty", case.dirty, dirty)
        yield call("hand_over", job_id=case.id, wash=dirty)
        yield say(ALL_DONE)

    query = case.ask(
        "I collect the car of job {id}.", "Is job {id} ready? I come now.", "Hand over job {id}."
    )
    return case.draft("collect", query, plan, {"paid": case.paid, "dirty": case.dirty})


def noise(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """No warranty: a fee. Then a repair ticket, high when it is the brakes."""
    case = JobCase(rng, task_ref, names)
    where = rng.choice(["brakes", "doors"])

    def plan(warranty: bool, brakes: bool) -> Plan:
        yield call("get_job", job_id=case.id)
        yield verdict("warranty", case.warranty, warranty)
        if not warranty:
            yield call("charge_fee", job_id=case.id, amount=CHECK_FEE)
        yield verdict("where", where, brakes)
        yield case.ticket("repair", brakes, tags=["noise"])
        yield say(TICKET_OPEN)

    query = case.ask(
        "Noise in job {id}: {where}.",
        "Job {id}: I hear a noise, {where}.",
        "A noise, {where}, in job {id}.",
        where=where,
    )
    truth = {"warranty": case.warranty, "brakes": where == "brakes"}
    return case.draft("noise", query, plan, truth)


def move_job(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Short notice: a fee. Early, where the user comes before work."""
    case = JobCase(rng, task_ref, names)
    days = rng.randint(1, 9)
    when = rng.choice(["before", "after"])

    def plan(short: bool, early: bool) -> Plan:
        yield call("get_job", job_id=case.id)
        yield verdict("notice", case.notice, short)
        if short:
            yield call("charge_fee", job_id=case.id, amount=SHORT_NOTICE_FEE)
        yield verdict("when", when, early)
        yield call("move_job", job_id=case.id, days=days, early=early)
        yield say(ALL_DONE)

    query = case.ask(
        "Move job {id} by {days} days. I come: {when} work.",
        "I come {days} days later with job {id}, {when} work.",
        days=days,
        when=when,
    )
    truth = {"short": case.notice < 5, "early": when == "before"}
    return case.draft("move_job", query, plan, truth)


def lend_car(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The PIN matches: a car, large for a family."""
    case = JobCase(rng, task_ref, names)
    return _lend("lend_car", case, pin=case.pin)


def wrong_pin(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The PIN does not match: an identity ticket and nothing else."""
    case = JobCase(rng, task_ref, names)
    return _lend("wrong_pin", case, pin=case.other_pin())


def _lend(template: str, case: JobCase, pin: int) -> Drafted:
    matches = pin == case.pin
    who = case.rng.choice(["family", "dog"])

    def plan(match: bool, large: bool) -> Plan:
        yield say(ASK_PIN)
        yield call("check_pin", job_id=case.id, pin=pin)
        yield verdict("match", matches, match)
        if not match:
            yield case.ticket("identity", True)
            yield say(TICKET_OPEN)
            return
        yield verdict("who", who, large)
        yield call("lend_car", job_id=case.id, size="large" if large else "small")
        yield say(ALL_DONE)

    query = case.ask(
        "I need a loan car for job {id}. With me: {who}.",
        "Lend me a car for job {id}. Along: {who}.",
        who=who,
    )
    truth = {"match": matches, "large": who == "family"}
    return case.draft(template, query, plan, truth, pin=pin)


TEMPLATES = (
    Template("fit_part", fit_part),
    Template("add_hours", add_hours),
    Template("collect", collect),
    Template("noise", noise),
    Template("move_job", move_job),
    Template("lend_car", lend_car),
    Template("many_hours", many_hours, ordinary=False),
    Template("wrong_pin", wrong_pin, ordinary=False),
)
