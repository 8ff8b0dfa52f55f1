"""Task templates about money: disputed bills, instalments, outage credit, leak allowances."""

from __future__ import annotations

import random

from tbrl.domains.base import Drafted, Names
from tbrl.domains.casework import Plan, days_from_today
from tbrl.domains.drafting import call, say
from tbrl.domains.utility.full.case import SupplyFile
from tbrl.domains.utility.full.seed import TARIFFS

LARGE_GAP = 500
SHORT_PLAN, LONG_PLAN, SMALL_DEBT = 6, 12, 600.0
CREDIT_HOURS, CREDIT_FIRST, CREDIT_STEP, CREDIT_MOST, LONG_OUTAGE = 12, 40.0, 20.0, 160.0, 48
ALLOWANCE_LIMIT, ALLOWANCE_SINCE = 400.0, "2024-03-02"


def disputed_bill(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Estimated: record the reading; redo the bill, or hold it where the gap is large."""
    case = SupplyFile(rng, task_ref, names)
    reading = rng.randrange(4_000, 9_000)
    gap = rng.choice([0, -40, rng.randint(60, 480), rng.randint(60, 480), rng.randint(520, 1_500)])
    estimated = rng.random() < 0.75
    bill = case.bill(
        case.supply, reading=reading, units=rng.randint(200, 900), estimated=int(estimated)
    )
    case.bill(case.supplies[1], reading=reading + 311, units=420, estimated=int(not estimated))
    case.fact("reading", reading - gap, ["meter", "reading"], "The meter shows {value}.")
    truth = {"estimated": estimated, "lower": gap > 0, "large": gap > LARGE_GAP}

    def plan(estimated: bool, lower: bool, large: bool) -> Plan:
        yield from case.identify()
        yield from case.read()
        yield say("What does the meter show now?")
        if not estimated:
            yield case.hand_over("meter", "meter_test", "low")
            yield say("The bill rests on a real reading and stands. I asked for a test. <DONE>")
            return
        yield call("submit_reading", supply_id=case.supply_id, value=reading - gap)
        if not lower:
            yield say("I recorded the reading. The bill stands. <DONE>")
        elif large:
            yield call("change_bill", bill_id=bill["id"], status="on_hold")
            yield case.hand_over("billing", "large_gap")
            yield say("The bill is on hold, and my colleagues check it. <DONE>")
        else:
            yield call("change_bill", bill_id=bill["id"], status="rebill")
            yield say("I recorded the reading, and you get a new bill. <DONE>")

    query = case.ask(
        "the {kind} bill for {address} is far too high. I want it checked.",
        "something is wrong with my {kind} bill, the one for {address}.",
        kind=case.kind,
        address=case.address,
    )
    goal = f"You want the {case.kind} bill for {case.address} checked."
    return case.draft("disputed_bill", query, plan, truth, "supplies", goal)


def instalments(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Business: none. Broken plan or too many: approval. Otherwise set the plan."""
    case = SupplyFile(rng, task_ref, names)
    large = case.even()
    balance = float(rng.randrange(620, 1_500, 10) if large else rng.randrange(150, 600, 10))
    broken = rng.random() < 0.25
    case.supply |= {"balance": balance, "broken_plan": int(broken)}
    case.supplies[1] |= {"balance": 240.0, "broken_plan": int(not broken)}
    count = rng.choice([3, 5, 6, 8, 10, 12])
    first_day = rng.choice(["2026-03-15", "2026-04-01"])
    case.fact("count", count, ["many", "instalments"], "In {value} monthly parts.")
    case.fact("first_day", first_day, ["begin", "start"], "Beginning on {value}.")
    most = LONG_PLAN if case.priority or balance > SMALL_DEBT else SHORT_PLAN
    truth = {
        "business": case.business,
        "broken": broken,
        "allowed": count <= most,
        "priority": case.priority,
    }

    def plan(business: bool, broken: bool, allowed: bool, priority: bool) -> Plan:
        yield from case.identify()
        yield from case.read()
        yield say("How many instalments would you like? Should they begin 2026-03-15 or later?")
        if business:
            yield case.hand_over("debt", "business")
            yield say("For businesses our debt team decides; they will write to you. <DONE>")
        elif broken:
            yield case.hand_over("approval", "second_plan", "high" if priority else "normal")
            yield say("A second plan has to be approved; you will hear from us. <DONE>")
        elif not allowed:
            yield case.hand_over("approval", "long_plan")
            yield say("So long a plan has to be approved; you will hear from us. <DONE>")
        else:
            yield call(
                "set_instalments", supply_id=case.supply_id, count=count, first_day=first_day
            )
            yield say(f"You pay {balance:g} in {count} instalments from {first_day} on. <DONE>")

    query = case.ask(
        "I cannot pay what is open for the {kind} at {address} at once. Can I pay in parts?",
        "can I split the {kind} debt for {address}?",
        kind=case.kind,
        address=case.address,
    )
    goal = f"You want to pay the balance of the {case.kind} at {case.address} in parts."
    return case.draft("instalments", query, plan, truth, "supplies", goal)


def outage_credit(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Hours on file give the credit; the register doubles it; very long ones need a ticket."""
    case = SupplyFile(rng, task_ref, names, kind=rng.choice(["electricity", "water"]))
    hours = rng.choice([8, 13, 25, 30, 47, 50, 100])
    planned = rng.random() < 0.35
    notice = rng.choice([0, 1, 2, 5]) if planned else 0
    case.add(
        "outages",
        {
            "id": case.new_id(),
            "supply_id": case.supply_id,
            "day": days_from_today(-rng.randint(3, 12)),
            "hours": hours,
            "planned": int(planned),
            "notice_days": notice,
        },
    )
    other = {"day": days_from_today(-9), "hours": 26, "planned": 0}
    case.add("outages", {"id": case.new_id(), "supply_id": case.supplies[1]["id"], **other})
    case.fact("claim", hours + 10, ["long", "hours"], "It lasted {value} hours.")
    due = hours >= CREDIT_HOURS and not (planned and notice >= 2)
    truth = {"due": due, "priority": case.priority, "long": hours >= LONG_OUTAGE}

    def plan(due: bool, priority: bool, long: bool) -> Plan:
        yield from case.identify()
        yield from case.read()
        yield call("search_help", query="outage credit")
        amount = _credit(hours) * (2 if priority else 1)
        if due:
            yield case.entry("outage_credit", amount)
        if due and long:
            yield case.hand_over("complaint", "long_outage", "high")
        told = f"You get a credit of {amount:g}." if due else "No credit is due for this outage."
        yield say(f"{told} <DONE>")

    query = case.ask(
        "we sat without {kind} at {address} for ages. I want compensation.",
        "there was no {kind} at {address} the other day. What do I get for that?",
        kind=case.kind,
        address=case.address,
    )
    amount = _credit(hours) * (2 if case.priority else 1)
    rubrics = (f'Does the final message mention "{amount:g}"?',) if due else ()
    goal = f"You want compensation for the outage of the {case.kind} at {case.address}."
    return case.draft("outage_credit", query, plan, truth, "supplies", goal, rubrics)


def _credit(hours: int) -> float:
    """Of the help article, before it is doubled; never less than the first amount."""
    steps = max(0, (hours - CREDIT_HOURS) // CREDIT_HOURS)
    return min(CREDIT_MOST, CREDIT_FIRST + CREDIT_STEP * steps)


def leak_allowance(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Repaired, the first in two years, not too large: credit it by the formula."""
    case = SupplyFile(rng, task_ref, names, kind="water")
    usual = rng.randrange(60, 120, 2)
    units = usual + rng.choice([rng.randrange(80, 320, 2), rng.randrange(420, 600, 2)])
    case.bill(case.supply, reading=rng.randrange(4_000, 9_000), units=units)
    case.bill(case.supplies[1], reading=3_000, units=usual + 40)
    before = rng.choice([None, None, "2022-06-01", "2025-01-15", "2024-08-20"])
    case.supply |= {"usual_units": usual, "last_allowance": before}
    case.supplies[1] |= {"usual_units": usual - 10, "last_allowance": "2025-05-05"}
    repaired = rng.random() < 0.75
    said = ("The plumber repaired it last week", "It is not repaired yet")[not repaired]
    case.fact("repaired", said, ["repaired", "fixed", "repair"], "{value}.")
    price = TARIFFS[case.supply["tariff"]][1]
    amount = round((units - usual) * price / 2, 2)
    truth = {
        "repaired": repaired,
        "second": before is not None and before > ALLOWANCE_SINCE,
        "large": amount > ALLOWANCE_LIMIT,
    }

    def plan(repaired: bool, second: bool, large: bool) -> Plan:
        yield from case.identify()
        yield from case.read()
        yield say("Has the leak been repaired?")
        if not repaired:
            yield from case.visit("leak_check")
            yield say(f"We come on {case.first_day('leak_check')}; then we see. <DONE>")
            return
        if second:
            yield case.hand_over("billing", "second_leak")
            yield say("A second allowance in two years is for my colleagues to decide. <DONE>")
            return
        yield call("search_help", query="leak allowance formula")
        yield call("get_tariffs", supply="water")
        if large:
            yield case.hand_over("approval", "large_allowance")
            yield say(f"An allowance of {amount:g} has to be approved first. <DONE>")
        else:
            yield case.entry("leak_allowance", amount)
            yield say(f"You get an allowance of {amount:g}. <DONE>")

    query = case.ask(
        "I had a burst pipe at {address} and the water bill is horrible. Can you do something?",
        "because of a leak my water bill for {address} has exploded.",
        address=case.address,
    )
    credited = repaired and not truth["second"] and not truth["large"]
    rubrics = (f'Does the final message mention "{amount:g}"?',) if credited else ()
    goal = f"You want money off the water bill for {case.address} because of the leak."
    return case.draft("leak_allowance", query, plan, truth, "supplies", goal, rubrics)
