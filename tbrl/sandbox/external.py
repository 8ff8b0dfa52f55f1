"""External MCP servers behind the session interface: over stdio (one process a session) or over
streamable HTTP (one connection a session).

What the policy can reach is what the server advertised, less every reserved name and less the tools
that this sandbox itself uses to set the world up and to read it; other names are answered here and
never forwarded. A call that passes its deadline may still run over there, so it is never repeated:
the session is over.
"""

from __future__ import annotations

import asyncio
import shlex
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import mcp_types as mcp
import orjson
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tbrl.config import SandboxConfig
from tbrl.errors import BackendFailure, ConfigError, ModelError
from tbrl.sandbox.arguments import check_values
from tbrl.sandbox.backend import Clock
from tbrl.sandbox.effects import json_effects
from tbrl.sandbox.leases import Leases
from tbrl.sandbox.state import json_state_hash
from tbrl.types import JsonObject, PublicTask, TerminalState, ToolResult, ToolSpec

RESERVED = "__reserved__"
_STDIO = "stdio:"


class ExternalSandbox(Leases["ExternalSession"]):
    """Implements interfaces.Sandbox.

    `config.url`: `http(s)://...` or `stdio:<command line>`. `setup_tool` is called at open with
    {scenario_id, patch}; `state_tool` without arguments at open and at the end, its text being JSON
    of the state, {table: rows}. Neither is shown to the policy.
    """

    def __init__(
        self,
        config: SandboxConfig,
        setup_tool: str = "",
        state_tool: str = "",
        token: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        """`token` is sent as a bearer token over HTTP. Raises ConfigError for another address."""
        super().__init__(config.max_sessions, config.session_lease_s, clock)
        if not config.url.startswith(("http://", "https://", _STDIO)):
            raise ConfigError(
                f"sandbox.url={config.url!r}: use http(s)://host:port/mcp or stdio:<command>"
            )
        self._config = config
        self._setup_tool = setup_tool
        self._state_tool = state_tool
        self._token = token

    async def open(self, task: PublicTask) -> ExternalSession:
        """Connect, list tools, set the world up. Raises BackendFailure when the server does not
        come up in time."""
        await self.place()
        session = ExternalSession(
            self._config, self._setup_tool, self._state_tool, self._token, self._clock
        )
        try:
            await session.start(task)
        except BaseException:
            self.give_back()
            await session.close()
            raise
        self.add(session)
        return session


class ExternalSession:
    """Implements interfaces.SandboxSession. The SDK's client must be entered and left by one task,
    which the session owns."""

    policy = ""
    tools: tuple[ToolSpec, ...] = ()

    def __init__(
        self, config: SandboxConfig, setup_tool: str, state_tool: str, token: str, clock: Clock
    ) -> None:
        self.session_id = uuid.uuid4().hex
        self.last_used = clock()
        self.on_close: list[Callable[[], None]] = []
        self._config = config
        self._setup_tool = setup_tool
        self._state_tool = state_tool
        self._clock = clock
        self._token = token
        self._client: Client | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._owner = asyncio.create_task(self._own())
        self._dead = ""
        self._initial: dict[str, list[JsonObject]] = {}

    async def start(self, task: PublicTask) -> None:
        """Connected, tools listed, world set up. Raises BackendFailure."""
        await self._within_deadline("connect", asyncio.shield(self._ready))
        listing = await self._within_deadline("tools/list", self._connected().list_tools())
        own = {self._setup_tool, self._state_tool}
        self.tools = tuple(
            ToolSpec(tool.name, tool.description or "", tool.input_schema)
            for tool in listing.tools
            if not tool.name.startswith(RESERVED) and tool.name not in own
        )
        if self._setup_tool:
            patch = {"scenario_id": task.scenario_id, "patch": task.initial_state_patch}
            await self._own_tool(self._setup_tool, patch)
        if self._state_tool:
            self._initial = await self._state()

    async def call_tool(self, name: str, arguments: JsonObject) -> ToolResult:
        """See interfaces. Sent at most once."""
        self.last_used = self._clock()
        if name not in {tool.name for tool in self.tools}:
            known = ", ".join(tool.name for tool in self.tools)
            return ToolResult(f"there is no such tool; tools: {known}", is_error=True)
        try:
            check_values(arguments)
        except ModelError as error:
            return ToolResult(str(error), is_error=True)
        return await self._send(name, arguments)

    async def finish(self) -> TerminalState:
        """Terminal state by `state_tool`, then close. `writes` is 0: the server does not say which
        tools write. Raises ConfigError without a state tool, BackendFailure when it fails."""
        try:
            if not self._state_tool:
                raise ConfigError("sandbox.kind=mcp: without a state tool nothing can be graded")
            state = await self._state()
            return TerminalState(
                json_state_hash(state, {}), json_effects(self._initial, state, {}), 0
            )
        finally:
            await self.close()

    async def close(self) -> None:
        """Disconnect; a stdio server's process ends. Idempotent."""
        self._dead = self._dead or "closed"
        hooks, self.on_close = self.on_close, []
        for hook in hooks:
            hook()
        self._over.set()
        await asyncio.wait([self._owner], timeout=self._config.call_deadline_s)
        if not self._owner.done():
            self._owner.cancel()
            await asyncio.wait([self._owner])

    async def _state(self) -> dict[str, list[JsonObject]]:
        text = await self._own_tool(self._state_tool, {})
        try:
            state = orjson.loads(text)
        except orjson.JSONDecodeError:
            state = None
        if not isinstance(state, dict) or not all(
            isinstance(rows, list) for rows in state.values()
        ):
            raise BackendFailure("backend", self._state_tool, "it does not give {table: rows}")
        return state

    async def _own_tool(self, name: str, arguments: JsonObject) -> str:
        result = await self._send(name, arguments)
        if result.is_error:
            raise BackendFailure("backend", name, result.text[:200])
        return result.text

    async def _send(self, name: str, arguments: JsonObject) -> ToolResult:
        if self._dead:
            raise BackendFailure("backend", name, f"the session is dead: {self._dead}")
        try:
            reply = await self._within_deadline(name, self._connected().call_tool(name, arguments))
        except MCPError as error:
            if error.code == mcp.INVALID_PARAMS:
                return ToolResult(f"refused: {error}", is_error=True)
            self._dead = str(error)
            raise BackendFailure("backend", name, str(error)) from None
        text = "\n".join(b.text for b in reply.content if isinstance(b, mcp.TextContent))
        if len(text.encode()) > self._config.max_result_bytes:
            return ToolResult("the result is too large; ask for less", is_error=True)
        return ToolResult(text, bool(reply.is_error))

    async def _within_deadline(self, where: str, waiting: Any) -> Any:
        try:
            async with asyncio.timeout(self._config.call_deadline_s):
                return await waiting
        except TimeoutError:
            self._dead = f"{where} passed its deadline"
            self._over.set()
            raise BackendFailure(
                "deadline", where, f"no answer within {self._config.call_deadline_s:g} s"
            ) from None

    async def _own(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                connection = await _connection(self._config, self._token, stack)
                self._client = await stack.enter_async_context(connection)
                self._ready.set_result(None)
                await self._over.wait()
        except Exception as error:
            self._dead = self._dead or "the connection is lost"
            if not self._ready.done():
                failure = BackendFailure("backend", "connect", f"{type(error).__name__}: {error}")
                self._ready.set_exception(failure)

    def _connected(self) -> Client:
        if self._client is None:
            raise BackendFailure("backend", "connect", "not connected")
        return self._client


async def _connection(config: SandboxConfig, token: str, stack: AsyncExitStack) -> Client:
    if config.url.startswith(_STDIO):
        command, *arguments = shlex.split(config.url.removeprefix(_STDIO))
        return Client(stdio_client(StdioServerParameters(command=command, args=arguments)))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    http = httpx2.AsyncClient(timeout=config.call_deadline_s, headers=headers)
    await stack.enter_async_context(http)
    return Client(streamable_http_client(config.url, http_client=http))
