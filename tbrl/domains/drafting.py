"""How compact templates draft a task: one plan, read twice.

A plan is a function from the verdicts of its decisions to the expert's turns. Called with the
true verdicts it gives the golden path. Called with one verdict flipped it gives the rest of a
conversation that went wrong there. So a template states each branch once:

    def plan(late: bool, held: bool) -> Plan:
        yield call("get_rental", rental_id="R412")
        yield verdict("late", 3, late)
        if late:
            yield call("charge_fee", rental_id="R412", amount=20)
        yield verdict("deposit", "held", held)
        yield call("return_item", rental_id="R412", refund=held)
        yield say("All done. <DONE>")

Verdicts are the reasoning of the turn that follows them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tbrl.domains.base import Decision, DemoTurn, Drafted, Names
from tbrl.types import GradingSpec, JsonObject, PublicTask, Task, ToolInteraction

Plan = Iterator[DemoTurn | str]
Steps = tuple[DemoTurn | Decision, ...]

ASK_PIN = "What is your PIN?"
ALL_DONE = "All done. <DONE>"
TICKET_OPEN = "I opened a ticket. <DONE>"

FIRST_ID, LAST_ID = 100, 999
_SPREAD = 361
"""Coprime to the number of ids."""


def call(tool: str, /, **arguments: Any) -> DemoTurn:
    """A turn that makes one call."""
    return DemoTurn(calls=((tool, arguments),))


def say(text: str, /) -> DemoTurn:
    """A turn that speaks to the user."""
    return DemoTurn(text=text)


def verdict(fact: str, value: object, answer: bool) -> str:
    """The deciding fact as seen, and what it means: `late=3: yes`."""
    shown = str(value).lower() if isinstance(value, bool) else value
    return f"{fact}={shown}: {'yes' if answer else 'no'}"


def record_number(rng: random.Random, names: Names) -> int:
    """A record number of the split: its range, spread over three digits by a bijection, so
    that splits stay disjoint but every digit occurs in every place in each of them."""
    low, high = names.ids
    size = LAST_ID - FIRST_ID + 1
    return FIRST_ID + (rng.randrange(low, high) - FIRST_ID) * _SPREAD % size


class Case:
    """What every compact task has: a person, a record, a PIN, an opening line. Domains add facts,
    drawn evenly over their verdicts, so that guessing does not pay."""

    domain: str
    letter: str
    """Record ids are this letter and three digits."""

    def __init__(self, rng: random.Random, task_ref: str, names: Names) -> None:
        self.rng = rng
        self.task_ref = task_ref
        self.split = names.split
        self.name = f"{rng.choice(names.first)} {rng.choice(names.last)}"
        self.number = record_number(rng, names)
        self.id = f"{self.letter}{self.number}"
        self.pin = rng.randint(100, 999)

    def even(self) -> bool:
        """A fair coin."""
        return self.rng.random() < 0.5

    def other_pin(self) -> int:
        """A PIN that is not the case's."""
        return self.rng.choice([p for p in range(100, 1000) if p != self.pin])

    def ask(self, *forms: str, **words: object) -> str:
        """A query: perhaps a greeting, then one of the forms with `{id}` and the words filled."""
        greeting = self.rng.choice(["", "Hi. ", f"Hi, {self.name.split()[0]} here. "])
        return greeting + self.rng.choice(forms).format(id=self.id, **words)

    def patch(self) -> dict[str, list[JsonObject]]:
        """Initial state patch: the case's rows."""
        raise NotImplementedError

    def draft(
        self,
        template: str,
        query: str,
        plan: Callable[..., Plan],
        truth: Mapping[str, bool],
        pin: int | None = None,
    ) -> Drafted:
        """The task, its golden calls and its demonstration, from one plan.

        `truth` names the plan's decisions in the order in which they are made, with the right
        verdicts. `pin` is what the user will say when asked for it.
        """
        golden = _turns(plan, truth)
        live = [name for name in truth if _flipped(plan, truth, name) != golden]
        public = PublicTask(
            task_ref=self.task_ref,
            domain=self.domain,
            scenario_id=f"{self.domain}/compact",
            query=query,
            user_context={
                "facts": {} if pin is None else {"pin": str(pin)},
                "says": {"pin": "My PIN is {value}."},
                "persona": "brief and polite",
            },
            initial_state_patch=self.patch(),
            template=template,
            knobs={"facts": live, "turns": len(golden), "records": 1},
            split=self.split,
            eval_only=self.split == "heldout",
        )
        calls = tuple(ToolInteraction(t, a) for turn in golden for t, a in turn.calls)
        demo = _tree(plan, truth, tuple(live), golden, 0)
        return Drafted(Task(public, GradingSpec(self.task_ref, calls)), demo)


def _turns(plan: Callable[..., Plan], verdicts: Mapping[str, bool]) -> tuple[DemoTurn, ...]:
    """Run the plan; reasoning lines join the turn that follows them."""
    turns: list[DemoTurn] = []
    lines: list[str] = []
    for step in plan(**verdicts):
        if isinstance(step, str):
            lines.append(step)
        else:
            turns.append(replace(step, reasoning="\n".join(lines)))
            lines = []
    return tuple(turns)


def _flipped(
    plan: Callable[..., Plan], truth: Mapping[str, bool], name: str
) -> tuple[DemoTurn, ...]:
    return _turns(plan, {**truth, name: not truth[name]})


def _tree(
    plan: Callable[..., Plan],
    truth: Mapping[str, bool],
    names: tuple[str, ...],
    golden: tuple[DemoTurn, ...],
    start: int,
) -> Steps:
    """Golden turns from `start` on, a Decision before the first turn that a verdict changes."""
    if not names:
        return golden[start:]
    wrong = _flipped(plan, truth, names[0])
    at = start
    while at < min(len(golden), len(wrong)) and golden[at] == wrong[at]:
        at += 1
    rest = _tree(plan, truth, names[1:], golden, at)
    return (*golden[start:at], Decision(names[0], right=rest, wrong=(wrong[at:],)))
