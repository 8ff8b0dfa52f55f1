"""What a sampled assistant turn says: one reading, for rollouts, evaluation and serving.

    ids -> text -> reasoning | visible text | tool calls -> Reading

Only an output that follows the grammar has calls; whatever else came out is a message to the
policy (`Reading.error`), never an action and never a crash. Model output is data: nothing of it
is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tbrl.episode.chat_template import template_text
from tbrl.episode.reasoning import THINK, THINK_END, split_reasoning, stray_think_tag
from tbrl.episode.tool_calls import (
    OPEN,
    XML_TAGS,
    MalformedCall,
    ToolFormat,
    detect_format,
    parameter_types,
    read_blocks,
    stray_tag,
)
from tbrl.errors import ConfigError
from tbrl.types import ToolCall, ToolSpec

INTERPRETATION_VERSION = 1
"""Part of the parity hash: raise it when any output is read differently than before."""

DONE = "<DONE>"

KINDS = (
    "text",
    "calls",
    "think_only",  # closed reasoning, then nothing
    "unterminated_reasoning",
    "stray_reasoning_tag",
    "malformed_call",
    "truncated",  # cut by the token limit: calls are ignored
    "empty",
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One assistant turn as read. `calls` is empty unless kind is `calls`."""

    reasoning: str
    text: str
    """Visible text, stripped, without special tokens and without a closing `<DONE>`."""
    calls: tuple[ToolCall, ...]
    done: bool
    """The visible text ended with `<DONE>` and no call follows it."""
    error: str | None
    """What the policy is told; None where the output is well-formed."""
    kind: str
    """One of KINDS."""
    rule: str = ""
    """What is irregular about the output: the broken rule of a malformed call (see tool_calls);
    `control_token`, `failed_cast`, `tag_in_arguments`, `call_in_reasoning` or `tag_in_reasoning`
    where it could be read all the same."""

    @property
    def regular(self) -> bool:
        """Well-formed throughout: any right parser reads it so."""
        return self.kind in ("text", "calls") and not self.rule


class Interpreter:
    """Reads outputs of one policy for one set of tools. Stateless between calls."""

    def __init__(
        self,
        tokenizer: Any,
        tools: tuple[ToolSpec, ...],
        tool_format: str = "auto",
        reasoning_preopened: bool = False,
    ) -> None:
        """`tokenizer`: a transformers fast tokenizer. `reasoning_preopened`: the generation prompt
        ends inside an open reasoning block (Renderer.reasoning_preopened). Raises ConfigError on an
        unknown format, or on `auto` with a template that teaches none."""
        if tool_format not in ("auto", "qwen_xml", "hermes_json"):
            raise ConfigError(
                f"model.tool_format={tool_format!r}: use qwen_xml, hermes_json or auto"
            )
        self.tool_format: ToolFormat = (
            detect_format(template_text(tokenizer)) if tool_format == "auto" else tool_format  # type: ignore[assignment]
        )
        self.reasoning_preopened = reasoning_preopened
        self._decode = tokenizer.backend_tokenizer.decode
        self.control_tokens = _control_tokens(tokenizer)
        """Texts of the special tokens that no output should hold but at its end."""
        pattern = "|".join(map(re.escape, self.control_tokens))
        self._control = re.compile(pattern) if pattern else None
        self._types = parameter_types(tools)

    def with_tools(self, tools: tuple[ToolSpec, ...]) -> Interpreter:
        """The same reader for other tools; cheap."""
        other = object.__new__(Interpreter)
        other.__dict__.update(self.__dict__)
        other._types = parameter_types(tools)
        return other

    def read(self, ids: Sequence[int], finish_reason: str) -> Reading:
        """Read sampled ids (a closing stop token may be among them)."""
        return self.read_text(self.raw_text(ids), finish_reason)

    def raw_text(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, special tokens included."""
        return self._decode(list(ids), skip_special_tokens=False)

    def text(self, text: str) -> str:
        """An output without control tokens: what a serving stack hands to its parser."""
        return self._without_control(text)[0]

    def read_text(self, text: str, finish_reason: str) -> Reading:
        """Read raw output text, special tokens included. `finish_reason` `length` marks an output
        that was cut: it is read, but its calls are ignored."""
        text, control = self._without_control(text)
        split = split_reasoning(text, self.reasoning_preopened)
        if finish_reason == "length":
            visible = split.rest.partition(OPEN)[0].strip()
            return Reading(split.reasoning, visible, (), False, None, "truncated")
        if not split.closed:
            error = "Your reasoning was not closed. Nothing was done."
            return Reading(split.reasoning, "", (), False, error, "unterminated_reasoning")
        reading = self._read_rest(split.rest, control)
        if reading.kind == "empty" and split.present:
            error = "Your turn had reasoning only. Answer or call a tool."
            return replace(reading, reasoning=split.reasoning, error=error, kind="think_only")
        if not split.reasoning:
            return reading
        rule = reading.rule or _reasoning_rule(split.reasoning)
        return replace(reading, reasoning=split.reasoning, rule=rule)

    def _read_rest(self, rest: str, control: bool) -> Reading:
        """Read what follows the reasoning."""
        opening = rest.find(OPEN)
        visible = (rest if opening < 0 else rest[:opening]).strip()
        if stray_think_tag(visible):
            error = "A reasoning tag stands outside of your reasoning. Nothing was done."
            return Reading("", visible, (), False, error, "stray_reasoning_tag")
        try:
            if stray_tag(visible):
                raise MalformedCall("tag_outside_call", "a tag of the call format outside a call")
            if opening < 0:
                return _text_reading(visible, "control_token" if control else "")
            if control:
                raise MalformedCall("control_token", "a control token in the output")
            calls, typed = read_blocks(rest[opening:], self.tool_format, self._types)
        except MalformedCall as fault:
            error = f"Malformed tool call: {fault}. No tool was run."
            return Reading("", visible, (), False, error, "malformed_call", fault.rule)
        rule = "" if typed else "failed_cast"
        if stray_think_tag(rest[opening:]):
            rule = "tag_in_arguments"
        return Reading("", visible, calls, False, None, "calls", rule)

    def _without_control(self, text: str) -> tuple[str, bool]:
        """Text without control tokens, and whether one stood anywhere but at the end."""
        if self._control is None:
            return text, False
        found = list(self._control.finditer(text))
        if not found:
            return text, False
        clean = self._control.sub("", text)
        # Control tokens at the very end close the turn; any other one is out of place.
        end = len(text)
        for match in reversed(found):
            if text[match.end() : end].strip():
                return clean, True
            end = match.start()
        return clean, False


def _reasoning_rule(reasoning: str) -> str:
    """Markup in closed reasoning is text to us; other readers may stumble over it."""
    if stray_tag(reasoning):
        return "call_in_reasoning"
    return "tag_in_reasoning" if THINK in reasoning else ""


def _text_reading(visible: str, rule: str) -> Reading:
    if not visible:
        error = "Your turn was empty. Answer or call a tool."
        return Reading("", "", (), False, error, "empty")
    if visible.endswith(DONE):
        return Reading("", visible.removesuffix(DONE).rstrip(), (), True, None, "text", rule)
    return Reading("", visible, (), False, None, "text", rule)


def _control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Every special token that is not part of the output grammar, longest first."""
    structural = {THINK, THINK_END, DONE, *XML_TAGS}
    texts = {
        token.content for token in tokenizer.added_tokens_decoder.values() if token.special
    } | {str(text) for text in tokenizer.special_tokens_map.values() if isinstance(text, str)}
    return tuple(sorted(texts - structural, key=lambda text: (-len(text), text)))
