"""OpenAI-compatible chat server in front of an engine.

    messages -> our renderer (or remembered ids) -> ids -> engine -> ids -> our interpreter -> reply

The engine sees and returns token ids only, so what is served is what was trained: the same
prompts, the same reading. Errors have OpenAI's form.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tbrl.episode.interpretation import Interpreter
from tbrl.episode.rendering import Renderer
from tbrl.errors import BackendFailure, ConfigError
from tbrl.serving.completions import CompletionEngine
from tbrl.serving.memory import ConversationMemory
from tbrl.serving.replies import Reply, ReplyStream
from tbrl.serving.requests import ChatRequest, RequestError, parse_messages, parse_request
from tbrl.types import JsonObject

READY_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask of the server."""

    max_body_bytes: int = 4_000_000
    max_concurrency: int = 64


@dataclass(frozen=True, slots=True)
class _Job:
    """One completion on its way."""

    request: ChatRequest
    prompt: list[int]
    max_tokens: int
    id: str
    created: int


class Proxy:
    """The server's state; `app` is what an ASGI server runs."""

    def __init__(
        self,
        engine: CompletionEngine,
        renderer: Renderer,
        interpreter: Interpreter,
        model: str,
        api_key: str = "",
        limits: Limits = Limits(),
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._interpreter = interpreter
        self._model = model
        self._key = api_key
        self._limits = limits
        self._running = 0
        self._memory = ConversationMemory(renderer)
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
                Route("/v1/models", self._guarded(self._models)),
                Route("/healthz", self._health),
                Route("/readyz", self._ready),
            ]
        )

    # ------------------------------------------------------------ endpoints

    async def _health(self, _: Request) -> Response:
        """The proxy itself lives."""
        return JSONResponse(
            {
                "status": "ok",
                "running": self._running,
                "respelled": self._memory.respelled,
                "deviations": self._renderer.deviations,
            }
        )

    async def _ready(self, _: Request) -> Response:
        """The engine answers a real completion."""
        prompt = self._renderer.prompt([{"role": "user", "content": "Hi"}], ())
        try:
            async with asyncio.timeout(READY_DEADLINE_S):
                async for _chunk in self._engine.stream(prompt, {"temperature": 0.0}, 1):
                    pass
        except (BackendFailure, TimeoutError) as failure:
            reason = str(failure) or f"no answer within {READY_DEADLINE_S:g} s"
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        return JSONResponse({"status": "ready"})

    async def _models(self, _: Request) -> Response:
        card = {
            "id": self._model,
            "object": "model",
            "owned_by": "tbrl",
            "max_model_len": self._engine.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def _chat(self, request: Request) -> Response:
        body = await self._body(request)
        job = self._job(parse_request(body, self._model))
        if job.request.stream:
            events = self._events(job)
            first = await anext(events)  # a refusal of the engine is still an HTTP status here
            return StreamingResponse(_prepend(first, events), media_type="text/event-stream")
        stream = self._stream_for(job)
        async with self._slot():
            finish, cached = "", None
            async for chunk in self._sample(job):
                stream.ids.extend(chunk.ids)
                finish = chunk.finish_reason or finish
                cached = chunk.cached_tokens if cached is None else cached
        reply, _ = stream.finish(finish)
        self._remember(job, reply, stream.ids)
        choice = {
            "index": 0,
            "message": reply.message(),
            "finish_reason": reply.finish_reason,
            "tbrl": reply.extra(),
        }
        usage = _usage(job, stream.ids, cached)
        return JSONResponse(self._object(job, "chat.completion", [choice]) | {"usage": usage})

    # ------------------------------------------------------------ the parts

    def _guarded(self, endpoint):  # type: ignore[no-untyped-def]
        """`endpoint` behind the API key, with every refusal in OpenAI's form."""

        async def answer(request: Request) -> Response:
            try:
                self._authorise(request)
                return await endpoint(request)
            except RequestError as refusal:
                return JSONResponse(refusal.body(), refusal.status)
            except BackendFailure as failure:
                fault = _server_fault(failure)
                return JSONResponse(fault.body(), fault.status)

        return answer

    def _authorise(self, request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._key and not hmac.compare_digest(given.encode(), self._key.encode()):
            raise RequestError(401, "the API key is missing or wrong", "invalid_api_key")

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._limits.max_body_bytes:
                limit = self._limits.max_body_bytes
                raise RequestError(413, f"the body is larger than {limit} bytes", "too_large")
        return bytes(body)

    def _job(self, request: ChatRequest) -> _Job:
        try:
            prompt = self._memory.prompt(request.messages, request.tools)
        except ConfigError as refusal:
            raise RequestError(400, f"messages: {refusal}") from None
        room = self._engine.max_model_len - len(prompt)
        wanted = request.max_tokens or room
        if room < 1 or wanted > room:
            raise RequestError(
                400,
                f"{len(prompt)} prompt tokens and {max(wanted, 1)} to sample do not fit the "
                f"context of {self._engine.max_model_len} tokens",
                "context_length_exceeded",
            )
        identifier = f"chatcmpl-{uuid.uuid4().hex}"
        return _Job(request, prompt, wanted, identifier, int(time.time()))

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._running >= self._limits.max_concurrency:
            raise RequestError(
                429, f"{self._running} requests are running; try again", "rate_limited"
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _sample(self, job: _Job):  # type: ignore[no-untyped-def]
        return self._engine.stream(job.prompt, job.request.sampling, job.max_tokens)

    def _stream_for(self, job: _Job) -> ReplyStream:
        return ReplyStream(self._interpreter.with_tools(job.request.tools))

    def _remember(self, job: _Job, reply: Reply, ids: list[int]) -> None:
        if reply.finish_reason == "length":
            return  # the turn has no end: whoever goes on from it renders it
        message = parse_messages([{"reasoning_content": "", **reply.message()}])[0]
        request = job.request
        self._memory.remember(request.messages, message, request.tools, [*job.prompt, *ids])

    # ------------------------------------------------------------ streaming

    async def _events(self, job: _Job) -> AsyncIterator[str]:
        """Server-sent events of one completion."""
        stream = self._stream_for(job)
        opened = False
        finish, cached = "", None
        async with self._slot():
            try:
                async for chunk in self._sample(job):
                    if not opened:
                        opened = True
                        yield self._event(job, {"role": "assistant", "content": ""})
                    finish = chunk.finish_reason or finish
                    cached = chunk.cached_tokens if cached is None else cached
                    for delta in stream.feed(chunk.ids):
                        yield self._event(job, delta)
            except BackendFailure as failure:
                if not opened:
                    raise
                yield f"data: {json.dumps(_server_fault(failure).body())}\n\n"
                return
        reply, deltas = stream.finish(finish)
        self._remember(job, reply, stream.ids)
        for delta in deltas:
            yield self._event(job, delta)
        yield self._event(job, {}, reply)
        if job.request.include_usage:
            last = self._object(job, "chat.completion.chunk", [])
            usage = _usage(job, stream.ids, cached)
            yield f"data: {json.dumps(last | {'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"

    def _event(self, job: _Job, delta: JsonObject, reply: Reply | None = None) -> str:
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": None}
        if reply is not None:
            choice |= {"finish_reason": reply.finish_reason, "tbrl": reply.extra()}
        return f"data: {json.dumps(self._object(job, 'chat.completion.chunk', [choice]))}\n\n"

    def _object(self, job: _Job, kind: str, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": job.id,
            "object": kind,
            "created": job.created,
            "model": self._model,
            "choices": choices,
        }


def _usage(job: _Job, ids: list[int], cached: int | None) -> JsonObject:
    """Without details where the engine did not say what was cached."""
    prompt, completion = len(job.prompt), len(ids)
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "prompt_tokens": prompt,
        **details,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _server_fault(failure: BackendFailure) -> RequestError:
    status = 504 if failure.kind == "deadline" else 502
    return RequestError(status, f"the engine failed: {failure.detail}", "engine_failure")


async def _prepend(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for event in rest:
        yield event
