"""The scripted user: knows facts, reveals the ones it is asked for, never sees a tool.

What it knows is in the task's `user_context`:

    facts      {"pin": "731", "address": "4 Elm Road"}
    asked_by   {"pin": ["pin", "code"]}       words that ask for a fact; default: its name's words
    says       {"pin": "It is {value}."}      how it is told; default "My pin is 731."
    script     ["And please send a receipt."] said in this order when nothing is asked
    unknown    "I don't know."                to a question about something else
    goodbye    "Thanks."                      when nothing is asked and the script is through

Stateless: which script line is next follows from the visible conversation alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tbrl.types import PublicTask, Turn, UserReply

DONE = "<DONE>"


class ScriptedUser:
    """Implements interfaces.UserSimulator."""

    async def reply(self, task: PublicTask, visible: Sequence[Turn], seed: int) -> UserReply:
        """Next user turn. The seed has no influence: a script has one way to go."""
        said = [t.text for t in visible if t.role == "assistant"]
        return UserReply(reply_to(task.user_context, said))


def reply_to(context: Mapping[str, object], said: Sequence[str]) -> str:
    """The user's reply to the last of the assistant's texts `said`.

    Facts asked for are told in the order in which they are asked. A text that asks for none is
    answered with `unknown` if it holds a question mark, else with the next script line, else with
    `goodbye`, which ends the conversation.
    """
    last = said[-1] if said else ""
    told = [_tell(context, fact) for fact in asked_facts(context, last)]
    if told:
        return " ".join(told)
    if "?" in last:
        return str(context.get("unknown", "I don't know."))
    script = context.get("script", ())
    assert isinstance(script, list | tuple), "user_context: script must be a list"
    used = sum(_moves_script(context, text) for text in said[:-1])
    if used < len(script):
        return str(script[used])
    return f"{context.get('goodbye', 'Thanks.')} {DONE}"


def asked_facts(context: Mapping[str, object], text: str) -> list[str]:
    """Names of the facts that the text asks for, by first mention."""
    facts = context.get("facts", {})
    assert isinstance(facts, Mapping)
    asked_by = context.get("asked_by", {})
    assert isinstance(asked_by, Mapping)
    places: list[tuple[int, str]] = []
    for fact in facts:
        words = asked_by.get(fact, str(fact).split("_"))
        hits = [m.start() for w in words for m in _word(str(w)).finditer(text)]
        if hits:
            places.append((min(hits), str(fact)))
    return [fact for _, fact in sorted(places)]


def _moves_script(context: Mapping[str, object], text: str) -> bool:
    return "?" not in text and not asked_facts(context, text)


def _tell(context: Mapping[str, object], fact: str) -> str:
    facts, says = context["facts"], context.get("says", {})
    assert isinstance(facts, Mapping) and isinstance(says, Mapping)
    phrase = str(says.get(fact, f"My {fact.replace('_', ' ')} is {{value}}."))
    return phrase.replace("{value}", str(facts[fact]))


def _word(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
