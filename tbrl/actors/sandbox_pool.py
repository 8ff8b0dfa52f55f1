"""SandboxPool: the sessions of one node."""

from __future__ import annotations

import asyncio

import ray

from tbrl.config import SandboxConfig
from tbrl.sandbox.build import build_sandbox
from tbrl.sandbox.pool import SessionPool
from tbrl.types import JsonObject, PublicTask, TerminalState, ToolResult, ToolSpec


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)
class SandboxPool:
    """Restarted by Ray when it dies: its sessions are lost, which their episodes see as a
    backend failure, and are refilled."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._pool: SessionPool | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def _ready(self) -> SessionPool:
        # Built on the actor's event loop, which does not run yet in __init__.
        if self._pool is None:
            config = self._config
            sandbox = build_sandbox(config)
            self._pool = SessionPool(sandbox, config.max_sessions, config.session_lease_s)
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep(self._pool))
        return self._pool

    async def _sweep(self, pool: SessionPool) -> None:
        while True:
            await asyncio.sleep(self._config.session_lease_s / 4)
            await pool.expire()

    async def open(self, task: PublicTask) -> tuple[str, tuple[ToolSpec, ...], str]:
        """(session id, tools, policy text)."""
        session = await self._ready().open(task)
        return session.session_id, session.tools, session.policy

    async def call_tool(self, session_id: str, name: str, arguments: JsonObject) -> ToolResult:
        return await self._ready().call_tool(session_id, name, arguments)

    async def finish(self, session_id: str) -> TerminalState:
        return await self._ready().finish(session_id)

    async def close(self, session_id: str) -> None:
        await self._ready().close(session_id)

    async def describe(self) -> JsonObject:
        return self._ready().describe()
