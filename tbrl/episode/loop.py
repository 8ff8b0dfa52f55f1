"""One episode: an agent, its tools, a user, and the state they leave behind.

    prompt ids -> [ sample a turn -> read it -> run its calls, or hear the user -> append ids ] ...
               -> terminal state -> grade -> Episode

Sampled ids are only ever appended, never re-encoded; what the environment says is rendered as a
delta behind them. The policy's mistakes are answered in the conversation; an infrastructure
error or a missed deadline ends the episode as Failed, which has no reward.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from tbrl.config import RolloutConfig
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.meter import Meter
from tbrl.episode.rendering import Renderer
from tbrl.episode.seeding import EpisodeSeeds
from tbrl.episode.transcript import Observation, Transcript
from tbrl.errors import BackendFailure, InvariantError
from tbrl.interfaces import Grader, PolicyEngine, Sandbox, SandboxSession, UserSimulator
from tbrl.types import (
    Episode,
    EpisodeKey,
    Failed,
    FailureKind,
    FinishReason,
    Generation,
    Outcome,
    PublicTask,
    Sampling,
    TerminalState,
    ToolCall,
)
from tbrl.usage import RoleUsage

DONE = "<DONE>"
InterpreterFor = Callable[[SandboxSession], Interpreter]
"""The interpreter of a session's tools (cached per scenario by the caller)."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an episode is made of."""

    engine: PolicyEngine
    sandbox: Sandbox
    user: UserSimulator
    grader: Grader
    renderer: Renderer
    interpreter_for: InterpreterFor
    unanswered: RoleUsage
    """What a call without an answer is booked as."""


async def run_episode(
    parts: Parts,
    task: PublicTask,
    key: EpisodeKey,
    config: RolloutConfig,
    sampling: Sampling,
    seeds: EpisodeSeeds,
    tries: int = 1,
) -> Episode:
    """Play one episode to its end. Never raises for infrastructure errors: they are the outcome."""
    state = _Conversation(parts, task, config, sampling, seeds)
    started = time.perf_counter()
    outcome: Outcome
    terminal: TerminalState | None = None
    try:
        async with asyncio.timeout(config.episode_deadline_s):
            finish, terminal, outcome = await state.play()
    except BackendFailure as failure:
        finish, outcome = "failed", state.failed(failure.kind, failure.where, failure.detail)
    except TimeoutError:
        detail = f"episode passed its deadline of {config.episode_deadline_s:g} s"
        finish, outcome = "failed", state.failed("deadline", "episode", detail)
    finally:
        await state.close()
    state.meter.seconds["total"] = time.perf_counter() - started
    return state.record(key, finish, terminal, outcome, tries)


