"""The golden state of a task: its expected interactions replayed on a fresh backend, through the
same tools and the same argument checks that the agent meets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tbrl.config import SandboxConfig
from tbrl.domains.base import Domain
from tbrl.errors import BackendFailure, ConfigError
from tbrl.sandbox.backend import Backend
from tbrl.sandbox.scenario import Scenario, compile_scenario
from tbrl.types import PublicTask, RowChange, Task, TerminalState, ToolInteraction


@dataclass(frozen=True, slots=True)
class Golden:
    """What the grader compares with."""

    state_hash: str
    effects: tuple[RowChange, ...]
    untouched_hash: str
    """State of the patched world in which nobody did anything."""
    ticket_tables: frozenset[str]
    """Tables of the helpdesk side (attribution tells them from business tables)."""


class GoldenSource(Protocol):
    """Where the grader gets golden states from."""

    async def golden_of(self, task: Task) -> Golden:
        """Raises ConfigError for an invalid task, BackendFailure when the replay failed."""
        ...


class GoldenReplay:
    """A GoldenSource for embedded tasks, in this process. Compiles each scenario once, holds no
    task."""

    def __init__(self, domains: Mapping[str, Domain], config: SandboxConfig | None = None) -> None:
        self._domains = domains
        self._config = config or SandboxConfig()
        self._scenarios: dict[str, Scenario] = {}

    def scenario(self, scenario_id: str) -> Scenario:
        """Raises ConfigError for an unknown one."""
        if scenario_id not in self._scenarios:
            self._scenarios[scenario_id] = compile_scenario(scenario_id, self._domains)
        return self._scenarios[scenario_id]

    async def golden_of(self, task: Task) -> Golden:
        return self.golden(task)

    def golden(self, task: Task) -> Golden:
        """Raises ConfigError naming the task when the patch does not apply or a golden call is
        answered with an error: such a task is invalid."""
        public = task.public
        untouched = self.replay(public, ())
        terminal = self.replay(public, task.grading.expected_tool_interactions)
        domain = self.scenario(public.scenario_id).domain
        return Golden(
            terminal.state_hash, terminal.effects, untouched.state_hash, domain.ticket_tables
        )

    def replay(
        self, public: PublicTask, interactions: tuple[ToolInteraction, ...]
    ) -> TerminalState:
        """Terminal state after the calls. Raises ConfigError as `golden` does."""
        try:
            backend = Backend(
                self.scenario(public.scenario_id), public.initial_state_patch, self._config
            )
        except ConfigError as error:
            raise ConfigError(f"{public.task_ref}: {error}") from None
        try:
            for number, call in enumerate(interactions, start=1):
                try:
                    result = backend.execute(call.tool, call.arguments)
                except BackendFailure as failure:
                    raise ConfigError(
                        f"{public.task_ref}: golden call {number} ({call.tool}): {failure.detail}"
                    ) from failure
                if result.is_error:
                    raise ConfigError(
                        f"{public.task_ref}: golden call {number} ({call.tool}): {result.text}"
                    )
            return backend.terminal()
        finally:
            backend.close()
