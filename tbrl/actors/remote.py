"""The protocols of interfaces.py over actor handles.

A dead or unreachable actor is a BackendFailure like any other; an error raised inside an actor
comes out as itself. Deadlines are the episode loop's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError, RayTaskError

from tbrl.errors import BackendFailure
from tbrl.types import (
    FailureKind,
    Grade,
    JsonObject,
    PublicTask,
    TerminalState,
    ToolResult,
    ToolSpec,
    Turn,
    UserReply,
)


async def ask(reference: Any, kind: FailureKind, where: str) -> Any:
    """Await one actor call."""
    try:
        return await reference
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, BackendFailure):
            raise cause from None
        if isinstance(cause, RayActorError):
            raise BackendFailure(kind, where, "the actor died") from error
        raise
    except RayError as error:
        raise BackendFailure(kind, where, f"the actor is gone ({type(error).__name__})") from error


class RemoteSession:
    """A session held by a SandboxPool actor."""

    def __init__(
        self, pool: ActorHandle, session_id: str, tools: tuple[ToolSpec, ...], policy: str
    ) -> None:
        self._pool = pool
        self._open = True
        self.session_id = session_id
        self.tools = tools
        self.policy = policy

    async def call_tool(self, name: str, arguments: JsonObject) -> ToolResult:
        return await ask(
            self._pool.call_tool.remote(self.session_id, name, arguments), "backend", name
        )

    async def finish(self) -> TerminalState:
        self._open = False
        return await ask(self._pool.finish.remote(self.session_id), "backend", "finish")

    async def close(self) -> None:
        """Fire and forget: a lost close is caught by the session's lease."""
        if self._open:
            self._open = False
            self._pool.close.remote(self.session_id)


class RemoteSandbox:
    """Opens sessions round-robin over the pools of this node."""

    def __init__(self, pools: Sequence[ActorHandle]) -> None:
        self._pools = list(pools)
        self._next = 0

    async def open(self, task: PublicTask) -> RemoteSession:
        pool = self._pools[self._next % len(self._pools)]
        self._next += 1
        session_id, tools, policy = await ask(pool.open.remote(task), "backend", "open")
        return RemoteSession(pool, session_id, tools, policy)


class RemoteUser:
    def __init__(self, actor: ActorHandle) -> None:
        self._actor = actor

    async def reply(self, task: PublicTask, visible: Sequence[Turn], seed: int) -> UserReply:
        return await ask(self._actor.reply.remote(task, list(visible), seed), "user", "reply")


class RemoteGrader:
    def __init__(self, actor: ActorHandle) -> None:
        self._actor = actor

    async def grade(self, task_ref: str, terminal: TerminalState, final_text: str) -> Grade:
        return await ask(
            self._actor.grade.remote(task_ref, terminal, final_text), "grader", "grade"
        )
