"""An OpenAI-compatible chat endpoint: LLM users, judges and evaluated policies speak through it.

One deadline covers a request with all its tries. A completion has no effect on the other side, so a
try may be repeated after a refusal that says so (429, 502, 503, 504) or a failed connection. The
API key comes from the environment variable that the configuration names; it is in no message,
representation or error.

Every answer carries its tokens, and every failure those of the requests that were sent and brought
nothing. What a refusal (4xx, 503) used is nothing; what a lost answer used is unknown.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tbrl.config import EndpointConfig
from tbrl.errors import BackendFailure, ConfigError
from tbrl.types import FailureKind, JsonObject
from tbrl.usage import UNKNOWN, Usage, unknown, usage_of_completion

_TRIES = 4
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 8.0
_REPEATABLE = frozenset({429, 502, 503, 504})
_NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A chat completion."""

    body: JsonObject
    """The whole answer; `choices[0].message` is an object."""
    usage: Usage
    """Of this answer and of the tries before it that were lost."""


@dataclass(frozen=True, slots=True)
class Said:
    """The text of a completion."""

    text: str
    usage: Usage


@dataclass(slots=True)
class _Sent:
    """The tries of one completion."""

    lost: int = 0
    """Sent, and not (yet) answered in a way that tells what they used."""

    @property
    def usage(self) -> Usage:
        return unknown(self.lost)


class ChatEndpoint:
    """`kind` is what failures are called: `user`, `judge`, or `engine` for an evaluated policy (see
    types.FailureKind)."""

    def __init__(
        self,
        config: EndpointConfig,
        kind: FailureKind,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises ConfigError when the address or the model is missing, or the named variable is
        not set."""
        for name in ("base_url", "model"):
            if not getattr(config, name):
                raise ConfigError(f"{kind}.endpoint.{name} is empty; set it for {kind}.kind=llm")
        if config.api_key_env and not os.environ.get(config.api_key_env):
            raise ConfigError(
                f"{kind}.endpoint.api_key_env={config.api_key_env}: the variable is not set"
            )
        self.config = config
        self._kind = kind
        self._transport = transport
        self._sleep = sleep
        self._client: httpx.AsyncClient | None = None

    async def complete(self, messages: Sequence[JsonObject], seed: int | None = None) -> Said:
        """Text of one completion. Raises BackendFailure after the deadline, the last try, a
        refusal, or an answer without text."""
        answer = await self.answer(messages, seed)
        text = answer.body["choices"][0]["message"].get("content")
        if not isinstance(text, str):
            raise self._failed("the completion has no text", answer.usage)
        return Said(text, answer.usage)

    async def answer(
        self,
        messages: Sequence[JsonObject],
        seed: int | None = None,
        tools: Sequence[JsonObject] = (),
    ) -> Answer:
        """The whole answer. `tools` in the function form. Raises BackendFailure as `complete`
        does."""
        body: JsonObject = {
            "model": self.config.model,
            "messages": list(messages),
            "temperature": self.config.temperature,
            "max_tokens": self.config.max_tokens,
        }
        if seed is not None:
            body["seed"] = seed % 2**31
        if tools:
            body["tools"] = list(tools)
        sent = _Sent()
        try:
            async with asyncio.timeout(self.config.timeout_s):
                return self._decoded(await self._post(body, sent), sent)
        except TimeoutError:
            raise self._failed(
                f"no answer within {self.config.timeout_s:g} s", sent.usage, "deadline"
            ) from None

    async def close(self) -> None:
        """Close connections. Idempotent."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _post(self, body: JsonObject, sent: _Sent) -> httpx.Response:
        wait = _FIRST_WAIT_S
        for left in reversed(range(_TRIES)):
            sent.lost += 1
            try:
                response = await self._connected().post("chat/completions", json=body)
            except httpx.TransportError as error:
                sent.lost -= isinstance(error, _NEVER_SENT)
                if not left:
                    raise self._failed(f"{type(error).__name__}", sent.usage) from None
            else:
                status = response.status_code
                sent.lost -= response.is_success or status < 500 or status == 503
                if response.is_success:
                    return response
                if status not in _REPEATABLE or not left:
                    raise self._failed(f"status {status}", sent.usage)
                wait = max(wait, _retry_after(response))
            await self._sleep(min(wait, _LONGEST_WAIT_S))
            wait *= 2
        raise AssertionError("the last try returns or raises")

    def _decoded(self, response: httpx.Response, sent: _Sent) -> Answer:
        try:
            body = response.json()
            message = body["choices"][0]["message"]
        except (ValueError, KeyError, IndexError, TypeError):
            message = None
        if not isinstance(message, dict):
            raise self._failed("the answer is not a chat completion", sent.usage + UNKNOWN)
        return Answer(body, sent.usage + usage_of_completion(body))

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            key = os.environ.get(self.config.api_key_env, "") if self.config.api_key_env else ""
            options: dict[str, Any] = {"transport": self._transport} if self._transport else {}
            self._client = httpx.AsyncClient(
                base_url=self.config.base_url.rstrip("/") + "/",
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=self.config.timeout_s,
                **options,
            )
        return self._client

    def _failed(self, detail: str, usage: Usage, kind: FailureKind | None = None) -> BackendFailure:
        where = f"{self._kind} {self.config.model}"
        return BackendFailure(kind or self._kind, where, detail, usage)


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the other side asks for; 0 when it says nothing readable."""
    try:
        return float(response.headers.get("Retry-After", "0"))
    except ValueError:
        return 0.0
