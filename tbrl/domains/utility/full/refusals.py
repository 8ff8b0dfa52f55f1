"""Task templates in which one shared rule decides: stop, and hand the case to colleagues."""

from __future__ import annotations

import random

from tbrl.domains.base import Drafted, Names
from tbrl.domains.casework import Plan
from tbrl.domains.drafting import call, say
from tbrl.domains.utility.full.case import SupplyFile


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
