"""Opens embedded sessions: compiled scenarios, back-pressure, leases.

At most `max_sessions` live at once; `open` waits for a place. A session that nobody has used for
`session_lease_s` belongs to a dead client and is closed; whoever still holds it gets a backend
failure.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from functools import partial

from tbrl.config import SandboxConfig
from tbrl.domains.base import Domain
from tbrl.errors import BackendFailure
from tbrl.sandbox.backend import Backend, Clock
from tbrl.sandbox.scenario import Scenario, compile_scenario
from tbrl.sandbox.session import EmbeddedSession
from tbrl.types import PublicTask


class EmbeddedSandbox:
    """Implements interfaces.Sandbox in this process. One event loop uses it."""

    def __init__(
        self,
        domains: Mapping[str, Domain],
        config: SandboxConfig | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.config = config or SandboxConfig()
        self.sessions: dict[str, EmbeddedSession] = {}
        self.opened = 0
        """Sessions opened so far."""
        self.expired = 0
        """Of them, closed because their lease ran out."""
        self._domains = domains
        self._clock = clock
        self._scenarios: dict[str, Scenario] = {}
        self._place_free = asyncio.Event()

    def scenario(self, scenario_id: str) -> Scenario:
        """Compiled on first use, then kept. Raises ConfigError."""
        if scenario_id not in self._scenarios:
            self._scenarios[scenario_id] = compile_scenario(scenario_id, self._domains)
        return self._scenarios[scenario_id]

    async def open(self, task: PublicTask) -> EmbeddedSession:
        """A fresh world for the task. Waits while `max_sessions` are live, at most a lease; raises
        BackendFailure after that, ConfigError for an unknown scenario or a bad patch."""
        scenario = self.scenario(task.scenario_id)
        await self._place()
        backend = Backend(scenario, task.initial_state_patch, self.config, self._clock)
        session = EmbeddedSession(uuid.uuid4().hex, backend, self._clock)
        session.on_close.append(partial(self._forget, session.session_id))
        self.sessions[session.session_id] = session
        self.opened += 1
        await session.start()
        return session

    async def close_expired(self) -> int:
        """Close sessions whose lease ran out; returns how many. Called by whoever owns the
        sandbox, and by `open` when it is full."""
        now = self._clock()
        dead = [
            session
            for session in self.sessions.values()
            if now - session.last_used > self.config.session_lease_s
        ]
        for session in dead:
            await session.close()
        self.expired += len(dead)
        return len(dead)

    async def close(self) -> None:
        """Close every session."""
        for session in list(self.sessions.values()):
            await session.close()

    async def _place(self) -> None:
        limit = self.config.max_sessions
        while len(self.sessions) >= limit:
            if await self.close_expired():
                continue
            self._place_free.clear()
            try:
                await asyncio.wait_for(self._place_free.wait(), self.config.session_lease_s)
            except TimeoutError:
                if not await self.close_expired():
                    raise BackendFailure(
                        "backend", "open", f"no place among {limit} live sessions within the lease"
                    ) from None

    def _forget(self, session_id: str) -> None:
        del self.sessions[session_id]
        self._place_free.set()
