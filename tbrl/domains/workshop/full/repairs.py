"""Task templates about repairs: extra work, collecting, complaints, loan cars meanwhile."""

from __future__ import annotations

import random
from datetime import date

from tbrl.domains.base import Drafted, Names
from tbrl.domains.casework import TODAY, Plan, days_from_today
from tbrl.domains.drafting import call, say
from tbrl.domains.workshop.full.case import WORKS, JobFile
from tbrl.domains.workshop.full.seed import DAYS
from tbrl.types import JsonObject

STORAGE_A_DAY, STORAGE_MOST = 12.0, 120.0
EXTRA_LIMIT = 300.0
DIAGNOSIS = 60.0
REWORK_DAYS, REWORK_KM = 365, 20_000
LOAN_CAR, COVER = 25.0, 15.0
TOMORROW = DAYS[1]


def extra_work(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """The user agrees or not; tier, amount and stock decide what agreeing leads to."""
    case = JobFile(rng, task_ref, names)
    work = rng.choice(case.works(case.vehicle))
    part = WORKS[work]
    cost = float(rng.choice([rng.randrange(90, 300, 5), rng.randrange(305, 600, 5)]))
    job = case.job(
        case.vehicle,
        work="inspection",
        status="waiting_approval",
        day=days_from_today(0),
        extra_cost=cost,
        extra_part=part,
    )
    for vehicle in case.vehicles[1:]:
        case.job(
            vehicle,
            work="inspection",
            status="waiting_approval",
            day=days_from_today(0),
            extra_cost=95.0,
            extra_part="BP-2",
        )
    stock = rng.random() < 0.65
    case.add("parts", {"code": part, "stock": rng.randint(1, 4) if stock else 0})
    agrees = rng.random() < 0.8
    said = ("Yes, I agree, go ahead.", "No, I do not agree. Leave it out.")[not agrees]
    case.fact("agree", said, ["agree", "approve", "accept", "go ahead"], "{value}")
    truth = {
        "agrees": agrees,
        "fleet": case.tier == "fleet",
        "large": cost > EXTRA_LIMIT,
        "stock": stock,
    }

    def plan(agrees: bool, fleet: bool, large: bool, stock: bool) -> Plan:
        yield from case.identify()
        yield from case.read(job)
        yield say(f"We found that the {work} must be done. It costs {cost:g} extra. Do you agree?")
        if not agrees:
            yield call("change_job", job_id=job["id"], status="in_progress")
            yield say("We leave it out and go on with the rest. <DONE>")
        elif fleet or large:
            priority = "normal" if fleet else "high"
            tag = "fleet" if fleet else "signature"
            yield case.ticket("approval", priority, [tag], job_id=job["id"])
            yield say(f"{cost:g} euros need a signature. My colleagues will ask for it. <DONE>")
        else:
            yield call("get_parts", codes=[part])
            if stock:
                yield call("reserve_parts", job_id=job["id"], codes=[part])
                total = job["estimate"] + cost
                yield call("change_job", job_id=job["id"], status="in_progress", estimate=total)
                yield say(f"We go on. With {cost:g} extra the estimate is {total:g}. <DONE>")
            else:
                yield case.ticket("parts", "normal", ["extra_work"], job_id=job["id"])
                yield say(f"The part has to come first; then it costs {cost:g} extra. <DONE>")

    query = case.ask(
        "you left a message that something more was found on my {model}. What is it?",
        "I got your call about the {model}. What did the mechanics find?",
        model=case.model,
    )
    goal = f"You want to hear what was found on your {case.model} and decide."
    return case.draft("extra_work", query, plan, truth, "jobs", goal)


def collect(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Storage by days and tier; then the vehicle, or a ticket when it is not paid."""
    case = JobFile(rng, task_ref, names)
    waited = rng.choice([1, 3, 4, 6, 7, 9, 12, 20])
    work = rng.choice(case.works(case.vehicle))
    paid = case.even()
    job = case.job(
        case.vehicle,
        work=work,
        status="ready",
        day=days_from_today(-waited),
        ready_on=days_from_today(-waited),
        paid=int(paid),
    )
    for vehicle in case.vehicles[1:]:
        case.job(
            vehicle,
            work=rng.choice(case.works(vehicle)),
            status="ready",
            day=days_from_today(-2),
            ready_on=days_from_today(-2),
            paid=int(not paid),
        )
    days = waited - (7 if case.tier == "plus" else 3)
    amount = min(STORAGE_MOST, STORAGE_A_DAY * max(days, 1))
    truth = {
        "storage": days > 0 and case.tier != "fleet",
        "released": paid or case.tier == "fleet",
    }

    def plan(storage: bool, released: bool) -> Plan:
        yield from case.identify()
        yield from case.read(job)
        cost = "There is no storage to pay."
        if storage:
            yield call("add_charge", job_id=job["id"], kind="storage", amount=amount)
            cost = f"Storage costs {amount:g} euros."
        if released:
            yield call("change_job", job_id=job["id"], status="collected")
            yield say(f"{cost} Your vehicle is released; the keys are at the desk. <DONE>")
        else:
            yield case.ticket("billing", "normal", ["unpaid"], job_id=job["id"])
            yield say(f"{cost} The bill is open, so I cannot release it yet. <DONE>")

    query = case.ask(
        "I want to pick up my {model} this afternoon. Please get it ready.",
        "is my {model} done? Then I will collect it today.",
        model=case.model,
    )
    rubrics = (f'Does the final message mention "{amount:g}"?',) if truth["storage"] else ()
    goal = f"You want to collect your {case.model} today."
    return case.draft("collect", query, plan, truth, "jobs", goal, rubrics)


def complaint(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Young and not driven far: free rework. Otherwise a diagnosis, if the user pays for it."""
    case = JobFile(rng, task_ref, names)
    works = rng.sample(case.works(case.vehicle), 3)
    age = rng.choice([30, 120, 250, 360, 380, 600])
    before = rng.randrange(40_000, 90_000, 250)
    old = case.job(
        case.vehicle,
        work=works[0],
        status="collected",
        day=days_from_today(-age),
        paid=1,
        mileage_out=before,
    )
    for work, days in zip(works[1:], rng.sample([45, 90, 200, 420, 500], 2), strict=True):
        case.job(
            case.vehicle,
            work=work,
            status="collected",
            day=days_from_today(-days),
            paid=1,
            mileage_out=before + rng.randrange(500, 3000, 50),
        )
    driven = rng.choice([4_000, 12_000, 19_500, 21_000, 26_000])
    safe, accepts = case.even(), case.even()
    case.fact(
        "mileage",
        before + driven,
        ["kilometres", "kilometers", "mileage", "odometer", "km"],
        "It shows {value} km.",
    )
    feels = "It drives safely" if safe else "It does not feel safe to drive"
    case.fact("safe", feels, ["safe", "safely", "driven", "drive"], "{value}.")
    answer = ("Yes, I accept the fee", "No, I will not pay for that")[not accepts]
    case.fact("fee", answer, ["accept", "fee", "diagnosis costs"], "{value}.")
    truth = {
        "young": age <= REWORK_DAYS,
        "near": driven <= REWORK_KM,
        "safe": safe,
        "accepts": accepts,
    }

    def plan(young: bool, near: bool, safe: bool, accepts: bool) -> Plan:
        yield from case.identify()
        yield from case.read(old)
        yield say("How many kilometres does it show now, and can it be driven safely?")
        if young and near:
            yield from case.book("rework", 2.0, 0.0, TOMORROW, rework_of=old["id"])
            tags = ["rework"] if safe else ["rework", "unsafe"]
            priority = "normal" if safe else "high"
            yield case.ticket("complaint", priority, tags, job_id=old["id"])
            day = case.first_day(case.bay, TOMORROW, 2.0)
            yield say(f"We repair it again on {day}, at no cost. <DONE>")
            return
        yield say(f"Free rework is over. A diagnosis costs {DIAGNOSIS:g}. Do you accept the fee?")
        if accepts:
            yield from case.book("diagnosis", 1.0, DIAGNOSIS, TOMORROW)
            day = case.first_day(case.bay, TOMORROW, 1.0)
            yield say(f"The diagnosis is on {day} and costs {DIAGNOSIS:g} euros. <DONE>")
        else:
            yield case.ticket("complaint", "low", ["fee_declined"], job_id=old["id"])
            yield say("I booked nothing and passed your complaint on. <DONE>")

    query = case.ask(
        "you repaired the {work} of my {model}, and the same trouble is back.",
        "the {work} on my {model} is playing up again although you fixed it.",
        work=works[0],
        model=case.model,
    )
    goal = f"You want the {works[0]} of your {case.model} put right."
    return case.draft("complaint", query, plan, truth, "jobs", goal)


def loan_car(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    """Age and licence allow it; need gives the class, tier and age the charges."""
    case = JobFile(rng, task_ref, names)
    job = case.booked(rng.choice([3, 7, 8, 9]))
    age = rng.choice([22, 23, 24, 31, 45, 60])
    case.customer["birth_date"] = date(
        TODAY.year - age, rng.randint(1, 2), rng.randint(1, 28)
    ).isoformat()
    case.facts["birth_date"] = case.customer["birth_date"]
    return _loan_car(case, job, age)


def _loan_car(case: JobFile, job: JsonObject, age: int) -> Drafted:
    rng = case.rng
    licence = rng.choice([2008, 2019, 2023, 2025]) if age > 25 else rng.choice([2022, 2024, 2025])
    case.fact("licence", licence, ["licence", "license"], "I have had my licence since {value}.")
    dog, free = case.even(), rng.random() < 0.75
    for car_class in ("small", "estate"):
        there = free if (car_class == "estate") == dog else not free
        case.add("loan_cars", {"class": car_class, "free": 2 if there else 0})
    truth = {
        "allowed": age >= 23 and licence <= 2024,
        "free": free,
        "standard": case.tier == "standard",
        "young": age < 25,
    }

    def plan(allowed: bool, free: bool, standard: bool, young: bool) -> Plan:
        yield from case.identify()
        yield from case.read(job)
        yield say("Since which year have you had your driving licence?")
        if not allowed:
            yield say("I am sorry: age or licence do not allow a loan car. <DONE>")
            return
        yield call("search_help", query="loan car classes")
        yield call("get_loan_cars")
        car_class = "estate" if dog else "small"
        if not free:
            yield case.ticket("scheduling", "normal", ["loan_car"], job_id=job["id"])
            yield say(f"No {car_class} car is free. My colleagues will write to you. <DONE>")
            return
        yield call("lend_car", job_id=job["id"], car_class=car_class, extra_cover=young)
        if standard:
            yield call("add_charge", job_id=job["id"], kind="loan_car", amount=LOAN_CAR)
        if young:
            yield call("add_charge", job_id=job["id"], kind="cover", amount=COVER)
        total = LOAN_CAR * standard + COVER * young
        yield say(f"A {car_class} car is yours for that day; it costs {total:g} euros. <DONE>")

    who = "I travel with a large dog." if dog else "It is only me."
    query = case.ask(
        "while my {model} is with you I need a car. {who}",
        "can I have a loan car when you repair the {model}? {who}",
        model=case.model,
        who=who,
    )
    goal = f"You want a loan car while your {case.model} is repaired. {who}"
    return case.draft("loan_car", query, plan, truth, "jobs", goal)
