"""Golden states of tasks whose worlds live behind a session protocol: the expected calls are
replayed in a session of the grader's own, which no agent ever sees."""

from __future__ import annotations

from tbrl.errors import ConfigError
from tbrl.interfaces import Sandbox
from tbrl.rewards.golden import Golden
from tbrl.types import Task, TerminalState, ToolInteraction


class SessionGolden:
    """A GoldenSource over any sandbox."""

    def __init__(self, sandbox: Sandbox, ticket_tables: frozenset[str]) -> None:
        self._sandbox = sandbox
        self._ticket_tables = ticket_tables

    async def golden_of(self, task: Task) -> Golden:
        """Raises ConfigError when a golden call is answered with an error, BackendFailure when the
        world failed."""
        terminal = await self._replayed(task, task.grading.expected_tool_interactions)
        untouched = await self._replayed(task, ())
        return Golden(
            terminal.state_hash, terminal.effects, untouched.state_hash, self._ticket_tables
        )

    async def _replayed(self, task: Task, calls: tuple[ToolInteraction, ...]) -> TerminalState:
        session = await self._sandbox.open(task.public)
        try:
            for number, call in enumerate(calls, start=1):
                result = await session.call_tool(call.tool, call.arguments)
                if result.is_error:
                    raise ConfigError(
                        f"{task.task_ref}: golden call {number} ({call.tool}): {result.text}"
                    )
            return await session.finish()
        finally:
            await session.close()
