"""Policies that speak chat completions rather than token ids: an endpoint, or a recorded file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from tbrl.config import EndpointConfig
from tbrl.endpoint import Answer, ChatEndpoint
from tbrl.errors import BackendFailure, ConfigError
from tbrl.evaluation.results import ResultRow, read_rows
from tbrl.types import JsonObject, ToolSpec
from tbrl.usage import NOTHING, Usage

DONE = "<DONE>"


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """A tool call as the endpoint sent it."""

    call_id: str
    name: str
    arguments: str
    """JSON text, as the protocol has it: it may be malformed."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One assistant message."""

    text: str
    calls: tuple[CompletedCall, ...] = ()
    reasoning: str = ""
    truncated: bool = False
    """finish_reason was `length`."""
    error: str = ""
    """What tbrl's proxy says the policy is to be told of a malformed turn; empty elsewhere."""
    usage: Usage = NOTHING
    """Nothing, unless a model was asked."""


class ChatModel(Protocol):
    """What a chat episode samples from."""

    async def complete(
        self,
        task_ref: str,
        attempt: int,
        turn: int,
        messages: Sequence[JsonObject],
        tools: Sequence[ToolSpec],
        seed: int,
    ) -> Completion:
        """The next assistant message. Raises BackendFailure where there is none."""
        ...


class EndpointModel:
    """Any OpenAI-compatible endpoint. Only structured `tool_calls` are calls: text that looks like
    one is text, since the endpoint's own parser has had its say."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    @classmethod
    def connect(cls, config: EndpointConfig) -> EndpointModel:
        """Raises ConfigError naming evaluation.endpoint where it is incomplete."""
        for name in ("base_url", "model"):
            if not getattr(config, name):
                raise ConfigError(
                    f"evaluation.endpoint.{name} is empty; set it for evaluation.policy=chat"
                )
        return cls(ChatEndpoint(config, "engine"))

    async def complete(
        self,
        task_ref: str,
        attempt: int,
        turn: int,
        messages: Sequence[JsonObject],
        tools: Sequence[ToolSpec],
        seed: int,
    ) -> Completion:
        answer = await self._endpoint.answer(messages, seed, [tool.as_function() for tool in tools])
        try:
            return completion_of(answer)
        except (KeyError, TypeError, AttributeError):
            detail = "the completion's tool calls are malformed"
            model = self._endpoint.config.model
            raise BackendFailure("engine", model, detail, answer.usage) from None

    async def close(self) -> None:
        await self._endpoint.close()


def completion_of(answer: Answer) -> Completion:
    """Read a chat completion; reasoning under any of the two field names in use."""
    choice = answer.body["choices"][0]
    message = choice["message"]
    return Completion(
        text=message.get("content") or "",
        calls=tuple(
            CompletedCall(
                str(call.get("id") or f"call_{i}"),
                str(call["function"]["name"]),
                _as_text(call["function"].get("arguments") or "{}"),
            )
            for i, call in enumerate(message.get("tool_calls") or ())
        ),
        reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
        truncated=choice.get("finish_reason") == "length",
        error=(choice.get("tbrl") or {}).get("error") or "",
        usage=answer.usage,
    )


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


class RecordedModel:
    """Says again what a results file recorded, turn by turn: the conversation is played and graded
    anew, e.g. after a grader has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turns = {(row.uid, row.attempt): recorded_turns(row) for row in read_rows(path)}

    async def complete(
        self,
        task_ref: str,
        attempt: int,
        turn: int,
        messages: Sequence[JsonObject],
        tools: Sequence[ToolSpec],
        seed: int,
    ) -> Completion:
        turns = self._turns.get((task_ref, attempt))
        if turns is None:
            raise ConfigError(f"{self.path}: {task_ref} attempt {attempt} is not recorded")
        if turn >= len(turns):
            raise BackendFailure(
                "engine",
                str(self.path),
                f"{task_ref} attempt {attempt}: the recording ends after {len(turns)} turns",
            )
        return turns[turn]


def recorded_turns(row: ResultRow) -> list[Completion]:
    """Assistant turns of a row. A turn is closed by a tool's reply or a user's text; where the
    agent ended the conversation, `<DONE>` is put back if the record left it out."""
    turns: list[Completion] = []
    text, reasoning = "", ""
    calls: tuple[CompletedCall, ...] = ()
    pending = False
    for message in [*row.raw.get("messages", ()), {"T": "End"}]:
        kind, role = message["T"], message.get("role")
        if kind == "ParallelToolCall":
            calls += tuple(
                CompletedCall(f"call_{i}", c["name"], _as_text(c["arguments"]))
                for i, c in enumerate(message["tool_calls"])
            )
            pending = True
        elif role == "assistant":
            if message.get("metadata", {}).get("tag") == "think":
                reasoning += message["content"]
            else:
                text += message["content"]
            pending = True
        elif pending:
            turns.append(Completion(text, calls, reasoning))
            text, reasoning, calls, pending = "", "", (), False
    if turns and row.finish_reason == "done" and not turns[-1].text.rstrip().endswith(DONE):
        turns[-1] = Completion(f"{turns[-1].text} {DONE}".strip(), (), turns[-1].reasoning)
    return turns
