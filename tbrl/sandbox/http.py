"""Sessions over MCP streamable HTTP, for outside agents: one address, one bearer token a session.

    client --POST /mcp, Authorization: Bearer <token>--> HttpGateway --> the session's own Server

The token is the only name a session has here, and it opens that session alone. Opening, grading and
closing stay with whoever holds the session object; no route and no tool reaches them. Requests run
on the event loop that owns the sessions. The gateway listens on loopback unless told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import socket
from collections.abc import Iterator

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tbrl.sandbox.session import EmbeddedSession

_MAX_BODY = 1_000_000
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0


class HttpGateway:
    """Serves exposed sessions until `stop`. A closed session is withdrawn by itself."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        request_deadline_s: float = 30.0,
        max_requests: int = 256,
    ) -> None:
        """`request_deadline_s` bounds one request, slow client included; `max_requests` those in
        progress, more are answered 503. Port 0 takes a free one."""
        self._host = host
        self._port = port
        self._deadline_s = request_deadline_s
        self._max_requests = max_requests
        self._routes: dict[str, _Route] = {}
        self._server: _QuietServer | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Address for MCP clients; valid once started."""
        return f"http://{self._host}:{self._port}/mcp"

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        listener = socket.create_server((self._host, self._port))
        # inherited by accepted sockets; asyncio sets it only on sockets that name their protocol,
        # and without it each small reply waits 40 ms for an acknowledgement
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._port = listener.getsockname()[1]
        self._server = _QuietServer(
            uvicorn.Config(
                self._serve,
                interface="asgi3",
                log_config=None,
                access_log=False,
                lifespan="off",
                limit_concurrency=self._max_requests,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=1,
            )
        )
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not self._server.started:
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Withdraw all sessions (they stay open) and stop listening. Idempotent."""
        for route in list(self._routes.values()):
            await route.stop()
        self._routes.clear()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving], timeout=_STOP_TIMEOUT_S)
            self._server = self._serving = None

    async def expose(self, session: EmbeddedSession) -> str:
        """The token that opens this session; shown once, only its hash is kept."""
        token = secrets.token_urlsafe(32)
        route = _Route(session)
        await route.start()
        key = _key(token)
        self._routes[key] = route

        def withdraw() -> None:
            self._routes.pop(key, None)
            route.end()

        session.on_close.append(withdraw)
        return token

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        if scope["path"].rstrip("/") != "/mcp":
            await JSONResponse({"error": "not found"}, 404)(scope, receive, send)
            return
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        route = self._routes.get(_key(token.strip())) if kind.lower() == "bearer" else None
        if route is None:
            refusal = JSONResponse(
                {"error": "unknown or missing token"}, 401, {"WWW-Authenticate": "Bearer"}
            )
            await refusal(scope, receive, send)
            return
        # A tool runs to its end between two awaits: the deadline can only hit a client that is
        # slow to send or to read, never a call half done.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._deadline_s):
                await route.manager.handle_request(scope, receive, send)


class _Route:
    """The HTTP side of one session: the SDK's stateless manager over the session's server, kept
    running by a task of its own (its task group must end in the task that began it)."""

    def __init__(self, session: EmbeddedSession) -> None:
        self.manager = StreamableHTTPSessionManager(
            session.server,
            json_response=True,
            stateless=True,
            max_request_body_size=_MAX_BODY,
            security_settings=TransportSecuritySettings(
                enable_dns_rebinding_protection=True,
                allowed_hosts=["127.0.0.1:*", "localhost:*", "[::1]:*"],
                allowed_origins=[],
            ),
        )
        self._over = asyncio.Event()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        await self._ready.wait()

    def end(self) -> None:
        self._over.set()

    async def stop(self) -> None:
        self.end()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        async with self.manager.run():
            self._ready.set()
            await self._over.wait()


class _QuietServer(uvicorn.Server):
    """Leaves the process's signal handlers alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _key(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
