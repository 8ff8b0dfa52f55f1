"""Sampled ids -> OpenAI replies, whole or streamed, by the interpreter that training uses.

An output that cannot be acted on comes back with its raw text as the content and no call; the
reading's kind and the message a policy would be told stand in the extra field `tbrl`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tbrl.episode.interpretation import Interpreter, Reading
from tbrl.episode.reasoning import THINK, THINK_END, split_reasoning
from tbrl.episode.tool_calls import XML_TAGS
from tbrl.types import JsonObject

_LONGEST_TAG = 64


@dataclass(frozen=True, slots=True)
class Reply:
    """An assistant's message as clients get it."""

    reading: Reading
    content: str
    """Visible text, `<DONE>` included; the raw text of an output that cannot be acted on."""
    tool_calls: tuple[JsonObject, ...]

    @property
    def finish_reason(self) -> str:
        if self.reading.kind == "truncated":
            return "length"
        return "tool_calls" if self.tool_calls else "stop"

    def message(self) -> JsonObject:
        """The OpenAI message."""
        message: JsonObject = {"role": "assistant", "content": self.content or None}
        if self.reading.reasoning:
            message["reasoning_content"] = self.reading.reasoning
        if self.tool_calls:
            message["tool_calls"] = list(self.tool_calls)
        return message

    def extra(self) -> JsonObject:
        """What OpenAI's fields have no place for."""
        reading = self.reading
        return {
            "kind": reading.kind,
            "rule": reading.rule,
            "done": reading.done,
            "error": reading.error,
        }


def read_reply(interpreter: Interpreter, ids: Sequence[int], finish_reason: str) -> Reply:
    """The reply that sampled ids make."""
    reading = interpreter.read(ids, finish_reason)
    if reading.kind in ("calls", "truncated"):
        content = reading.text
    else:
        text = interpreter.text(interpreter.raw_text(ids))
        content = split_reasoning(text, interpreter.reasoning_preopened).rest.strip()
    calls = tuple(
        {
            "id": f"call_{uuid.uuid4().hex}",
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False),
            },
        }
        for call in reading.calls
    )
    return Reply(reading, content, calls)


class ReplyStream:
    """Streams what is certain of a growing output: its deltas joined are the whole reply's texts.

    Held back: white space that may turn out to be trailing, an unfinished character, and all from
    the first `<` that may begin a tag.
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self.ids: list[int] = []
        """All ids so far."""
        self._read = 0
        self._sent = {"reasoning_content": "", "content": ""}

    def feed(self, ids: Sequence[int]) -> Iterator[JsonObject]:
        """Deltas that became certain with `ids`."""
        self.ids.extend(ids)
        if len(self.ids) - self._read < len(self.ids) // 100:
            return  # decoding all at every id would be quadratic in long outputs
        self._read = len(self.ids)
        text = self._interpreter.text(self._interpreter.raw_text(self.ids)).rstrip("\ufffd")
        text = _without_beginning(text, self._interpreter.control_tokens)
        preopened = self._interpreter.reasoning_preopened
        head = text.lstrip()
        if not preopened and len(head) < len(THINK) and THINK.startswith(head):
            return  # reasoning may be about to open
        split = split_reasoning(text, preopened)
        if split.closed:
            yield from self._send("reasoning_content", split.reasoning)
            tags = (*XML_TAGS, THINK, THINK_END)
            yield from self._send("content", _certain(split.rest, tags))
        else:
            yield from self._send("reasoning_content", _certain(split.reasoning, (THINK_END,)))

    def finish(self, finish_reason: str) -> tuple[Reply, list[JsonObject]]:
        """The whole reply and the deltas that were still held back; calls come whole."""
        reply = read_reply(self._interpreter, self.ids, finish_reason)
        deltas = [
            *self._send("reasoning_content", reply.reading.reasoning),
            *self._send("content", reply.content),
        ]
        if reply.tool_calls:
            calls = [{"index": i, **call} for i, call in enumerate(reply.tool_calls)]
            deltas.append({"tool_calls": calls})
        return reply, deltas

    def _send(self, field: str, text: str) -> Iterator[JsonObject]:
        new = text[len(self._sent[field]) :]
        if new:
            self._sent[field] = text
            yield {field: new}


def _without_beginning(text: str, tokens: Sequence[str]) -> str:
    """`text` without an end that may grow into one of `tokens`, which is then removed."""
    for start in range(max(0, len(text) - _LONGEST_TAG), len(text)):
        if any(token.startswith(text[start:]) for token in tokens):
            return text[:start]
    return text


def _certain(text: str, tags: Sequence[str]) -> str:
    """`text` up to where one of `tags` stands or may be about to, stripped."""
    for match in re.finditer("[" + re.escape("".join({tag[0] for tag in tags})) + "]", text):
        rest = text[match.start() : match.start() + _LONGEST_TAG]
        if any(rest.startswith(tag) or tag.startswith(rest) for tag in tags):
            return text[: match.start()].strip()
    return text.strip()
