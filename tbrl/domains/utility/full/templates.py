"""Task templates of the supplier's customer service (full size)."""

from __future__ import annotations

import random

from tbrl.domains.base import Drafted, Names, Template
from tbrl.domains.casework import Plan, days_from_today
from tbrl.domains.drafting import call, say
from tbrl.domains.utility.full.case import SupplyFile
from tbrl.domains.utility.full.seed import DAYS, TARIFFS

LARGE_GAP = 500
SHORT_PLAN, LONG_PLAN, SMALL_DEBT = 6, 12, 600.0
SWITCH_DAY, EARLIEST_CLOSING = "2026-04-01", "2026-03-07"
CREDIT_HOURS, CREDIT_FIRST, CREDIT_STEP, CREDIT_MOST, LONG_OUTAGE = 12, 40.0, 20.0, 160.0, 48
ALLOWANCE_LIMIT, ALLOWANCE_SINCE = 400.0, "2024-03-02"
METER_TEST, OLD_METER = 70.0, 2011
MISSED_HOME, MISSED_BUSINESS, NO_ACCESS = 30.0, 60.0, 45.0


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


def wrong_identity(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """What the user tells does not match the file: an identity ticket and nothing else."""
    case = SupplyFile(rng, task_ref, names)
    case.supply["balance"] = 180.0
    wrong = rng.choice(["birth_date", "postcode"])
    case.facts[wrong] = "1949-11-30" if wrong == "birth_date" else "Z0 000"

    def plan(matches: bool) -> Plan:
        yield from case.identify()
        if matches:
            yield from case.read()
            yield say("What shall I do? <DONE>")
            return
        yield case.ticket("identity", "high", ["wrong_data"])
        yield say("I could not confirm who you are. My colleagues will contact you. <DONE>")

    query = case.ask(
        "what do I owe for the {kind} at {address}? Close it, too.",
        kind=case.kind,
        address=case.address,
    )
    goal = f"You want to know the balance for {case.address} and to close the {case.kind}."
    truth = {"matches": False}
    return case.draft("wrong_identity", query, plan, truth, "supplies", goal)


def third_party(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Somebody who is not named on the file writes for the customer: nothing is told."""
    case = SupplyFile(rng, task_ref, names)
    writer, other = rng.sample([f for f in names.first if f != case.first], 2)
    case.customer["authorised"] = rng.choice([None, f"{other} {case.last}"])
    who = rng.choice(["mother", "father", "neighbour", "uncle"])

    def plan(named: bool) -> Plan:
        yield call("find_customer", name=case.name)
        if case.namesake:
            yield say(f"Which phone number does {case.name} have on file with us?")
            yield call("find_customer", name=case.name, phone=case.facts["phone"])
        yield call("get_customer", customer_id=case.customer_id)
        if not named:
            yield case.ticket("identity", "normal", ["third_party"])
        yield say(f"I can only speak with {case.name} or somebody named on the file. <DONE>")

    query = (
        f"Hello, this is {writer} {case.last}. I write for my {who}, {case.name}: please close the"
        f" {case.kind} at {case.address}, and tell me what is still open."
    )
    case.speaker = f"{writer} {case.last}"
    goal = f"You write for your {who}, {case.name}, whose data you know; you are not the customer."
    return case.draft("third_party", query, plan, {"named": False}, "supplies", goal)


TEMPLATES = (
    Template("disputed_bill", disputed_bill),
    Template("instalments", instalments),
    Template("switch_tariff", switch_tariff),
    Template("move_out", move_out),
    Template("outage_credit", outage_credit),
    Template("leak_allowance", leak_allowance),
    Template("faulty_meter", faulty_meter),
    Template("missed_visit", missed_visit),
    Template("wrong_identity", wrong_identity, ordinary=False),
    Template("third_party", third_party, ordinary=False),
)
