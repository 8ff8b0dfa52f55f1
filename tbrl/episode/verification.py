"""Replaying recorded outputs through both readers (`stage=verify`).

Two kinds of recording: episodes of a run (token ids, and the turns they were read as), or bare
outputs. A difference in a regular output, or between a record and its own ids, is a failure; how
irregular outputs fare in the serving stack is listed by kind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tbrl.episode.chat_template import Message
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.messages import message_of
from tbrl.episode.parity import Difference
from tbrl.episode.rendering import Renderer
from tbrl.types import Episode, ToolSpec, Turn


@dataclass(frozen=True, slots=True)
class Output:
    """One recorded output of the policy."""

    where: str
    text: str
    """Raw text, special tokens included."""
    finish_reason: str
    tools: tuple[ToolSpec, ...]

    @classmethod
    def of_ids(
        cls, where: str, ids: Sequence[int], tools: tuple[ToolSpec, ...], interpreter: Interpreter
    ) -> Output:
        """A sampled turn; one without its closing token was cut by the token limit."""
        text = interpreter.raw_text(ids)
        closed = text.endswith(interpreter.control_tokens)
        return cls(where, text, "stop" if closed else "length", tools)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a replay found."""

    total: int
    """Outputs."""
    compared: int
    """Regular outputs: read by both sides and compared."""
    differences: tuple[Difference, ...]
    irregular: dict[str, int]
    """{`our kind and rule -> what the serving parser makes of it`: outputs}."""


def verify_outputs(
    outputs: Iterable[Output], tokenizer: Any, interpreter: Interpreter
) -> VerifyReport:
    """Read every output with both parsers. Imports vLLM."""
    from tbrl.episode.serving_parser import ServingParser, compare

    differences: list[Difference] = []
    irregular: Counter[str] = Counter()
    readers: dict[str, tuple[Interpreter, Any]] = {}
    total = compared = 0
    for output in outputs:
        total += 1
        key = json.dumps([tool.as_function() for tool in output.tools], sort_keys=True)
        if key not in readers:
            own = interpreter.with_tools(output.tools)
            options = (own.tool_format, own.reasoning_preopened)
            readers[key] = (own, ServingParser(tokenizer, output.tools, *options))
        own, parser = readers[key]
        reading = own.read_text(output.text, output.finish_reason)
        if not reading.regular:
            kind = " ".join(filter(None, (reading.kind, reading.rule)))
            irregular[f"{kind} -> {_served(parser, own.text(output.text))}"] += 1
            continue
        compared += 1
        found = compare(own, parser, output.text)
        if found is not None:
            differences.append(Difference("serving", output.where, *found))
    return VerifyReport(total, compared, tuple(differences), dict(sorted(irregular.items())))


def _served(parser: Any, text: str) -> str:
    """What the serving parser makes of an irregular output, in a word or two."""
    from tbrl.episode.serving_parser import ServingCrash

    try:
        reasoning, visible, calls, _ = parser.read_text(text)
    except ServingCrash as crash:
        return str(crash)
    found = (("reasoning", reasoning), ("text", visible), (f"{len(calls)} calls", calls))
    return ", ".join(name for name, value in found if value) or "nothing"


# ---------------------------------------------------------------- episodes


def verify_episode(
    episode: Episode, tools: tuple[ToolSpec, ...], interpreter: Interpreter, renderer: Renderer
) -> list[Difference]:
    """Whether the record follows from the ids: each turn is what its ids say, and every id that
    was not sampled is what the renderer writes."""
    own = interpreter.with_tools(tools)
    differences: list[Difference] = []
    for where, turn, ids in _sampled(episode):
        reading = own.read(ids, _finish(ids, renderer))
        recorded = (turn.text, turn.reasoning, turn.tool_calls, turn.is_error)
        read = (reading.text, reading.reasoning, reading.calls, reading.error is not None)
        if recorded != read:
            differences.append(Difference("reading", where, repr(read), repr(recorded)))
    ids = [*episode.prompt_ids.tolist(), *episode.response_ids.tolist()]
    for where, start, rendered in _rendered(episode, tools, renderer):
        recorded_ids = ids[start : start + len(rendered)]
        if recorded_ids != rendered:
            differences.append(Difference("tokens", where, str(rendered), str(recorded_ids)))
    return differences


def _sampled(episode: Episode) -> Iterator[tuple[str, Turn, list[int]]]:
    ids = [*episode.prompt_ids.tolist(), *episode.response_ids.tolist()]
    for number, turn in enumerate(episode.turns):
        if turn.role == "assistant":
            yield f"{episode.key} turn {number}", turn, ids[turn.start : turn.end]


def _finish(ids: list[int], renderer: Renderer) -> str:
    return "stop" if ids and ids[-1] in renderer.stop_ids else "length"


def _rendered(
    episode: Episode, tools: tuple[ToolSpec, ...], renderer: Renderer
) -> Iterator[tuple[str, int, list[int]]]:
    """(where, start, ids) of everything in the episode that the renderer wrote."""
    messages: list[Message] = []
    ids = [*episode.prompt_ids.tolist(), *episode.response_ids.tolist()]
    pending: list[Turn] = []
    last: list[int] | None = None
    for turn in (*episode.turns, None):
        if turn is not None and turn.role != "assistant":
            pending.append(turn)
            continue
        written = [message_of(t) for t in pending]
        messages.extend(written)
        if last is None:
            yield f"{episode.key} prompt", 0, renderer.prompt(messages, tools)
        elif pending and pending[0].end > pending[0].start:  # equal: did not fit the token budget
            where = f"{episode.key} before token {pending[0].end}"
            if renderer.starts_segment(written):
                yield where, pending[0].start, renderer.prompt(messages, tools)
            else:
                yield where, pending[0].start, renderer.delta(written, last, tools)
        pending = []
        if turn is not None:
            messages.append(message_of(turn))
            last = ids[turn.start : turn.end]
