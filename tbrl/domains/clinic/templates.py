"""Task templates of the clinic's front desk (compact size)."""

from __future__ import annotations

import random
from typing import Any

from tbrl.domains.base import DemoTurn, Drafted, Names, Template
from tbrl.domains.clinic.seed import DOCTORS
from tbrl.domains.drafting import ALL_DONE, ASK_PIN, TICKET_OPEN, Case, Plan, call, say, verdict
from tbrl.types import JsonObject

SHORT_NOTICE_FEE = 25
VIDEO_FEE = 15


class VisitCase(Case):
    """One visit of one patient."""

    domain = "clinic"
    letter = "V"

    def __init__(self, rng: random.Random, task_ref: str, names: Names) -> None:
        super().__init__(rng, task_ref, names)
        self.doctor = rng.choice(DOCTORS)
        self.away = self.even()
        self.video = self.even()
        self.plan = rng.choice(["private", "public"])
        self.wheelchair = self.even()
        self.repeats = rng.choice([0, rng.randint(1, 9)])
        self.hours = rng.choice([rng.randint(1, 4), rng.randint(5, 9)])
        self.prepaid = self.even()

    def patch(self) -> dict[str, list[JsonObject]]:
        patient = {
            "id": self.number,
            "name": self.name,
            "pin": self.pin,
            "plan": self.plan,
            "wheelchair": int(self.wheelchair),
            "repeats": self.repeats,
        }
        doctor = {"name": self.doctor, "away": int(self.away), "video": int(self.video)}
        visit = {
            "id": self.id,
            "patient_id": self.number,
            "doctor": self.doctor,
            "hours": self.hours,
            "prepaid": int(self.prepaid),
        }
        return {"patients": [patient], "doctors": [doctor], "visits": [visit]}

    def ticket(self, kind: str, high: bool, **more: Any) -> DemoTurn:
        priority = "high" if high else "low"
        return call("open_ticket", visit_id=self.id, type=kind, priority=priority, **more)


