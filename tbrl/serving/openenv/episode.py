"""Episodes whose agent is somewhere else: it acts when it likes, within its lease.

    OutsideEpisode.act(turn) --> ChatRunner, waiting in OutsideAgent.complete --> tool or user
                  Sight     <--  its next complete, or its end

The runner is the one that evaluates chat policies, so limits, end conditions, failures and seeds
are those of evaluation. Whoever holds an episode must `drop` it; a dropped episode closes its
sandbox session.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tbrl.config import Config, RolloutConfig
from tbrl.episode.seeding import EpisodeSeeds, attempt_seeds
from tbrl.errors import BackendFailure, TbrlError
from tbrl.evaluation.chat_episode import ChatRunner
from tbrl.evaluation.chat_models import Completion
from tbrl.interfaces import Grader, UserSimulator
from tbrl.sandbox.build import AnySandbox
from tbrl.types import Episode, Failed, JsonObject, PublicTask, Sampling, ToolSpec
from tbrl.usage import NO_TOKENS


class RefusedRequest(TbrlError):
    """The client must act: the message is shown to it."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the agent sees after its turn."""

    texts: tuple[str, ...]
    """Tool replies or the user's words since its last turn."""
    tools: tuple[ToolSpec, ...] = ()
    """Empty at the end."""
    policy: str = ""
    """The system prompt, before the first turn."""
    reward: float | None = None
    """1.0 or 0.0 at the end."""
    finish_reason: str = ""
    """Set at the end."""


class EpisodeHost:
    """What the episodes of one server share. One event loop uses it."""

    def __init__(
        self,
        tasks: Sequence[PublicTask],
        sandbox: AnySandbox,
        user: UserSimulator,
        grader: Grader,
        config: Config,
    ) -> None:
        self.tasks = {task.task_ref: task for task in tasks}
        self.sandbox = sandbox
        self.limits = _limits(config)
        self.lease_s = config.sandbox.session_lease_s
        self.max_sessions = config.sandbox.max_sessions
        self._user = user
        self._grader = grader
        self._root = config.algorithm.seed
        self._order = tuple(tasks)
        self._turn = itertools.count()

    def choose(self, task_ref: str, seed: int | None) -> PublicTask:
        """The named task; else the seed's, number `seed` modulo their count; else the next in
        turn. Raises RefusedRequest for a task that is not served."""
        if not task_ref:
            number = next(self._turn) if seed is None else seed
            return self._order[number % len(self._order)]
        if task_ref not in self.tasks:
            raise RefusedRequest(
                f"task_ref={task_ref[:200]!r} is none of the {len(self.tasks)} tasks served here; "
                "GET /tasks lists them"
            )
        return self.tasks[task_ref]

    def start(self, task: PublicTask, seed: int) -> OutsideEpisode:
        """Begin to play. `seed` is the attempt's number: it seeds the simulated user."""
        agent = OutsideAgent(self.lease_s)
        runner = ChatRunner(
            agent,
            self.sandbox,
            self._user,
            self._grader,
            self.tasks,
            self.limits,
            Sampling(),
            self._seeds,
            NO_TOKENS,  # nothing is recorded here, so nobody adds tokens up
        )
        return OutsideEpisode(agent, asyncio.create_task(runner.run(task.task_ref, seed, 0)))

    def _seeds(self, task_ref: str, attempt: int, _try: int) -> EpisodeSeeds:
        return attempt_seeds("evaluate", self._root, task_ref, attempt, 0)


class OutsideAgent:
    """Implements ChatModel for one episode: waits for the turns that come from outside."""

    def __init__(self, patience_s: float) -> None:
        self.sights: asyncio.Queue[Sight] = asyncio.Queue()
        self.turns: asyncio.Queue[Completion] = asyncio.Queue()
        self._patience_s = patience_s
        self._shown = 0

    async def complete(
        self,
        task_ref: str,
        attempt: int,
        turn: int,
        messages: Sequence[JsonObject],
        tools: Sequence[ToolSpec],
        seed: int,
    ) -> Completion:
        """Shows what is new and waits. Raises BackendFailure when nothing comes."""
        new = [m for m in messages[self._shown :] if m["role"] in ("tool", "user")]
        self._shown = len(messages)
        policy = str(messages[0]["content"]) if turn == 0 else ""
        self.sights.put_nowait(Sight(tuple(m["content"] for m in new), tuple(tools), policy))
        try:
            async with asyncio.timeout(self._patience_s):
                return await self.turns.get()
        except TimeoutError:
            detail = f"no action came within {self._patience_s:g} s"
            raise BackendFailure("deadline", "client", detail) from None


class OutsideEpisode:
    """One episode in progress."""

    def __init__(self, agent: OutsideAgent, running: asyncio.Task[Episode]) -> None:
        self._agent = agent
        self._running = running

    async def begin(self) -> Sight:
        """What the policy starts from. Raises BackendFailure when the world does not open."""
        return await self._next()

    async def act(self, turn: Completion) -> Sight:
        """Take a turn. Raises BackendFailure when the episode failed: it has no reward."""
        if not self._running.done():
            self._agent.turns.put_nowait(turn)
        return await self._next()

    def drop(self) -> None:
        """End it without a result; its sandbox session closes. Idempotent."""
        self._running.cancel()

    async def ended(self) -> None:
        """Wait until a dropped episode has let go of its world."""
        await asyncio.wait([self._running])

    async def _next(self) -> Sight:
        looking = asyncio.create_task(self._agent.sights.get())
        try:
            await asyncio.wait((looking, self._running), return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                return looking.result()
        finally:
            looking.cancel()
        if self._running.cancelled():
            raise RefusedRequest("the session was closed; connect again")
        return _last(self._running.result())


def _last(episode: Episode) -> Sight:
    """The end: what was said after the agent's last turn, and the reward."""
    if isinstance(episode.outcome, Failed):
        failed = episode.outcome
        raise BackendFailure(failed.kind, failed.where, failed.detail)
    spoken = [turn.role for turn in episode.turns]
    last = len(spoken) - spoken[::-1].index("assistant")
    return Sight(
        tuple(turn.text for turn in episode.turns[last:]),
        reward=episode.reward,
        finish_reason=episode.finish_reason,
    )


def _limits(config: Config) -> RolloutConfig:
    """The rollout limits, less those on time spent thinking: how long a client's policy takes is
    its own business while its lease lasts. Tool calls, users and grading keep their deadlines."""
    lease, turns = config.sandbox.session_lease_s, config.rollout.max_agent_turns
    return replace(
        config.rollout, turn_deadline_s=2 * lease, episode_deadline_s=2 * lease * (turns + 2)
    )
