"""The parts that an episode is made of, as protocols: what the loop calls, and who may answer.

In-process classes implement them directly (tests, benchmarks, tools); Ray actors' handles are
wrapped into the same shape by `actors/`. Every method that can wait has a deadline on the
caller's side; an infrastructure error is a BackendFailure, whoever raises it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tbrl.types import (
    Generation,
    Grade,
    JsonObject,
    PublicTask,
    Sampling,
    TerminalState,
    ToolResult,
    ToolSpec,
    Turn,
    UserReply,
)


class SandboxSession(Protocol):
    """One isolated world: own database, own MCP server instance, own allowlist."""

    session_id: str
    tools: tuple[ToolSpec, ...]
    policy: str
    """The scenario's policy document (the agent's system prompt)."""

    async def call_tool(self, name: str, arguments: JsonObject) -> ToolResult:
        """Run one tool. The policy's mistakes come back with is_error; raises BackendFailure when
        the world failed or the call passed its deadline (the session is then dead)."""
        ...

    async def finish(self) -> TerminalState:
        """Terminal state, then close. Idempotent close."""
        ...

    async def close(self) -> None:
        """Drop the session without a result."""
        ...


class Sandbox(Protocol):
    """Opens sessions."""

    async def open(self, task: PublicTask) -> SandboxSession: ...


class UserSimulator(Protocol):
    """Speaks for the user. Stateless: the same arguments give the same reply."""

    async def reply(self, task: PublicTask, visible: Sequence[Turn], seed: int) -> UserReply:
        """Next user turn given the visible conversation (user and assistant texts only; no tools,
        no reasoning, no system). Returning text that ends with <DONE> ends the conversation."""
        ...


class Grader(Protocol):
    """Holds the GradingSpecs; nobody else does."""

    async def grade(self, task_ref: str, terminal: TerminalState, final_text: str) -> Grade:
        """State first, then rubrics. A judge or grader error is Failed, never a 0."""
        ...


class PolicyEngine(Protocol):
    """Samples assistant turns. `policy_version` is the version it will sample with."""

    policy_version: int

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        seed: int,
        stop_ids: Sequence[int],
    ) -> Generation: ...