def cancel_visit(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Short notice: a fee. Prepaid: refund it."""
    case = VisitCase(rng, task_ref, names)

    def plan(soon: bool, prepaid: bool) -> Plan:
        yield call("get_visit", visit_id=case.id)
        yield verdict("hours", case.hours, soon)
        if soon:
            yield call("charge_fee", visit_id=case.id, amount=SHORT_NOTICE_FEE)
        yield verdict("prepaid", case.prepaid, prepaid)
        yield call("cancel_visit", visit_id=case.id, refund=prepaid)
        yield say(ALL_DONE)

    query = case.ask(
        "Cancel visit {id}.", "I do not come to visit {id}.", "Please drop visit {id}."
    )
    truth = {"soon": case.hours < 5, "prepaid": case.prepaid}
    return case.draft("cancel_visit", query, plan, truth)


def move_visit(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Short notice: a fee first. The doctor is away: a doctor ticket instead."""
    case = VisitCase(rng, task_ref, names)
    return _move("move_visit", case, days=rng.randint(1, 7))


def long_move(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Over seven days: approval is needed, so a ticket and nothing else."""
    case = VisitCase(rng, task_ref, names)
    return _move("long_move", case, days=rng.randint(8, 9))


def _move(template: str, case: VisitCase, days: int) -> Drafted:
    def plan(long: bool, soon: bool, away: bool) -> Plan:
        yield verdict("days", days, long)
        if long:
            yield case.ticket("approval", False)
            yield say(TICKET_OPEN)
            return
        yield call("get_visit", visit_id=case.id)
        yield verdict("hours", case.hours, soon)
        if soon:
            yield call("charge_fee", visit_id=case.id, amount=SHORT_NOTICE_FEE)
        yield verdict("away", case.away, away)
        if away:
            yield case.ticket("doctor", False)
            yield say(TICKET_OPEN)
        else:
            yield call("move_visit", visit_id=case.id, days=days)
            yield say(ALL_DONE)

    query = case.ask(
        "Move visit {id} by {days} days.", "I want visit {id} {days} days later.", days=days
    )
    truth = {"long": days > 7, "soon": case.hours < 5, "away": case.away}
    return case.draft(template, query, plan, truth)


def refill_drug(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Repeats left: refill, longer for private patients. Otherwise a doctor ticket."""
    case = VisitCase(rng, task_ref, names)
    case.repeats = rng.choice([0, rng.randint(1, 9), rng.randint(1, 9)])

    def plan(repeats: bool, private: bool) -> Plan:
        yield call("get_patient", visit_id=case.id)
        yield verdict("repeats", case.repeats, repeats)
        if not repeats:
            yield case.ticket("doctor", False, tags=["drug"])
            yield say(TICKET_OPEN)
            return
        yield verdict("plan", case.plan, private)
        yield call("refill_drug", visit_id=case.id, months=3 if private else 1)
        yield say(ALL_DONE)

    query = case.ask(
        "Refill my drug of visit {id}.",
        "I need more pills, see visit {id}.",
        "Pills of visit {id} again.",
    )
    truth = {"repeats": case.repeats > 0, "private": case.plan == "private"}
    return case.draft("refill_drug", query, plan, truth)


def room(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Wheelchair: ground floor. Video costs a fee unless the plan is private."""
    case = VisitCase(rng, task_ref, names)

    def plan(private: bool, ground: bool) -> Plan:
        yield call("get_patient", visit_id=case.id)
        yield verdict("plan", case.plan, private)
        if not private:
            yield call("charge_fee", visit_id=case.id, amount=VIDEO_FEE)
        yield verdict("wheelchair", case.wheelchair, ground)
        yield call("book_room", visit_id=case.id, floor="ground" if ground else "upper", video=True)
        yield say(ALL_DONE)

    query = case.ask(
        "A room with video for visit {id}.",
        "Visit {id} needs a video room.",
        "Book video for visit {id}.",
    )
    truth = {"private": case.plan == "private", "ground": case.wheelchair}
    return case.draft("room", query, plan, truth)


def pain(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """A doctor ticket, high for strong pain; a room as well where the doctor is there."""
    case = VisitCase(rng, task_ref, names)
    felt = rng.choice(["strong", "weak"])

    def plan(away: bool, strong: bool) -> Plan:
        yield call("get_visit", visit_id=case.id)
        yield verdict("away", case.away, away)
        if not away:
            yield call("book_room", visit_id=case.id, floor="ground")
        yield verdict("pain", felt, strong)
        yield case.ticket("doctor", strong, tags=["pain"])
        yield say(TICKET_OPEN)

    query = case.ask(
        "Visit {id}: my pain: {felt}.", "I have pain, {felt}, before visit {id}.", felt=felt
    )
    return case.draft("pain", query, plan, {"away": case.away, "strong": felt == "strong"})


def send_report(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The PIN matches: the report, by mail where the phone is gone."""
    case = VisitCase(rng, task_ref, names)
    return _report("send_report", case, pin=case.pin)


def wrong_pin(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The PIN does not match: an identity ticket and nothing else."""
    case = VisitCase(rng, task_ref, names)
    return _report("wrong_pin", case, pin=case.other_pin())


def _report(template: str, case: VisitCase, pin: int) -> Drafted:
    matches = pin == case.pin
    phone = case.rng.choice(["lost", "here"])

    def plan(match: bool, mail: bool) -> Plan:
        yield say(ASK_PIN)
        yield call("check_pin", visit_id=case.id, pin=pin)
        yield verdict("match", matches, match)
        if not match:
            yield case.ticket("identity", True)
            yield say(TICKET_OPEN)
            return
        yield verdict("phone", phone, mail)
        yield call("send_report", visit_id=case.id, channel="mail" if mail else "sms")
        yield say(ALL_DONE)

    query = case.ask(
        "I want the report of visit {id}. Phone: {phone}.",
        "My phone: {phone}. Send the report of visit {id}.",
        phone=phone,
    )
    return case.draft(template, query, plan, {"match": matches, "mail": phone == "lost"}, pin=pin)


TEMPLATES = (
    Template("cancel_visit", cancel_visit),
    Template("move_visit", move_visit),
    Template("refill_drug", refill_drug),
    Template("room", room),
    Template("pain", pain),
    Template("send_report", send_report),
    Template("long_move", long_move, ordinary=False),
    Template("wrong_pin", wrong_pin, ordinary=False),
)
