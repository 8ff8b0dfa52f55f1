"""Token ids in, token ids out: the completions endpoint of the engine behind the proxy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import httpx

from tbrl.errors import BackendFailure
from tbrl.types import JsonObject


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an output."""

    ids: tuple[int, ...]
    finish_reason: str | None = None
    """`stop` or `length` on the last piece."""
    cached_tokens: int | None = None
    """Of the prompt, read from the prefix cache: said once, at the end; None elsewhere."""


class CompletionEngine(Protocol):
    """What the proxy needs of an engine."""

    max_model_len: int

    def stream(
        self, prompt_ids: Sequence[int], sampling: JsonObject, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        """Sample; raises BackendFailure."""
        ...


class VllmCompletions:
    """vLLM's /v1/completions with a prompt of ids."""

    def __init__(
        self,
        base_url: str,
        model: str,
        max_model_len: int,
        stop_ids: Sequence[int],
        timeout_s: float = 300.0,
    ) -> None:
        self.max_model_len = max_model_len
        self._model = model
        self._stop_ids = list(stop_ids)
        self._client = httpx.AsyncClient(base_url=base_url, timeout=timeout_s)

    async def stream(
        self, prompt_ids: Sequence[int], sampling: JsonObject, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        """Pieces of one output. Raises BackendFailure("engine") when the engine cannot be reached,
        refuses, or breaks off."""
        body = {
            **sampling,
            "model": self._model,
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "stop_token_ids": self._stop_ids,
            "ignore_eos": True,  # the stop ids say what ends a turn
            "skip_special_tokens": False,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        finished = False
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    raise BackendFailure("engine", "completions", _reason(response, text))
                async for line in response.aiter_lines():
                    data = line.removeprefix("data: ")
                    if not line.startswith("data: ") or data == "[DONE]":
                        continue
                    event = json.loads(data)
                    if event.get("usage"):
                        yield Chunk((), cached_tokens=_cached(event["usage"]))
                    for choice in event.get("choices", ()):
                        chunk = self._chunk(choice)
                        finished = finished or chunk.finish_reason is not None
                        yield chunk
        except httpx.TimeoutException:
            raise BackendFailure("deadline", "completions", "the engine did not answer") from None
        except httpx.HTTPError as fault:
            raise BackendFailure("engine", "completions", type(fault).__name__) from None
        if not finished:
            raise BackendFailure("engine", "completions", "the engine broke off")

    def _chunk(self, choice: JsonObject) -> Chunk:
        ids = list(choice.get("token_ids") or ())
        stop = choice.get("stop_reason")
        if isinstance(stop, int) and (not ids or ids[-1] != stop):
            ids.append(stop)  # the turn's closing token is part of what was sampled
        return Chunk(tuple(ids), choice.get("finish_reason"))

    async def close(self) -> None:
        await self._client.aclose()


def _cached(usage: JsonObject) -> int | None:
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _reason(response: httpx.Response, text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"
