"""The scripted user tells what it is asked for, and nothing else."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tbrl.types import PublicTask, Turn, UserReply
from tbrl.usage import NOTHING
from tbrl.users.scripted import ScriptedUser, asked_facts, reply_to

CONTEXT = {
    "facts": {"pin": "731", "delivery_address": "4 Elm Road", "email": "a@b.c"},
    "asked_by": {"email": ["e-mail", "email"]},
    "says": {"pin": "It is {value}."},
    "script": ["And send a receipt.", "That was fast."],
}


def test_a_fact_is_told_when_asked_for_in_its_own_phrase() -> None:
    assert reply_to(CONTEXT, ["What is your PIN?"]) == "It is 731."
    assert reply_to(CONTEXT, ["Your address, please."]) == "My delivery address is 4 Elm Road."
    assert reply_to(CONTEXT, ["Your E-Mail?"]) == "My email is a@b.c."


def test_several_facts_are_told_in_the_order_of_the_question() -> None:
    assert asked_facts(CONTEXT, "First the e-mail, then the PIN.") == ["email", "pin"]


def test_keywords_are_whole_words() -> None:
    assert asked_facts(CONTEXT, "I am spinning the emails' addressee.") == []


def test_an_unknown_question_reveals_nothing_and_keeps_the_script() -> None:
    assert reply_to(CONTEXT, ["How old are you?"]) == "I don't know."
    assert reply_to(CONTEXT, ["How old are you?", "Fine."]) == "And send a receipt."


def test_script_lines_come_in_order_and_then_the_user_leaves() -> None:
    said = ["Done."]
    assert reply_to(CONTEXT, said) == "And send a receipt."
    assert reply_to(CONTEXT, [*said, "Sent."]) == "That was fast."
    assert reply_to(CONTEXT, [*said, "Your PIN?", "Sent."]) == "That was fast."
    assert reply_to(CONTEXT, [*said, "Sent.", "Bye."]) == "Thanks. <DONE>"


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_no_fact_is_told_unasked(said: list[str]) -> None:
    reply = reply_to(CONTEXT, said)
    for fact, value in CONTEXT["facts"].items():
        assert (value in reply) == (fact in asked_facts(CONTEXT, said[-1]))


def test_the_simulator_hears_only_assistant_texts() -> None:
    task = PublicTask("r", "d", "d/compact", "q", CONTEXT, {}, "t")
    turns = [Turn("user", "What is my PIN?"), Turn("assistant", "Hello.")]
    reply = asyncio.run(ScriptedUser().reply(task, turns, seed=3))
    assert reply == UserReply("And send a receipt.", NOTHING)
    assert asyncio.run(ScriptedUser().reply(task, turns, seed=4)) == reply
