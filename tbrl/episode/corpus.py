"""Conversations and outputs that every tokenizer, template and parser is checked on.

All of them are seeded, so two processes check the same. Hand-made outputs are in `cases`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tbrl.episode.chat_template import Message
from tbrl.types import JsonObject, ToolSpec

TOOLS: tuple[ToolSpec, ...] = (
    ToolSpec(
        "book",
        "Book an item.",
        {
            "type": "object",
            "properties": {
                "item": {"type": "string"},
                "count": {"type": "integer"},
                "price": {"type": "number"},
                "express": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "options": {"type": "object"},
                "grade": {"enum": ["gold", "silver"]},
                "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "required": ["item"],
        },
    ),
    ToolSpec("look_up", "Look.", {"type": "object", "properties": {"id": {"type": "integer"}}}),
    ToolSpec("now", "Time.", {"type": "object", "properties": {}}),
)
"""Every type of argument, and a tool without any."""

_WORDS = (
    "hello", "he", "llo", "booking", "123", "late fee", "naïve", "東京", "🚲", "a\tb", "1 < 2 > 0",
    "{x}", '"quoted"', "back\\slash", "C#", "e\u0301", "\u202ertl", "it's", "50 %", "&amp;",
)  # fmt: skip


class Corpus:
    """Seeded generator of messages."""

    def __init__(self, seed: int, reasons: bool) -> None:
        self._rng = random.Random(seed)
        self._reasons = reasons

    def conversation(self, turns: int) -> list[Message]:
        """System, user, then `turns` assistant turns with what answers each; ends with an
        assistant turn."""
        messages = [
            {"role": "system", "content": self.text()},
            {"role": "user", "content": self.text()},
        ]
        for turn in range(turns):
            message = self.assistant()
            messages.append(message)
            if turn + 1 < turns:
                messages.extend(self._answers(message))
        return messages

    def assistant(self) -> Message:
        """One assistant message: text, calls, or text before calls."""
        calls = [self._call() for _ in range(self._rng.choice((0, 1, 1, 2)))]
        content = self.text() if not calls or self._rng.random() < 0.5 else ""
        message: Message = {"role": "assistant", "content": content}
        message["reasoning_content"] = self.text() if self._reasons else ""
        if calls:
            message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        return message

    def text(self) -> str:
        """A few words; lines and paragraphs; no white space at the ends."""
        words = [self._rng.choice(_WORDS) for _ in range(self._rng.randint(1, 8))]
        separators = [self._rng.choice((" ", " ", "\n", "\n\n", "")) for _ in words]
        return "".join(w + s for w, s in zip(words, separators, strict=True)).strip()

    def _answers(self, message: Message) -> list[Message]:
        calls = message.get("tool_calls")
        if not calls:
            return [{"role": "user", "content": self.text()}]
        return [
            {"role": "tool", "name": call["function"]["name"], "content": self.text()}
            for call in calls
        ]

    def _call(self) -> JsonObject:
        tool = self._rng.choice(TOOLS)
        names = list(tool.parameters["properties"])
        chosen = [name for name in names if self._rng.random() < 0.6]
        return {"name": tool.name, "arguments": {name: self._value(name) for name in chosen}}

    def _value(self, name: str) -> Any:
        rng = self._rng
        match name:
            case "count" | "id":
                return rng.choice((0, 7, -3, 2**40))
            case "price":
                return rng.choice((0.5, -1.25, 3, 1e-3))
            case "express":
                return rng.random() < 0.5
            case "tags":
                return [self.text() for _ in range(rng.randint(0, 2))]
            case "options":
                return {"note": self.text(), "deep": {"n": [1, None, True, 0.5]}}
            case "grade":
                return rng.choice(("gold", "silver"))
            case "limit":
                return rng.choice((None, 12))
            case _:
                # The markup's own newlines must not eat the value's.
                return rng.choice(("", "\n", "\n\n")) + self.text() + rng.choice(("", "\n"))


def mutations(text: str, seed: int, count: int) -> Iterator[str]:
    """`count` damaged forms of an output: cut, doubled, dropped, swapped or invented pieces."""
    rng = random.Random(seed)
    pieces = (
        "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=x>", "</parameter>",
        "<think>", "</think>", "<|im_end|>", "<|im_start|>", ">", "\n", '{"name":', "}", "\x00",
        "\ud7ff", "<DONE>", "\\u0000", "]]>", "__import__('os')",
    )  # fmt: skip
    for _ in range(count):
        a, b = sorted(rng.randint(0, len(text)) for _ in range(2))
        yield rng.choice(
            (
                text[:a],
                text[:a] + text[b:],
                text[:b] + text[a:],
                text[:a] + rng.choice(pieces) + text[a:],
                text[:a] + rng.choice(pieces) + text[b:],
                text[b:] + text[:a],
            )
        )
