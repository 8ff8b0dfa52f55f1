"""Task templates about supplies: another tariff, moving out, meters, visits that failed."""

from __future__ import annotations

import random

from tbrl.domains.base import Drafted, Names
from tbrl.domains.casework import Plan, days_from_today
from tbrl.domains.drafting import call, say
from tbrl.domains.utility.full.case import SupplyFile
from tbrl.domains.utility.full.seed import DAYS, TARIFFS

SWITCH_DAY, EARLIEST_CLOSING = "2026-04-01", "2026-03-07"
METER_TEST, OLD_METER = 70.0, 2011
MISSED_HOME, MISSED_BUSINESS, NO_ACCESS = 30.0, 60.0, 45.0


def switch_tariff(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Meter must fit; a contract that still runs costs its exit fee, if the user accepts."""
    case = SupplyFile(rng, task_ref, names, kind=rng.choice(["electricity", "gas"]))
    smart_tariff = case.even()
    options = [c for c, t in TARIFFS.items() if t[0] == case.kind and bool(t[3]) == smart_tariff]
    wish = rng.choice([code for code in options if code != case.supply["tariff"]])
    fixed = "E-FIX" if case.kind == "electricity" else "G-FIX"
    if wish == fixed:
        fixed = "E-GREEN" if case.kind == "electricity" else "G-OPEN"
    fee = TARIFFS[fixed][2]
    runs = fee > 0 and rng.random() < 0.6
    case.supply |= {
        "tariff": fixed,
        "contract_until": rng.choice(["2026-09-30", "2027-01-31"]) if runs else "2026-03-31",
    }
    accepts = rng.random() < 0.7
    answer = ("Yes, I accept the fee", "No, then leave it as it is")[not accepts]
    case.fact("fee", answer, ["accept", "fee", "agree"], "{value}.")
    manual = case.supply["meter"] == "manual"
    truth = {"misfit": smart_tariff and manual, "runs": runs, "accepts": accepts}

    def plan(misfit: bool, runs: bool, accepts: bool) -> Plan:
        yield from case.identify()
        yield from case.read()
        yield call("get_tariffs", supply=case.kind)
        if misfit:
            yield from case.visit("meter_swap")
            yield case.hand_over("tariff", "after_swap")
            day = case.first_day("meter_swap")
            yield say(f"First a smart meter comes, on {day}, free; then the tariff. <DONE>")
            return
        if runs:
            yield say(f"Your contract still runs: an exit fee of {fee:g}. Do you accept?")
            if not accepts:
                yield say(f"Then nothing changes, and the fee of {fee:g} is not charged. <DONE>")
                return
            yield case.entry("exit_fee", fee)
        yield call("switch_tariff", supply_id=case.supply_id, tariff=wish, from_day=SWITCH_DAY)
        cost = f"The exit fee is {fee:g}." if runs else "It costs nothing."
        yield say(f"You are on {wish} from {SWITCH_DAY} on. {cost} <DONE>")

    query = case.ask(
        "I would like the tariff {wish} for my {kind} at {address}.",
        "please put the {kind} at {address} on {wish}.",
        wish=wish,
        kind=case.kind,
        address=case.address,
    )
    charged = runs and not truth["misfit"]
    rubrics = (f'Does the final message mention "{fee:g}"?',) if charged else ()
    goal = f"You want the tariff {wish} for the {case.kind} at {case.address}."
    return case.draft("switch_tariff", query, plan, truth, "supplies", goal, rubrics)


def move_out(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Close on an allowed day, with a reading for manual meters; then money back or a ticket."""
    case = SupplyFile(rng, task_ref, names)
    balance = float(rng.choice([0, rng.randint(15, 160), -rng.randint(15, 160)]))
    case.supply["balance"] = balance
    case.supplies[1]["balance"] = 20.0 if balance <= 0 else -35.0
    day = days_from_today(rng.choice([1, 3, 6, 14, 25]))
    reading = rng.randrange(2_000, 9_000)
    case.fact("day", day, ["day", "when"], "I move out on {value}.")
    case.fact("reading", reading, ["reading", "meter"], "The meter shows {value}.")
    truth = {
        "soon": day < EARLIEST_CLOSING,
        "manual": case.supply["meter"] == "manual",
        "credit": balance < 0,
        "debt": balance > 0,
    }

    def plan(soon: bool, manual: bool, credit: bool, debt: bool) -> Plan:
        yield from case.identify()
        yield from case.read()
        yield say("On which day do you move out, and what is the final reading?")
        closing = EARLIEST_CLOSING if soon else day
        final = {"final_reading": reading} if manual else {}
        yield call("close_supply", supply_id=case.supply_id, day=closing, **final)
        rest = "Nothing is open."
        if credit:
            yield case.entry("refund", abs(balance))
            rest = f"We pay {abs(balance):g} back."
        elif debt:
            yield case.hand_over("billing", "final_bill")
            rest = f"The balance of {balance:g} comes with the final bill."
        yield say(f"The supply is closed on {closing}. {rest} <DONE>")

    query = case.ask(
        "I am moving out of {address}. Please close the {kind} there.",
        "please end my {kind} at {address}, I am leaving.",
        kind=case.kind,
        address=case.address,
    )
    rubrics = (f'Does the final message mention "{-balance:g}"?',) if balance < 0 else ()
    goal = f"You move out of {case.address} and want the {case.kind} closed."
    return case.draft("move_out", query, plan, truth, "supplies", goal, rubrics)


def faulty_meter(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Danger: a ticket. Smart or old: a free swap. Otherwise a test, if the user pays for it."""
    case = SupplyFile(rng, task_ref, names, kind=rng.choice(["electricity", "gas"]))
    case.supply["meter_year"] = rng.choice([2006, 2011, 2012, 2019, 2020])
    danger = rng.random() < 0.25
    smell = ("Yes, there is a smell", "No, no smell at all")[not danger]
    case.fact("smell", smell, ["smell", "burning"], "{value}.")
    accepts = rng.random() < 0.6
    answer = ("Yes, I accept that", "No, that is too much")[not accepts]
    case.fact("fee", answer, ["accept", "costs"], "{value}.")
    truth = {
        "danger": danger,
        "swap": case.supply["meter"] == "smart" or case.supply["meter_year"] <= OLD_METER,
        "accepts": accepts,
    }

    def plan(danger: bool, swap: bool, accepts: bool) -> Plan:
        yield from case.identify()
        yield from case.read()
        yield say("Is there a smell of burning or of gas?")
        if danger:
            yield case.hand_over("meter", "danger", "high")
            yield say("Keep away from the meter. Somebody comes at once. <DONE>")
            return
        if swap:
            yield from case.visit("meter_swap")
            yield say(f"You get a new meter on {case.first_day('meter_swap')}, free. <DONE>")
            return
        yield say(f"The meter must be tested, which costs {METER_TEST:g}. Do you accept?")
        if accepts:
            yield case.entry("meter_test", METER_TEST)
            yield from case.visit("meter_test")
            day = case.first_day("meter_test")
            yield say(f"We test the meter on {day}, for {METER_TEST:g}. <DONE>")
        else:
            yield case.hand_over("meter", "declined", "low")
            yield say("Then nothing is booked or charged. I noted the fault. <DONE>")

    query = case.ask(
        "the {kind} meter at {address} shows nonsense.",
        "I think the {kind} meter at {address} is broken, the display flickers.",
        kind=case.kind,
        address=case.address,
    )
    goal = f"You want the {case.kind} meter at {case.address} put right."
    return case.draft("faulty_meter", query, plan, truth, "supplies", goal)


def missed_visit(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Our fault: a credit by kind of customer. Theirs: a charge, not for the register."""
    case = SupplyFile(rng, task_ref, names)
    ours = case.even()
    works = ["meter_swap", "meter_test"] + (["leak_check"] if case.kind == "water" else [])
    work, other = rng.sample(works, 2)
    status = ("missed_by_us", "no_access")
    for supply, what, missed in ((case.supply, work, ours), (case.supplies[1], other, not ours)):
        row = {"supply_id": supply["id"], "work": what, "status": status[not missed]}
        case.add("visits", {"id": case.new_id(), "day": days_from_today(-3), **row})
    from_day = rng.choice(DAYS[1:10])
    case.fact("day", from_day, ["day", "when"], "From {value} on is fine.")
    truth = {"ours": ours, "business": case.business, "priority": case.priority}

    def plan(ours: bool, business: bool, priority: bool) -> Plan:
        yield from case.identify()
        yield from case.read()
        yield say("From which day would a new visit suit you?")
        yield from case.visit(work, from_day)
        day = case.first_day(work, from_day)
        if ours:
            amount = MISSED_BUSINESS if business else MISSED_HOME
            yield case.entry("missed_visit", amount)
            yield say(f"I am sorry. We come on {day}, and you get a credit of {amount:g}. <DONE>")
        elif priority:
            yield say(f"We come again on {day}, at no cost. <DONE>")
        else:
            yield case.entry("no_access", NO_ACCESS)
            yield say(f"We come again on {day}; the lost visit costs {NO_ACCESS:g}. <DONE>")

    query = case.ask(
        "your engineer was to come to {address} for the {kind} last week, and nothing happened.",
        "what about the {kind} visit at {address}? I need a new day.",
        kind=case.kind,
        address=case.address,
    )
    amount = MISSED_BUSINESS if case.business else MISSED_HOME
    rubrics: tuple[str, ...] = (f'Does the final message mention "{amount:g}"?',) if ours else ()
    if not ours and not case.priority:
        rubrics = (f'Does the final message mention "{NO_ACCESS:g}"?',)
    goal = f"You want a new visit for the {case.kind} at {case.address}."
    return case.draft("missed_visit", query, plan, truth, "supplies", goal, rubrics)
