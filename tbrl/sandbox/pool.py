"""Sessions of many episodes at once: bounded, leased, counted.

A session belongs to whoever opened it and is kept alive by use. One whose client died is closed
when its lease runs out, so nothing leaks; an `open` beyond the bound waits its turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tbrl.errors import BackendFailure
from tbrl.interfaces import Sandbox, SandboxSession
from tbrl.types import JsonObject, PublicTask, TerminalState, ToolResult


@dataclass(slots=True)
class PoolMetrics:
    """Counters since the pool started."""

    opened: int = 0
    finished: int = 0
    closed: int = 0
    expired: int = 0
    """Closed because their lease ran out."""
    calls: int = 0
    peak: int = 0
    """Most sessions open at once."""


@dataclass(slots=True)
class _Leased:
    session: SandboxSession
    last_used: float


class SessionPool:
    """`open`, `call_tool`, `finish`, `close` by session id."""

    def __init__(
        self,
        sandbox: Sandbox,
        max_sessions: int,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sandbox = sandbox
        self._free = asyncio.Semaphore(max_sessions)
        self._lease_s = lease_s
        self._clock = clock
        self._sessions: dict[str, _Leased] = {}
        self.metrics = PoolMetrics()

    async def open(self, task: PublicTask) -> SandboxSession:
        """Waits while `max_sessions` are open."""
        await self._free.acquire()
        try:
            session = await self._sandbox.open(task)
        except BaseException:
            self._free.release()
            raise
        self._sessions[session.session_id] = _Leased(session, self._clock())
        self.metrics.opened += 1
        self.metrics.peak = max(self.metrics.peak, len(self._sessions))
        return session

    async def call_tool(self, session_id: str, name: str, arguments: JsonObject) -> ToolResult:
        session = self._use(session_id)
        self.metrics.calls += 1
        return await session.call_tool(name, arguments)

    async def finish(self, session_id: str) -> TerminalState:
        session = self._use(session_id)
        try:
            return await session.finish()
        finally:
            self.metrics.finished += 1
            self._forget(session_id)

    async def close(self, session_id: str) -> None:
        """Unknown or already closed ids are fine: closing is idempotent."""
        leased = self._sessions.get(session_id)
        if leased is not None:
            self._forget(session_id)
            self.metrics.closed += 1
            await leased.session.close()

    async def expire(self) -> int:
        """Close the sessions whose lease ran out; returns how many."""
        limit = self._clock() - self._lease_s
        stale = [sid for sid, leased in self._sessions.items() if leased.last_used < limit]
        for session_id in stale:
            await self.close(session_id)
        self.metrics.expired += len(stale)
        return len(stale)

    def describe(self) -> JsonObject:
        return {**asdict(self.metrics), "open": len(self._sessions)}

    def _use(self, session_id: str) -> SandboxSession:
        leased = self._sessions.get(session_id)
        if leased is None:
            raise BackendFailure("backend", "sandbox pool", "the session is not open here")
        leased.last_used = self._clock()
        return leased.session

    def _forget(self, session_id: str) -> None:
        if self._sessions.pop(session_id, None) is not None:
            self._free.release()
