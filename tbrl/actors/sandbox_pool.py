"""SandboxPool: the sessions of one node."""

from __future__ import annotations

import asyncio

from tbrl.actors.actor import actor
from tbrl.config import SandboxConfig
from tbrl.errors import BackendFailure
from tbrl.interfaces import SandboxSession
from tbrl.sandbox.build import build_sandbox
from tbrl.types import JsonObject, PublicTask, TerminalState, ToolResult, ToolSpec


@actor(restarts=-1, concurrency=4096)
class SandboxPool:
    """Addresses the sandbox's sessions by id for other processes.

    Restarted by Ray when it dies: its sessions are lost, which their episodes see as a backend
    failure, and are run again.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._sandbox = build_sandbox(config)
        self._sessions: dict[str, SandboxSession] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._calls = 0

    async def open(self, task: PublicTask) -> tuple[str, tuple[ToolSpec, ...], str]:
        """(session id, tools, policy text). Waits while `max_sessions` are open."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        session = await self._sandbox.open(task)
        self._sessions[session.session_id] = session
        return session.session_id, session.tools, session.policy

    async def call_tool(self, session_id: str, name: str, arguments: JsonObject) -> ToolResult:
        self._calls += 1
        return await self._session(session_id).call_tool(name, arguments)

    async def finish(self, session_id: str) -> TerminalState:
        """Terminal state; the session is closed."""
        session = self._session(session_id)
        del self._sessions[session_id]
        return await session.finish()

    async def close(self, session_id: str) -> None:
        """Idempotent."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await session.close()

    async def describe(self) -> JsonObject:
        """Counters for metrics."""
        return {
            "opened": self._sandbox.opened,
            "open": len(self._sessions),
            "expired": self._sandbox.expired,
            "calls": self._calls,
        }

    def _session(self, session_id: str) -> SandboxSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise BackendFailure("backend", "sandbox pool", "the session is not open here")
        return session

    async def _sweep(self) -> None:
        """Sessions of dead clients are closed when their lease runs out."""
        while True:
            await asyncio.sleep(self._config.session_lease_s / 4)
            await self._sandbox.close_expired()
            live = self._sandbox.sessions
            self._sessions = {sid: s for sid, s in self._sessions.items() if sid in live}
