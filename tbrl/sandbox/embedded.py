"""Opens embedded sessions: scenarios are compiled once, each session gets its own copy."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from tbrl.config import SandboxConfig
from tbrl.domains.base import Domain
from tbrl.sandbox.backend import Backend, Clock
from tbrl.sandbox.leases import Leases
from tbrl.sandbox.scenario import Scenario, compile_scenario
from tbrl.sandbox.session import EmbeddedSession
from tbrl.types import PublicTask


class EmbeddedSandbox(Leases[EmbeddedSession]):
    """Implements interfaces.Sandbox in this process. One event loop uses it."""

    def __init__(
        self,
        domains: Mapping[str, Domain],
        config: SandboxConfig | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.config = config or SandboxConfig()
        super().__init__(self.config.max_sessions, self.config.session_lease_s, clock)
        self._domains = domains
        self._scenarios: dict[str, Scenario] = {}

    def scenario(self, scenario_id: str) -> Scenario:
        """Compiled on first use, then kept. Raises ConfigError."""
        if scenario_id not in self._scenarios:
            self._scenarios[scenario_id] = compile_scenario(scenario_id, self._domains)
        return self._scenarios[scenario_id]

    async def open(self, task: PublicTask) -> EmbeddedSession:
        """A fresh world for the task. Waits for a place among `max_sessions`, at most a lease;
        raises BackendFailure after that, ConfigError for an unknown scenario or a bad patch."""
        scenario = self.scenario(task.scenario_id)
        await self.place()
        try:
            backend = Backend(scenario, task.initial_state_patch, self.config, self._clock)
        except BaseException:
            self.give_back()
            raise
        session = EmbeddedSession(uuid.uuid4().hex, backend, self._clock)
        self.add(session)
        try:
            await session.start()
        except BaseException:  # whoever asked is gone: nobody else could close it
            await session.close()
            raise
        return session
