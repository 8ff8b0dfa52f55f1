"""Task templates about appointments: another day, cancelling, recalls, the yearly service."""

from __future__ import annotations

import random

from tbrl.domains.base import Drafted, Names
from tbrl.domains.casework import Plan, days_from_today
from tbrl.domains.drafting import call, say
from tbrl.domains.workshop.full.case import WORKS, JobFile

LATE_CHANGE, SAME_DAY = 35.0, 60.0
PRICES = {"petrol": 189.0, "diesel": 219.0, "hybrid": 209.0, "electric": 149.0}


def move_job(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """No room on the new day: a ticket. Otherwise a charge by notice and tier, and the move."""
    case = JobFile(rng, task_ref, names)
    notice = rng.choice([0, 1, 2, 3, 7, 8])
    job = case.booked(notice)
    new_day = case.day(9, 17)
    room = rng.random() < 0.7
    case.set_free(new_day, case.bay, job["hours"] + 1 if room else job["hours"] - 1)
    amount = SAME_DAY if notice == 0 and case.tier == "standard" else LATE_CHANGE
    case.fact("day", new_day, ["day", "when"], "{value} would suit me.")
    truth = {
        "room": room,
        "near": notice < 3,
        "pays": case.tier == "standard" or (case.tier == "plus" and notice == 0),
        "fleet": case.tier == "fleet",
    }

    def plan(room: bool, near: bool, pays: bool, fleet: bool) -> Plan:
        yield from case.identify()
        yield from case.read(job)
        yield say("Which day would suit you?")
        wanted = {"bay": case.bay, "from_day": new_day, "hours": job["hours"]}
        yield call("find_slots", **wanted)
        if not room:
            priority = "high" if fleet else "normal"
            yield case.ticket("scheduling", priority, ["full_day"], job_id=job["id"])
            yield say(f"{new_day} is full. My colleagues will find a day and write. <DONE>")
            return
        if near and pays:
            yield call("add_charge", job_id=job["id"], kind="late_change", amount=amount)
        yield call("change_job", job_id=job["id"], day=new_day)
        cost = f"a late change costs {amount:g} euros" if near and pays else "at no cost"
        yield say(f"Your job is moved to {new_day}, {cost}. <DONE>")

    query = case.ask(
        "I cannot come with my {model} as booked. Can we find another day?",
        "the appointment for my {model} has to be on another day, something came up.",
        model=case.model,
    )
    charged = truth["room"] and truth["near"] and truth["pays"]
    rubrics = (f'Does the final message mention "{amount:g}"?',) if charged else ()
    goal = f"You want the booked job of your {case.model} on another day."
    return case.draft("move_job", query, plan, truth, "jobs", goal, rubrics)


def cancel_job(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """A special-order part: a ticket. Otherwise cancel, and pay back by notice and tier."""
    case = JobFile(rng, task_ref, names)
    notice = rng.choice([0, 1, 2, 2, 3, 8])
    job = case.booked(notice)
    special = rng.random() < 0.25
    part = rng.choice(["GB-8", "AX-6"]) if special else WORKS[job["work"]]
    case.add("job_parts", {"job_id": job["id"], "part": part})
    truth = {
        "special": special,
        "same_day": notice == 0,
        "fee": 0 < notice < 3 and case.tier == "standard",
    }

    def plan(special: bool, same_day: bool, fee: bool) -> Plan:
        yield from case.identify()
        yield from case.read(job)
        if special:
            yield case.ticket("billing", "normal", ["special_order"], job_id=job["id"])
            yield say("A part was ordered for you. The billing team will write to you. <DONE>")
            return
        yield call("change_job", job_id=job["id"], status="cancelled")
        if same_day:
            yield say("It is cancelled. On the same day the deposit is not paid back. <DONE>")
            return
        amount = job["deposit"] - LATE_CHANGE if fee else job["deposit"]
        yield call("refund_deposit", job_id=job["id"], amount=amount)
        yield say(f"It is cancelled, and {amount:g} euros go back to your card. <DONE>")

    query = case.ask(
        "please cancel the repair of my {model}.",
        "I no longer want the {work} done on my {model}. Cancel it, and I want my deposit back.",
        model=case.model,
        work=job["work"],
    )
    back = job["deposit"] - LATE_CHANGE if truth["fee"] else job["deposit"]
    told = () if special or notice == 0 else (f'Does the final message mention "{back:g}"?',)
    goal = f"You want to cancel the booked repair of your {case.model} and have the deposit back."
    return case.draft("cancel_job", query, plan, truth, "jobs", goal, told)


def recall(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The part in stock: book and reserve. Otherwise a ticket, urgent when it must not drive."""
    case = JobFile(rng, task_ref, names)
    part = "BM-3" if case.electric else rng.choice(["AB-1", "FH-2"])
    stop, stock = case.even(), rng.random() < 0.6
    case.vehicle |= {"recall": "R26-4", "recall_part": part, "stop_drive": int(stop)}
    case.vehicles[1] |= {"recall": "R25-9", "recall_part": "AB-1", "stop_drive": int(not stop)}
    case.add("parts", {"code": part, "stock": rng.randint(1, 4) if stock else 0})
    from_day = case.day(1, 9)
    case.fact("day", from_day, ["day", "when"], "Any day from {value} on.")
    truth = {"stock": stock, "stop": stop, "electric": case.electric}

    def plan(stock: bool, stop: bool, electric: bool) -> Plan:
        yield from case.identify()
        yield from case.read()
        yield call("get_parts", codes=[part])
        if not stock:
            tags = ["recall", "stop_drive"] if stop else ["recall"]
            yield case.ticket("parts", "high" if stop else "normal", tags)
            yield say("The part is on its way; my colleagues will write to you. <DONE>")
            return
        yield say("It is free of charge. From which day can you bring it?")
        bay = "high_voltage" if electric else "general"
        yield from case.book("recall", 2.0, 0.0, from_day, bay=bay)
        yield call("reserve_parts", job_id=case.next_job_id(), codes=[part])
        yield say(f"Booked for {case.first_day(bay, from_day, 2.0)}, at no cost. <DONE>")

    query = case.ask(
        "I got a letter from the maker: my {model} has a recall. Can you do it?",
        "there is a recall for my {model}, I want an appointment for it.",
        model=case.model,
    )
    goal = f"You want an appointment for the recall of your {case.model}."
    return case.draft("recall", query, plan, truth, "vehicles", goal)


def service(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The price is in the help articles; fuel gives bay and hours; a filter where fuel burns."""
    case = JobFile(rng, task_ref, names)
    for vehicle in case.vehicles:
        case.job(vehicle, work="yearly", kind="service", status="collected",
                 day=days_from_today(-360), paid=1)  # fmt: skip
    from_day = case.day(1, 9)
    case.fact("day", from_day, ["day", "when"], "From {value} on I can bring it.")
    stock = rng.random() < 0.7
    case.add("parts", {"code": "OF-1", "stock": rng.randint(1, 9) if stock else 0})
    fuel = case.vehicle["fuel"]
    truth = {
        "electric": case.electric,
        "old": case.vehicle["year"] <= 2015,
        "plus": case.tier == "plus",
        "stock": stock,
    }

    def plan(electric: bool, old: bool, plus: bool, stock: bool) -> Plan:
        yield from case.identify()
        yield from case.read()
        yield say("From which day can you bring it?")
        yield call("search_help", query="service prices")
        price = round((PRICES[fuel] + (30 if old else 0)) * (0.9 if plus else 1), 2)
        bay = "high_voltage" if electric else "general"
        hours = 1.5 if electric else 2.0
        yield from case.book("service", hours, price, from_day, bay=bay)
        if not electric:
            yield call("get_parts", codes=["OF-1"])
            if stock:
                yield call("reserve_parts", job_id=case.next_job_id(), codes=["OF-1"])
            else:
                new = case.next_job_id()
                yield case.ticket("parts", "normal", ["oil_filter"], job_id=new)
        day = case.first_day(bay, from_day, hours)
        yield say(f"The service is booked for {day} and costs {price:g} euros. <DONE>")

    query = case.ask(
        "my {model} is due for its yearly service.",
        "please book the annual service for my {model}, and tell me the price.",
        model=case.model,
    )
    price = (PRICES[fuel] + 30 * truth["old"]) * (0.9 if truth["plus"] else 1)
    rubrics = (f'Does the final message mention "{price:.2f}"?',)
    goal = f"You want the yearly service for your {case.model} and its price."
    return case.draft("service", query, plan, truth, "vehicles", goal, rubrics)
