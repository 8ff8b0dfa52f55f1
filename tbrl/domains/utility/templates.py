"""Task templates of the water and power desk (compact size)."""

from __future__ import annotations

import random
from typing import Any

from tbrl.domains.base import DemoTurn, Drafted, Names, Template
from tbrl.domains.drafting import ALL_DONE, ASK_PIN, TICKET_OPEN, Case, Plan, call, say, verdict
from tbrl.domains.utility.seed import PLANS
from tbrl.types import JsonObject

CLOSING_FEE = 40
PARTS_FEE = 10
EXIT_FEE = 30
LEAK_FEE = 35


class AccountCase(Case):
    """One account of one customer, with its meter."""

    domain = "utility"
    letter = "A"

    def __init__(self, rng: random.Random, task_ref: str, names: Names) -> None:
        super().__init__(rng, task_ref, names)
        self.plan, self.wish = rng.sample(PLANS, 2)
        self.debt = rng.choice([0, rng.randint(1, 9)])
        self.deposit = rng.choice(["held", "none"])
        self.kind = rng.choice(["home", "shop"])
        self.locked = self.even()
        self.paper = self.even()
        self.broken = self.even()
        self.cover = self.even()

    def patch(self) -> dict[str, list[JsonObject]]:
        customer = {"id": self.number, "name": self.name, "pin": self.pin, "kind": self.kind}
        account = {
            "id": self.id,
            "customer_id": self.number,
            "plan": self.plan,
            "debt": self.debt,
            "deposit": self.deposit,
            "locked": int(self.locked),
            "paper": int(self.paper),
        }
        meter = {"account_id": self.id, "broken": int(self.broken), "cover": int(self.cover)}
        return {"customers": [customer], "accounts": [account], "meters": [meter]}

    def ticket(self, kind: str, high: bool, **more: Any) -> DemoTurn:
        priority = "high" if high else "low"
        return call("open_ticket", account_id=self.id, type=kind, priority=priority, **more)


