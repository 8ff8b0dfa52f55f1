"""The serving stack's reading of an output, in our terms.

vLLM's own parsers, called as its chat server calls them: what somebody who serves a trained
policy without tbrl's proxy would see. Importing vLLM takes seconds, so it happens on first use.
"""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

from tbrl.episode.interpretation import DONE, Interpreter
from tbrl.episode.reasoning import THINK
from tbrl.episode.tool_calls import ToolFormat
from tbrl.types import JsonObject, ToolSpec

ServedReading = tuple[str, str, list[tuple[str, JsonObject]], bool]
"""Reasoning, visible text, calls, done."""


class ServingCrash(Exception):
    """The serving parser raised; the text is the name of what it raised."""


class ServingParser:
    """vLLM's `qwen3` reasoning parser with its `qwen3_xml` or `hermes` tool parser."""

    def __init__(
        self,
        tokenizer: Any,
        tools: tuple[ToolSpec, ...],
        tool_format: ToolFormat,
        reasoning_preopened: bool = False,
    ) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
        from vllm.parser.parser_manager import ParserManager

        # It logs a traceback for every output it cannot read.
        logging.getLogger("vllm.tool_parsers.hermes_tool_parser").setLevel(logging.CRITICAL)
        params = [ChatCompletionToolsParam(**tool.as_function()) for tool in tools]
        self._request: Any = SimpleNamespace(tools=params, tool_choice="auto", messages=[])
        self._preopened = reasoning_preopened
        self._parsers: dict[bool, Any] = {}
        for thinking in (False, True):
            composed: Any = ParserManager.get_parser(
                tool_parser_name="qwen3_xml" if tool_format == "qwen_xml" else "hermes",
                # Without thinking there is no reasoning to look for; qwen3 would take all for it.
                reasoning_parser_name="qwen3" if thinking else None,
                enable_auto_tools=True,
            )
            options = {"enable_thinking": thinking}
            self._parsers[thinking] = composed(tokenizer, params, chat_template_kwargs=options)

    def read_text(self, text: str) -> ServedReading:
        """Read an output without its closing stop token. Raises ServingCrash."""
        # The server is told whether thinking is on; we go by what the policy wrote.
        parser = self._parsers[self._preopened or text.lstrip().startswith(THINK)]
        try:
            reasoning, content, found = parser.parse(text, self._request, enable_auto_tools=True)
        except (ValueError, RecursionError) as fault:
            raise ServingCrash(type(fault).__name__) from fault
        calls = [(call.name, json.loads(call.arguments)) for call in found or ()]
        visible = (content or "").strip()
        done = visible.endswith(DONE) and not calls
        if done:
            visible = visible.removesuffix(DONE).rstrip()
        return (reasoning or "").strip(), visible, calls, done


def compare(interpreter: Interpreter, parser: ServingParser, text: str) -> tuple[str, str] | None:
    """(Ours, theirs) where the two readings of an output differ, None where they agree."""
    text = interpreter.text(text)  # a server cuts the stop token off
    ours = our_reading(interpreter, text)
    try:
        theirs = parser.read_text(text)
    except ServingCrash as crash:
        return _short(ours), str(crash)
    return None if ours == theirs else (_short(ours), _short(theirs))


def _short(reading: ServedReading, limit: int = 400) -> str:
    text = repr(reading)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def our_reading(interpreter: Interpreter, text: str) -> ServedReading:
    """The same output read by our interpreter, in the same shape."""
    reading = interpreter.read_text(text, "stop")
    calls = [(call.name, call.arguments) for call in reading.calls]
    return reading.reasoning, reading.text, calls, reading.done
