"""BusinessEnvironment: one client's side of the server, as OpenEnv defines an environment."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import orjson
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    ToolErrorType,
)
from openenv.core.env_server.types import EnvironmentMetadata, Observation

from tbrl.errors import BackendFailure
from tbrl.evaluation.chat_models import CompletedCall, Completion
from tbrl.serving.openenv.episode import EpisodeHost, OutsideEpisode, RefusedRequest, Sight
from tbrl.serving.openenv.models import (
    AgentAction,
    EpisodeState,
    TaskObservation,
    ToolObservation,
    UserObservation,
)
from tbrl.types import PublicTask, ToolSpec

_MAX_SEED = 2**63
log = logging.getLogger(__name__)


class BusinessEnvironment(Environment[AgentAction, Observation, EpisodeState]):
    """The episodes of one client, one after the other. A step is one agent turn.

    A failure of the backend, the user or the grader is an error and never a reward: the client
    resets and plays again.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    # Nothing blocks here, so all environments share one thread instead of having one each.
    REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def __init__(self, host: EpisodeHost) -> None:
        super().__init__()
        self._host = host
        self._episode: OutsideEpisode | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tools: tuple[ToolSpec, ...] = ()
        self._state = EpisodeState()
        self._closed = False

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task_ref: str = "",
        **unknown: Any,
    ) -> TaskObservation:
        """A fresh world for the task that `task_ref` or `seed` names, see EpisodeHost.choose."""
        with _told():
            if unknown:
                raise RefusedRequest(
                    f"reset has no {sorted(unknown)[0][:80]!r}; it takes seed, episode_id, task_ref"
                )
            if seed is not None and not (isinstance(seed, int) and 0 <= seed < _MAX_SEED):
                raise RefusedRequest("seed must be an integer from 0 to 2^63 - 1")
            if not isinstance(task_ref, str) or not isinstance(episode_id, str | None):
                raise RefusedRequest("task_ref and episode_id must be text")
            task = self._host.choose(task_ref, seed)
            await self._leave()
            sight = await self._enter(task, seed or 0)
            self._state = EpisodeState(
                episode_id=episode_id or uuid.uuid4().hex,
                task_ref=task.task_ref,
                domain=task.domain,
            )
            return self._opening(task, sight)

    async def step_async(
        self, action: Any, timeout_s: float | None = None, **_: Any
    ) -> Observation:
        """Take a turn: call a tool, or speak to the user. `list_tools` takes none."""
        with _told():
            if self._episode is None or self._state.done:
                over = "the episode is over" if self._state.done else "no episode is open"
                raise RefusedRequest(f"{over}; reset first (plain HTTP keeps none: use /ws)")
            asked = _action_of(action)
            if asked.type == "list_tools":
                return ListToolsObservation(tools=[_shown(tool) for tool in self._tools])
            if asked.type == "call_tool" and not asked.tool_name:
                raise RefusedRequest("call_tool needs a tool_name")
            self._state.step_count += 1
            sight = await self._act(_turn_of(asked, self._state.step_count))
            self._state.done = bool(sight.finish_reason)
            return self._reply(asked, sight)

    def reset(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: an episode lives on the server's event loop."""
        raise RefusedRequest("use reset_async")

    def step(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: an episode lives on the server's event loop."""
        raise RefusedRequest("use step_async")

    @property
    def state(self) -> EpisodeState:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(
            name="tbrl",
            description=f"{len(self._host.tasks)} tasks of tool-using agents in business "
            "databases; the reward is 1 if every record is as it should be in the end",
        )

    def close(self) -> None:
        """The client is gone or its lease ran out. Called from any thread."""
        self._closed = True
        if self._episode is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._episode.drop)

    # ------------------------------------------------------------ the episode

    async def _enter(self, task: PublicTask, seed: int) -> Sight:
        if self._closed:
            raise RefusedRequest("the session was closed; connect again")
        self._loop = asyncio.get_running_loop()
        self._episode = episode = self._host.start(task, seed)
        try:
            sight = await episode.begin()
        except BaseException:
            self._episode = None
            episode.drop()
            raise
        self._tools = sight.tools
        return sight

    async def _act(self, turn: Completion) -> Sight:
        assert self._episode is not None
        try:
            return await self._episode.act(turn)
        except BaseException:
            await self._leave()
            raise

    async def _leave(self) -> None:
        """Close the present world before another one opens: a client holds one place at most."""
        episode, self._episode = self._episode, None
        self._state = EpisodeState()
        if episode is not None:
            episode.drop()
            await episode.ended()

    # ------------------------------------------------------------ what is shown

    def _opening(self, task: PublicTask, sight: Sight) -> TaskObservation:
        return TaskObservation(
            task_ref=task.task_ref,
            domain=task.domain,
            policy=sight.policy,
            query=task.query,
            tools=[_shown(tool) for tool in sight.tools],
            eval_only=task.eval_only,
            max_agent_turns=self._host.limits.max_agent_turns,
        )

    def _reply(self, asked: AgentAction, sight: Sight) -> Observation:
        text = "\n".join(sight.texts)
        end = {
            "done": bool(sight.finish_reason),
            "reward": sight.reward,
            "finish_reason": sight.finish_reason,
        }
        if asked.type == "message":
            return UserObservation(text=text, **end)
        known = any(tool.name == asked.tool_name for tool in self._tools)
        missing = ToolError(error_type=ToolErrorType.TOOL_NOT_FOUND, message=text)
        return ToolObservation(
            tool_name=asked.tool_name, result=text, error=None if known else missing, **end
        )


@contextmanager
def _told() -> Iterator[None]:
    """What a client learns of an error: its own mistakes in full, of a failure only its kind. The
    rest is in the server's log."""
    try:
        yield
    except RefusedRequest:
        raise
    except BackendFailure as failure:
        log.warning("%s", failure)
        raise RefusedRequest(
            f"{failure.kind} failure: the episode has no reward; reset to play it again"
        ) from None
    except Exception:
        log.exception("an episode broke")
        raise RefusedRequest("internal error; the episode has no reward") from None


def _action_of(action: Any) -> AgentAction:
    """OpenEnv's own actions reach an environment that is not served over the wire."""
    if isinstance(action, ListToolsAction | CallToolAction):
        return AgentAction(**action.model_dump(exclude={"metadata"}))
    assert isinstance(action, AgentAction)
    return action


def _turn_of(asked: AgentAction, number: int) -> Completion:
    if asked.type == "message":
        return Completion(asked.text)
    try:
        arguments = orjson.dumps(asked.arguments).decode()
    except TypeError:  # not JSON for us (half a surrogate pair, a huge integer): the agent is told
        arguments = ""
    return Completion(asked.text, (CompletedCall(f"call_{number}", asked.tool_name, arguments),))


def _shown(tool: ToolSpec) -> Tool:
    return Tool(name=tool.name, description=tool.description, input_schema=tool.parameters)
