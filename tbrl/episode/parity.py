"""The parity gate: training, evaluation and serving read and write the same words.

For the loaded tokenizer, template and parser:

    incremental   prompt + sampled turn + delta ... is the template's own render, id for id
    round trip    a rendered assistant turn is read back as it was
    serving       the serving stack's parser reads every regular output as we do

The hash of all that decides about the result (template, tokenizer, formats, our parser's version,
the readings of the corpus) goes into checkpoints and result files; two that differ describe two
agents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tbrl.episode import cases
from tbrl.episode.chat_template import Message
from tbrl.episode.corpus import TOOLS, Corpus, mutations
from tbrl.episode.interpretation import INTERPRETATION_VERSION, Interpreter
from tbrl.episode.rendering import Renderer
from tbrl.errors import ConfigError

CONVERSATIONS = 24
MUTATIONS = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two that must agree do not."""

    check: str
    """`incremental`, `round trip`, `serving`; for recordings also `reading`, `tokens`."""
    where: str
    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.check} parity, {self.where}: {self.ours} against {self.theirs}"


@dataclass(frozen=True, slots=True)
class ParityReport:
    """What the gate found."""

    hash: str
    """Hex digest; equal for two equal agents, with or without the serving check."""
    differences: tuple[Difference, ...]
    deviations: tuple[str, ...]
    """What the renderer does differently from the model's own template, on purpose."""
    conversations: int
    outputs: int
    """Outputs compared with the serving parser; 0 where that was not asked for."""

    def require(self) -> None:
        """Raises ConfigError on the first difference."""
        if self.differences:
            raise ConfigError(
                f"model.path: {self.differences[0]} ({len(self.differences)} differences); "
                "this tokenizer and template cannot be trained or evaluated"
            )


def check(
    tokenizer: Any, renderer: Renderer, interpreter: Interpreter, serving: bool = True
) -> ParityReport:
    """Run the gate. `serving` imports vLLM (seconds); without it the other two checks run."""
    interpreter = interpreter.with_tools(TOOLS)
    differences: list[Difference] = []
    streams: list[list[int]] = []
    texts: list[str] = []
    for number in range(CONVERSATIONS):
        messages = Corpus(number, renderer.reasons).conversation(1 + number % 4)
        stream, turns = _stream(renderer, messages, f"conversation {number}", differences)
        streams.append(stream)
        for where, message, ids in turns:
            differences.extend(_round_trip(interpreter, where, message, ids))
            texts.append(interpreter.text(interpreter.raw_text(ids)))
    outputs = 0
    if serving:
        found, outputs = _serving(tokenizer, interpreter, texts)
        differences.extend(found)
    return ParityReport(
        _hash(tokenizer, renderer, interpreter, streams, texts),
        tuple(differences),
        renderer.deviations,
        CONVERSATIONS,
        outputs,
    )


Sampled = tuple[str, Message, list[int]]
"""Where, the assistant's message, the ids that say it."""


def _stream(
    renderer: Renderer, messages: list[Message], where: str, differences: list[Difference]
) -> tuple[list[int], list[Sampled]]:
    """Build a conversation incrementally, comparing with the full render before each turn."""
    turns: list[Sampled] = []
    starts = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    stream = renderer.prompt(messages[: starts[0]], TOOLS)
    for number, start in enumerate(starts):
        full = renderer.prompt(messages[:start], TOOLS)
        if stream != full:
            at = _first_difference(stream, full)
            differences.append(
                Difference(
                    "incremental",
                    f"{where}, turn {number}, id {at}",
                    str(stream[at : at + 8]),
                    str(full[at : at + 8]),
                )
            )
            break
        sampled = renderer.assistant_turn(messages[: start + 1], TOOLS)
        turns.append((f"{where}, turn {number}", messages[start], sampled))
        if number + 1 == len(starts):
            break
        observations = messages[start + 1 : starts[number + 1]]
        if renderer.starts_segment(observations):
            stream = renderer.prompt(messages[: starts[number + 1]], TOOLS)
        else:
            stream = [*stream, *sampled, *renderer.delta(observations, sampled, TOOLS)]
    return stream, turns


def _first_difference(one: list[int], two: list[int]) -> int:
    shorter = min(len(one), len(two))
    return next((i for i in range(shorter) if one[i] != two[i]), shorter)


def _round_trip(
    interpreter: Interpreter, where: str, message: Message, ids: list[int]
) -> Iterator[Difference]:
    """Read a rendered turn and compare it with its message."""
    reading = interpreter.read(ids, "stop")
    calls = [call["function"] for call in message.get("tool_calls", ())]
    pairs = {
        "regular": (reading.regular, True),
        "text": (reading.text, message["content"]),
        "reasoning": (reading.reasoning, message["reasoning_content"]),
        "calls": ([{"name": c.name, "arguments": c.arguments} for c in reading.calls], calls),
    }
    for what, (ours, theirs) in pairs.items():
        if ours != theirs:
            yield Difference("round trip", f"{where}, {what}", _short(ours), _short(theirs))


def _serving(
    tokenizer: Any, interpreter: Interpreter, texts: list[str]
) -> tuple[list[Difference], int]:
    """Compare every regular output of the corpus with the serving parser."""
    from tbrl.episode.serving_parser import ServingParser, compare

    parser = ServingParser(
        tokenizer, TOOLS, interpreter.tool_format, interpreter.reasoning_preopened
    )
    differences: list[Difference] = []
    outputs = 0
    for where, text in _outputs(interpreter, texts):
        if not interpreter.read_text(text, "stop").regular:
            continue
        outputs += 1
        found = compare(interpreter, parser, text)
        if found is not None:
            differences.append(Difference("serving", where, *found))
    return differences, outputs


def _outputs(interpreter: Interpreter, texts: list[str]) -> Iterator[tuple[str, str]]:
    """All outputs of the corpus: rendered turns, hand-made ones, damaged ones."""
    opener = "<think>" if interpreter.reasoning_preopened else ""
    for number, text in enumerate(texts):
        yield f"turn {number}", text
        for damaged in mutations(text, number, MUTATIONS):
            yield f"damaged turn {number}: {damaged[:60]!r}", damaged
    for case in cases.cases(interpreter.tool_format):
        yield f"hand-made {case.name!r}", case.text.removeprefix(opener)


def _hash(
    tokenizer: Any,
    renderer: Renderer,
    interpreter: Interpreter,
    streams: list[list[int]],
    texts: list[str],
) -> str:
    tokens = json.loads(tokenizer.backend_tokenizer.to_str())
    # Set by whoever last encoded a batch; says nothing about the words.
    tokens.pop("padding", None)
    tokens.pop("truncation", None)
    readings = [
        repr(interpreter.read_text(text, "stop")) for _, text in _outputs(interpreter, texts)
    ]
    parts = [
        INTERPRETATION_VERSION,
        renderer.chat_template,
        renderer.deviations,
        renderer.stop_ids,
        interpreter.tool_format,
        interpreter.reasoning_preopened,
        tokens,
        streams,
        readings,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _short(value: Any, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
