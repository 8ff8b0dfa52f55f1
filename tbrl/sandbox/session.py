"""One isolated world behind the Model Context Protocol.

    rollout -> EmbeddedSession.call_tool -> SDK dispatcher -> this session's Server -> Backend
    outside agent -> streamable HTTP (http.py)             -> this session's Server -> Backend

Each session has a low-level `Server` of the official SDK, over its own database copy. Requests go
through the SDK's direct dispatcher pair: the protocol's own envelope, parameter validation and
result serialisation without a byte stream. (`mcp.Client` on the same pair costs twice as much a
call, and ties opening and closing to one task.) Opening, grading and closing are methods of this
class and nothing else: the server knows tools/list, tools/call, ping and discovery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import mcp_types as mcp
from mcp.server import Server
from mcp.server.runner import modern_on_request
from mcp.shared.direct_dispatcher import create_direct_dispatcher_pair
from mcp.shared.exceptions import MCPError

from tbrl.errors import BackendFailure
from tbrl.sandbox.backend import Backend, Clock
from tbrl.types import JsonObject, TerminalState, ToolResult, ToolSpec

_ENVELOPE = {
    mcp.PROTOCOL_VERSION_META_KEY: mcp.LATEST_PROTOCOL_VERSION,
    mcp.CLIENT_CAPABILITIES_META_KEY: {},
}


class EmbeddedSession:
    """Implements interfaces.SandboxSession. Belongs to the event loop that opened it."""

    def __init__(self, session_id: str, backend: Backend, clock: Clock) -> None:
        self.session_id = session_id
        self.tools: tuple[ToolSpec, ...] = backend.scenario.specs
        self.policy = backend.scenario.policy
        self.last_used = clock()
        self.on_close: list[Callable[[], None]] = []
        """Called once, when the session closes."""
        self._backend = backend
        self._clock = clock
        self._failure: BackendFailure | None = None
        self._closed = False
        self.server: Server[Any] = Server(
            backend.scenario.domain.name,
            on_list_tools=self._on_list_tools,
            on_call_tool=self._on_call_tool,
        )
        self._client, self._served = create_direct_dispatcher_pair(can_send_request=False)
        self._loops = [
            asyncio.create_task(self._served.run(modern_on_request(self.server, {}), _ignore)),
            asyncio.create_task(self._client.run(_refuse, _ignore)),
        ]

    async def start(self) -> None:
        """Let both ends of the dispatcher come up."""
        await asyncio.sleep(0)

    async def call_tool(self, name: str, arguments: JsonObject) -> ToolResult:
        """One `tools/call` request. Never retried. Raises BackendFailure (see interfaces)."""
        if self._closed:
            raise BackendFailure("backend", str(name), "the session is closed")
        params = {"name": name, "arguments": arguments, "_meta": _ENVELOPE}
        try:
            reply = await self._client.send_raw_request("tools/call", params)
        except MCPError as error:
            if self._failure is not None:
                raise self._failure from None
            if error.code == mcp.INVALID_PARAMS:
                return ToolResult(
                    "malformed call: the name must be text, the arguments an object", is_error=True
                )
            raise BackendFailure("backend", str(name), str(error)) from error
        return ToolResult(reply["content"][0]["text"], reply["isError"])

    async def finish(self) -> TerminalState:
        """Terminal state, then close. Raises BackendFailure when the session is closed or dead."""
        if self._closed:
            raise BackendFailure("backend", "finish", "the session is closed")
        if self._failure is not None:
            await self.close()
            raise BackendFailure("backend", "finish", f"the session is dead: {self._failure}")
        try:
            return self._backend.terminal()
        finally:
            await self.close()

    async def close(self) -> None:
        """Drop the world. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for hook in self.on_close:
            hook()
        self._backend.close()
        self._client.close()
        self._served.close()
        await asyncio.gather(*self._loops)

    async def _on_list_tools(
        self, _context: Any, _params: mcp.PaginatedRequestParams | None
    ) -> mcp.ListToolsResult:
        self.last_used = self._clock()
        return self._backend.scenario.listing

    async def _on_call_tool(
        self, _context: Any, params: mcp.CallToolRequestParams
    ) -> mcp.CallToolResult:
        self.last_used = self._clock()
        try:
            result = self._backend.execute(params.name, params.arguments or {})
        except BackendFailure as failure:
            self._failure = self._failure or failure
            # the cause stays on this side: the caller of a broken tool learns only that it broke
            raise MCPError(mcp.INTERNAL_ERROR, "backend failure; the session is over") from None
        return mcp.CallToolResult(
            content=[mcp.TextContent(type="text", text=result.text)], is_error=result.is_error
        )


async def _ignore(*_: Any) -> None:
    """This session's client and server send no notifications."""


async def _refuse(_context: Any, method: str, _params: Any) -> dict[str, Any]:
    raise MCPError(mcp.METHOD_NOT_FOUND, f"the client serves nothing: {method}")
