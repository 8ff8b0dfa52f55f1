"""The server: OpenEnv's own application behind a gate, until stopped."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hmac
import os
import signal
import socket
import sys

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.types import ConcurrencyConfig
from rich.console import Console
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from tbrl.config import Config
from tbrl.errors import ConfigError
from tbrl.sandbox.build import build_sandbox
from tbrl.serving.openenv.environment import BusinessEnvironment
from tbrl.serving.openenv.episode import EpisodeHost, RefusedRequest
from tbrl.serving.openenv.grading import GraderProcess
from tbrl.serving.openenv.models import AgentAction, AnyObservation
from tbrl.types import JsonObject
from tbrl.users.build import build_user

MAX_MESSAGE_BYTES = 1_000_000
_CLIENT_GONE_S = 20.0
"""A silent peer is asked after this time and again given it: then its session is closed."""


def serve(config: Config) -> None:
    """Serve the tasks of `openenv.split` until interrupted. Raises ConfigError for tasks that
    cannot be loaded and an address that is taken."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    token = os.environ.get(config.openenv.api_key_env, "") if config.openenv.api_key_env else ""
    listener = _listen(config.openenv.host, config.openenv.port)
    grader = GraderProcess(config)
    try:
        tasks = grader.start()
        sandbox, user = build_sandbox(config.sandbox), build_user(config.user)
        host = EpisodeHost(tasks, sandbox, user, grader, config)
        console = Console(highlight=False)
        address, port = config.openenv.host, listener.getsockname()[1]
        console.print(f"tasks   {len(tasks)}, split {config.openenv.split}")
        console.print(
            f"url     http://{address}:{port}", "" if token else "(no token)", markup=False
        )
        console.print("Ctrl-C stops the server")
        with contextlib.suppress(KeyboardInterrupt):
            server_for(build_app(host, token)).run(sockets=[listener])
    finally:
        grader.stop()


def build_app(host: EpisodeHost, token: str = "") -> ASGIApp:
    """The application: an environment for each WebSocket, at most `sandbox.max_sessions`, and GET
    /tasks beside OpenEnv's routes."""
    app = create_fastapi_app(
        functools.partial(BusinessEnvironment, host),
        AgentAction,
        AnyObservation,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=host.max_sessions, session_timeout=host.lease_s
        ),
    )

    async def list_tasks() -> list[JsonObject]:
        """The tasks that reset takes."""
        return [
            {"task_ref": task.task_ref, "domain": task.domain, "eval_only": task.eval_only}
            for task in host.tasks.values()
        ]

    app.get("/tasks", tags=["Environment Info"])(list_tasks)
    app.add_exception_handler(RefusedRequest, _refused)
    return Gate(app, token)


def server_for(app: ASGIApp) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_ping_interval=_CLIENT_GONE_S,
            ws_ping_timeout=_CLIENT_GONE_S,
            timeout_graceful_shutdown=2,
        )
    )


class Gate:
    """Lets requests with the token in: `Authorization: Bearer <token>`, or as the password of Basic
    authorization, which is what OpenEnv's clients send for `http://any:<token>@host:port`.
    GET /health needs none. Web pages are kept out: a browser names the page's origin."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            with contextlib.suppress(WebSocketDisconnect):  # nobody is left to be told
                await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if "origin" in headers:
            return JSONResponse({"error": "web pages are not served"}, 403)
        size = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not size.isdigit() or int(size) > MAX_MESSAGE_BYTES:
            return JSONResponse({"error": f"send at most {MAX_MESSAGE_BYTES} bytes"}, 413)
        open_to_all = scope["type"] == "http" and scope["path"] == "/health"
        given = _given_token(headers.get("authorization", ""))
        wrong = self._token and not hmac.compare_digest(given, self._token.encode())
        if wrong and not open_to_all:
            challenge = {"WWW-Authenticate": "Bearer"}
            return JSONResponse({"error": "the token is missing or wrong"}, 401, challenge)
        return None


def _given_token(authorization: str) -> bytes:
    kind, _, value = authorization.partition(" ")
    if kind.lower() != "basic":
        return value.strip().encode() if kind.lower() == "bearer" else b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


async def _refused(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 409)


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"openenv.port={port} on openenv.host={host}: {error}; choose another, "
            "0 takes a free one"
        ) from None
    # accepted sockets inherit it; without it small replies wait 40 ms for an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