def reading(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """A broken meter: a meter ticket. Otherwise the value, marked when it is a guess."""
    case = AccountCase(rng, task_ref, names)
    value = rng.randint(100, 999)
    how = rng.choice(["about", "exactly"])

    def plan(broken: bool, guess: bool) -> Plan:
        yield call("get_meter", account_id=case.id)
        yield verdict("broken", case.broken, broken)
        if broken:
            yield case.ticket("meter", False)
            yield say(TICKET_OPEN)
            return
        yield verdict("how", how, guess)
        yield call("add_reading", account_id=case.id, value=value, guess=guess)
        yield say(ALL_DONE)

    query = case.ask(
        "The meter of account {id} shows: {how} {value}.",
        "Account {id}, meter: {how} {value}.",
        how=how,
        value=value,
    )
    return case.draft("reading", query, plan, {"broken": case.broken, "guess": how == "about"})


def close_account(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Debt: a fee first. Deposit held: refund it."""
    case = AccountCase(rng, task_ref, names)

    def plan(debt: bool, held: bool) -> Plan:
        yield call("get_account", account_id=case.id)
        yield verdict("debt", case.debt, debt)
        if debt:
            yield call("charge_fee", account_id=case.id, amount=CLOSING_FEE)
        yield verdict("deposit", case.deposit, held)
        yield call("close_account", account_id=case.id, refund=held)
        yield say(ALL_DONE)

    query = case.ask("I move out. Close account {id}.", "Please end account {id}.")
    truth = {"debt": case.debt > 0, "held": case.deposit == "held"}
    return case.draft("close_account", query, plan, truth)


def pay_parts(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Debt: a fee first. A shop: a debt ticket instead."""
    case = AccountCase(rng, task_ref, names)
    return _parts("pay_parts", case, parts=rng.randint(2, 6))


def many_parts(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Over six parts: approval is needed, so a ticket and nothing else."""
    case = AccountCase(rng, task_ref, names)
    return _parts("many_parts", case, parts=rng.randint(7, 9))


def _parts(template: str, case: AccountCase, parts: int) -> Drafted:
    def plan(many: bool, debt: bool, shop: bool) -> Plan:
        yield verdict("parts", parts, many)
        if many:
            yield case.ticket("approval", False)
            yield say(TICKET_OPEN)
            return
        yield call("get_account", account_id=case.id)
        yield verdict("debt", case.debt, debt)
        if debt:
            yield call("charge_fee", account_id=case.id, amount=PARTS_FEE)
        yield verdict("kind", case.kind, shop)
        if shop:
            yield case.ticket("debt", False)
            yield say(TICKET_OPEN)
        else:
            yield call("pay_parts", account_id=case.id, parts=parts)
            yield say(ALL_DONE)

    query = case.ask(
        "I pay account {id} in {parts} parts.",
        "Can I pay account {id} in {parts} parts?",
        "Split the bill of account {id} in {parts} parts.",
        parts=parts,
    )
    truth = {"many": parts > 6, "debt": case.debt > 0, "shop": case.kind == "shop"}
    return case.draft(template, query, plan, truth)


def switch_plan(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """A shop: a plan ticket. Locked in: a fee before the switch."""
    case = AccountCase(rng, task_ref, names)

    def plan(shop: bool, locked: bool) -> Plan:
        yield call("get_account", account_id=case.id)
        yield verdict("kind", case.kind, shop)
        if shop:
            yield case.ticket("plan", False)
            yield say(TICKET_OPEN)
            return
        yield verdict("locked", case.locked, locked)
        if locked:
            yield call("charge_fee", account_id=case.id, amount=EXIT_FEE)
        yield call("switch_plan", account_id=case.id, plan=case.wish)
        yield say(ALL_DONE)

    query = case.ask(
        "Switch account {id} to another plan: {wish}.",
        "A new plan for account {id}, {wish}.",
        wish=case.wish,
    )
    truth = {"shop": case.kind == "shop", "locked": case.locked}
    return case.draft("switch_plan", query, plan, truth)


def leak(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """No cover: a fee. Then a supply ticket, high when it is in the street."""
    case = AccountCase(rng, task_ref, names)
    where = rng.choice(["street", "garden"])

    def plan(cover: bool, street: bool) -> Plan:
        yield call("get_meter", account_id=case.id)
        yield verdict("cover", case.cover, cover)
        if not cover:
            yield call("charge_fee", account_id=case.id, amount=LEAK_FEE)
        yield verdict("where", where, street)
        yield case.ticket("supply", street, tags=["leak"])
        yield say(TICKET_OPEN)

    query = case.ask(
        "Water runs at account {id}: {where}.",
        "Account {id} has a leak, {where}.",
        "A leak, {where}, account {id}.",
        where=where,
    )
    return case.draft("leak", query, plan, {"cover": case.cover, "street": where == "street"})


def send_bill(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The PIN matches: the bill, by mail for paper accounts."""
    case = AccountCase(rng, task_ref, names)
    return _bill("send_bill", case, pin=case.pin)


def wrong_pin(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The PIN does not match: an identity ticket and nothing else."""
    case = AccountCase(rng, task_ref, names)
    return _bill("wrong_pin", case, pin=case.other_pin())


def _bill(template: str, case: AccountCase, pin: int) -> Drafted:
    matches = pin == case.pin

    def plan(match: bool, paper: bool) -> Plan:
        yield say(ASK_PIN)
        yield call("check_pin", account_id=case.id, pin=pin)
        yield verdict("match", matches, match)
        if not match:
            yield case.ticket("identity", True)
            yield say(TICKET_OPEN)
            return
        yield call("get_account", account_id=case.id)
        yield verdict("paper", case.paper, paper)
        yield call("send_bill", account_id=case.id, channel="mail" if paper else "sms")
        yield say(ALL_DONE)

    query = case.ask(
        "Send me the bill of account {id}.", "I lost the bill of account {id}. Send it again."
    )
    return case.draft(template, query, plan, {"match": matches, "paper": case.paper}, pin=pin)


TEMPLATES = (
    Template("reading", reading),
    Template("close_account", close_account),
    Template("pay_parts", pay_parts),
    Template("switch_plan", switch_plan),
    Template("leak", leak),
    Template("send_bill", send_bill),
    Template("many_parts", many_parts, ordinary=False),
    Template("wrong_pin", wrong_pin, ordinary=False),
)
