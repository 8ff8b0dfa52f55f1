"""How full-size templates draft a task: a customer with several records, private facts, one plan.

As in compact templates, a plan is a function from verdicts to the expert's turns; called with the
true verdicts it gives the golden path, and a fact counts as deciding when flipping its verdict
changes the golden calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any

from tbrl.domains.base import FROZEN_NOW, DemoTurn, Drafted, Names
from tbrl.types import GradingSpec, JsonObject, PublicTask, Task, ToolInteraction

Plan = Iterator[DemoTurn]

TODAY = date.fromisoformat(FROZEN_NOW[:10])
ASK_IDENTITY = "Gladly. To find your file: what is your date of birth, and your postcode?"
ASK_PHONE = "We have two customers of that name. Which phone number do you have on file with us?"

PERSONAS = (
    "a night-shift nurse, tired and in a hurry; short sentences, no small talk",
    "a retired teacher, formal and precise; wants each point confirmed once",
    "a young father with a child on his arm; friendly, easily distracted",
    "a baker who writes between two batches; blunt, but fair",
    "a careful accountant; asks what it costs before agreeing to anything",
    "a student who apologises a lot; informal, lower case, polite",
    "a site foreman used to giving orders; impatient with questions, gives answers in one line",
    "a violin maker, talkative; mentions the weather, never loses the thread",
    "someone new to the country; simple words, grateful for clear answers",
    "a regular customer who has had bad experience elsewhere; sceptical, calms down when helped",
)

GREETINGS = (
    "Hello, this is {name}.",
    "Good morning, {name} here.",
    "Hi, my name is {name}.",
    "{name} writing.",
)
ASIDES = (
    "",
    "",
    " I am at work until four, so writing suits me best.",
    " Sorry if this has come up before.",
    " Thanks in advance!",
)

ASKED_BY: dict[str, list[str]] = {
    "birth_date": ["birth", "born", "birthday"],
    "postcode": ["postcode", "post code", "postal code"],
    "phone": ["phone", "telephone"],
}
SAYS = {
    "birth_date": "My date of birth is {value}.",
    "postcode": "The postcode is {value}.",
    "phone": "My phone number is {value}.",
}


def days_from_today(days: int) -> str:
    """ISO date; negative = in the past."""
    return (TODAY + timedelta(days=days)).isoformat()


class CaseFile:
    """One customer's case. Domains add records; what the user knows privately is `fact`s."""

    domain: str

    def __init__(self, rng: random.Random, task_ref: str, names: Names) -> None:
        self.rng = rng
        self.task_ref = task_ref
        self.split = names.split
        self.first, self.last = rng.choice(names.first), rng.choice(names.last)
        self.name = f"{self.first} {self.last}"
        self._base = rng.randrange(*names.ids)
        self._taken: set[int] = set()
        self.rows: dict[str, list[JsonObject]] = {}
        self.facts: dict[str, str] = {}
        """What the user tells; not always what the file holds."""
        self._asked_by: dict[str, list[str]] = {}
        self._says: dict[str, str] = {}
        self._persona = rng.choice(PERSONAS)
        self.speaker = self.name
        """Who writes: the customer, unless a template says otherwise."""
        self.customer = self._person()
        self.customer_id = int(self.customer["id"])
        self.fact("name", self.name, ["full name", "your name"], "My name is {value}.")
        for name in ("birth_date", "postcode"):
            self.fact(name, self.customer[name], ASKED_BY[name], SAYS[name])
        self.namesake = rng.random() < 0.3
        """Another customer of the same name is on file: the phone number decides."""
        if self.namesake:
            self._person()
            self.fact("phone", self.customer["phone"], ASKED_BY["phone"], SAYS["phone"])

    def new_id(self) -> int:
        """A five-digit id of the split, not used before in this case."""
        free = [n for n in range(100) if n not in self._taken]
        number = self.rng.choice(free)
        self._taken.add(number)
        return self._base * 100 + number

    def even(self) -> bool:
        """A fair coin."""
        return self.rng.random() < 0.5

    def add(self, table: str, row: JsonObject) -> JsonObject:
        """Put a row into the initial state."""
        self.rows.setdefault(table, []).append(row)
        return row

    def fact(self, name: str, value: object, asked_by: list[str], says: str) -> None:
        """Something that only the user knows, told when one of the words `asked_by` is asked."""
        self.facts[name] = str(value)
        self._asked_by[name] = asked_by
        self._says[name] = says

    def ask(self, *forms: str, **words: object) -> str:
        """A query: a greeting with the name, one of the forms, perhaps something beside the
        point."""
        greeting = self.rng.choice(GREETINGS).format(name=self.name)
        wish = self.rng.choice(forms).format(**words)
        return f"{greeting} {wish[0].upper()}{wish[1:]}{self.rng.choice(ASIDES)}"

    def identify(self) -> Plan:
        """The opening of every plan: ask, find, verify. Plans say `yield from case.identify()`."""
        yield DemoTurn(text=ASK_IDENTITY)
        yield DemoTurn(calls=(("find_customer", {"name": self.name}),))
        if self.namesake:
            yield DemoTurn(text=ASK_PHONE)
            found = {"name": self.name, "phone": self.facts["phone"]}
            yield DemoTurn(calls=(("find_customer", found),))
        told = {"birth_date": self.facts["birth_date"], "postcode": self.facts["postcode"]}
        verify = {"customer_id": self.customer_id, **told}
        yield DemoTurn(calls=(("verify_identity", verify),))

    def ticket(self, kind: str, priority: str, tags: list[str], **more: Any) -> DemoTurn:
        arguments = {
            "customer_id": self.customer_id,
            "type": kind,
            "priority": priority,
            "tags": tags,
            **more,
        }
        return DemoTurn(calls=(("open_ticket", arguments),))

    def draft(
        self,
        template: str,
        query: str,
        plan: Callable[..., Plan],
        truth: Mapping[str, bool],
        choose: str,
        goal: str,
        rubrics: tuple[str, ...] = (),
    ) -> Drafted:
        """The task and its demonstration. `choose` names the table among whose records the right
        one must be found; `goal` is what the user wants, in prose, for a language model."""
        golden = tuple(plan(**truth))
        calls = _calls(golden)
        live = [
            name
            for name, verdict in truth.items()
            if _calls(tuple(plan(**{**truth, name: not verdict}))) != calls
        ]
        public = PublicTask(
            task_ref=self.task_ref,
            domain=self.domain,
            scenario_id=f"{self.domain}/full",
            query=query,
            user_context={
                "facts": self.facts,
                "asked_by": self._asked_by,
                "says": self._says,
                "persona": self._persona,
                "unknown": "I don't know that, sorry.",
                "goodbye": "Thank you, that is all.",
                "text": self._prose(goal),
            },
            initial_state_patch=self.rows,
            template=template,
            knobs={
                "records": len(self.rows[choose]),
                "of": choose,
                "facts": live,
                "steps": len(calls),
                "turns": len(golden),
            },
            split=self.split,
            eval_only=self.split == "heldout",
        )
        return Drafted(Task(public, GradingSpec(self.task_ref, calls, rubrics)), golden)

    def _prose(self, goal: str) -> str:
        knows = "\n".join(
            f"- {self._says[name].replace('{value}', value)}" for name, value in self.facts.items()
        )
        return (
            f"You are {self.speaker}: {self._persona}.\n{goal}\n"
            f"What you know, to be told only when asked:\n{knows}"
        )

    def _person(self) -> JsonObject:
        number = self.new_id()
        born = date(1950, 1, 1) + timedelta(days=self.rng.randrange(19_000))
        return self.add(
            "customers",
            {
                "id": number,
                "name": self.name,
                "phone": f"0{self.rng.randint(20, 79)} {number} {self.rng.randint(10, 99)}",
                "birth_date": born.isoformat(),
                "postcode": f"{self.rng.choice('BCDGKLMNPRST')}{self.rng.randint(1, 9)}"
                f" {self.rng.randint(100, 999)}",
            },
        )


def _calls(turns: tuple[DemoTurn, ...]) -> tuple[ToolInteraction, ...]:
    return tuple(ToolInteraction(name, args) for turn in turns for name, args in turn.calls)