class _Conversation:
    """The episode in progress. Owns the sandbox session."""

    def __init__(
        self,
        parts: Parts,
        task: PublicTask,
        config: RolloutConfig,
        sampling: Sampling,
        seeds: EpisodeSeeds,
    ) -> None:
        self._parts = parts
        self._task = task
        self._config = config
        self._sampling = sampling
        self._seeds = seeds
        self._session: SandboxSession | None = None
        self._interpreter: Interpreter
        self._transcript = Transcript(parts.renderer, config.max_episode_tokens)
        self._version = parts.engine.policy_version
        self._malformed = 0
        self.meter = Meter(parts.unanswered)

    # ------------------------------------------------------------ the loop

    async def play(self) -> tuple[FinishReason, TerminalState, Outcome]:
        patience = self._config.turn_deadline_s
        opening = self._parts.sandbox.open(self._task)
        self._session = await self.meter.within(opening, patience, "tools", "backend", "open")
        self._interpreter = self._parts.interpreter_for(self._session)
        self._transcript.begin(self._session.policy, self._task.query, self._session.tools)
        finish = await self._converse()
        finishing = self._session.finish()
        terminal = await self.meter.within(finishing, patience, "tools", "backend", "finish")
        grading = self._parts.grader.grade(
            self._task.task_ref, terminal, self._transcript.final_text()
        )
        deadline = self._config.grade_deadline_s
        grade = await self.meter.asked("judge", grading, deadline, "grade", "grader", "grade")
        return finish, terminal, grade.outcome

    async def _converse(self) -> FinishReason:
        """Turns until one of the reasons to finish. Each branch is one thing a turn can be."""
        user_turns = 0
        for turn in range(self._config.max_agent_turns):
            budget = min(self._config.max_turn_tokens, self._transcript.room)
            if budget <= 0:
                return "length"
            generation = await self._sample(turn, budget)
            reading = self._interpreter.read(generation.ids, generation.finish_reason)
            self._transcript.sampled(generation, reading, self._seeds.turn(turn))
            if generation.finish_reason == "length":
                return "length"
            if reading.error is not None:
                self._malformed += 1
                observations = [Observation("tool", reading.error, is_error=True)]
            elif reading.calls:
                if any(self._ends_turn(call) for call in reading.calls):
                    return "end_turn_tool"
                observations = [await self._call(call) for call in reading.calls]
            elif reading.done:
                return "done"
            elif user_turns == self._config.max_user_turns:
                return "user_limit"
            else:
                user_turns += 1
                observations = [await self._hear_user(turn)]
            if not self._transcript.observed(observations, generation):
                return "length"
            if observations[-1].role == "user" and observations[-1].text.endswith(DONE):
                return "user_done"
        return "agent_limit"

    # ------------------------------------------------------------ the parts

    async def _sample(self, turn: int, budget: int) -> Generation:
        generation = await self.meter.asked(
            "agent",
            self._parts.engine.generate(
                self._transcript.context,
                self._sampling,
                budget,
                self._seeds.turn(turn),
                self._parts.renderer.stop_ids,
            ),
            self._config.turn_deadline_s,
            "engine",
            "engine",
            "generate",
        )
        if generation.policy_version != self._version:
            raise InvariantError(
                f"turn {turn} was sampled by policy version {generation.policy_version}, the "
                f"episode began with {self._version}"
            )
        return generation

    async def _call(self, call: ToolCall) -> Observation:
        assert self._session is not None
        calling = self._session.call_tool(call.name, call.arguments)
        deadline = self._config.turn_deadline_s
        result = await self.meter.within(calling, deadline, "tools", "backend", call.name)
        return Observation("tool", result.text, result.is_error, call.name)

    async def _hear_user(self, turn: int) -> Observation:
        replying = self._parts.user.reply(
            self._task, self._transcript.visible(), self._seeds.user(turn)
        )
        deadline = self._config.user_deadline_s
        reply = await self.meter.asked("user", replying, deadline, "user", "user", "reply")
        return Observation("user", reply.text, usage=reply.usage)

    def _ends_turn(self, call: ToolCall) -> bool:
        assert self._session is not None
        return any(tool.ends_turn and tool.name == call.name for tool in self._session.tools)

    # ------------------------------------------------------------ the record

    def failed(self, kind: FailureKind, where: str, detail: str) -> Failed:
        return Failed(kind, where, detail, tokens=self._transcript.total)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def record(
        self,
        key: EpisodeKey,
        finish: FinishReason,
        terminal: TerminalState | None,
        outcome: Outcome,
        tries: int,
    ) -> Episode:
        return Episode(
            key=key,
            task_ref=self._task.task_ref,
            domain=self._task.domain,
            template=self._task.template,
            policy_version=self._version,
            **self._transcript.arrays(),
            turns=tuple(self._transcript.turns),
            finish_reason="failed" if isinstance(outcome, Failed) else finish,
            outcome=outcome,
            sampling=self._sampling,
            effects=terminal.effects if terminal else (),
            state_hash=terminal.state_hash if terminal else "",
            tries=tries,
            malformed_turns=self._malformed,
            seconds=self.meter.seconds,
            segments=tuple(self._transcript.segments),
            usage=self.meter.usage,
        )
