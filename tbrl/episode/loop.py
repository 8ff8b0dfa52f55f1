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
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tbrl.config import RolloutConfig
from tbrl.episode.interpretation import Interpreter, Reading
from tbrl.episode.rendering import Renderer
from tbrl.episode.seeding import EpisodeSeeds
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
    Turn,
)

T = TypeVar("T")
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
    state.seconds["total"] = time.perf_counter() - started
    return state.record(key, finish, terminal, outcome, tries)


class _Conversation:
    """The growing episode. Owns the sandbox session."""

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
        self._prompt: list[int] = []
        self._response: list[int] = []
        self._mask: list[bool] = []
        self._logprobs: list[float] = []
        self._turns: list[Turn] = []
        self._version = parts.engine.policy_version
        self._malformed = 0
        self.seconds: dict[str, float] = {"engine": 0.0, "tools": 0.0, "user": 0.0, "grade": 0.0}

    # ------------------------------------------------------------ the loop

    async def play(self) -> tuple[FinishReason, TerminalState, Outcome]:
        with self._clock("tools"):
            self._session = await self._within(
                self._parts.sandbox.open(self._task),
                self._config.turn_deadline_s,
                "backend",
                "open",
            )
        self._interpreter = self._parts.interpreter_for(self._session)
        self._begin()
        finish = await self._converse()
        with self._clock("tools"):
            terminal = await self._within(
                self._session.finish(), self._config.turn_deadline_s, "backend", "finish"
            )
        with self._clock("grade"):
            outcome = await self._within(
                self._parts.grader.grade(self._task.task_ref, terminal, self._final_text()),
                self._config.grade_deadline_s,
                "grader",
                "grade",
            )
        return finish, terminal, outcome

    def _begin(self) -> None:
        assert self._session is not None
        messages = [
            {"role": "system", "content": self._session.policy},
            {"role": "user", "content": self._task.query},
        ]
        self._prompt = list(self._parts.renderer.prompt(messages, self._session.tools))
        end = len(self._prompt)
        self._turns.append(Turn("system", self._session.policy, start=0, end=0))
        self._turns.append(Turn("user", self._task.query, start=0, end=end))

    async def _converse(self) -> FinishReason:
        user_turns = 0
        for turn in range(self._config.max_agent_turns):
            budget = min(self._config.max_turn_tokens, self._room())
            if budget <= 0:
                return "length"
            generation = await self._sample(turn, budget)
            reading = self._interpreter.read(generation.ids, generation.finish_reason)
            self._append_sampled(turn, generation, reading)
            if generation.finish_reason == "length":
                return "length"
            if reading.error is not None:
                self._malformed += 1
                observations = [self._observe("tool", reading.error, is_error=True)]
            elif reading.calls:
                observations = []
                for call in reading.calls:
                    if self._ends_turn(call):
                        return "end_turn_tool"
                    observations.append(await self._call(call))
            elif reading.done:
                return "done"
            else:
                if user_turns == self._config.max_user_turns:
                    return "user_limit"
                user_turns += 1
                text = await self._hear_user(turn)
                observations = [self._observe("user", text)]
            if not self._append_observed(observations, generation):
                return "length"
            if self._turns[-1].role == "user" and self._turns[-1].text.endswith("<DONE>"):
                return "user_done"
        return "agent_limit"

    # ------------------------------------------------------------ the parts

    async def _sample(self, turn: int, budget: int) -> Generation:
        with self._clock("engine"):
            generation = await self._within(
                self._parts.engine.generate(
                    self._prompt + self._response,
                    self._sampling,
                    budget,
                    self._seeds.turn(turn),
                    self._parts.renderer.stop_ids,
                ),
                self._config.turn_deadline_s,
                "engine",
                "generate",
            )
        if generation.policy_version != self._version:
            raise InvariantError(
                f"turn {turn} was sampled by policy version {generation.policy_version}, the "
                f"episode began with {self._version}"
            )
        return generation

    async def _call(self, call: ToolCall) -> dict[str, Any]:
        assert self._session is not None
        with self._clock("tools"):
            result = await self._within(
                self._session.call_tool(call.name, call.arguments),
                self._config.turn_deadline_s,
                "backend",
                call.name,
            )
        return self._observe("tool", result.text, result.is_error, call.name)

    async def _hear_user(self, turn: int) -> str:
        visible = [t for t in self._turns if t.role in ("user", "assistant") and t.text]
        with self._clock("user"):
            return await self._within(
                self._parts.user.reply(self._task, visible, self._seeds.user(turn)),
                self._config.user_deadline_s,
                "user",
                "reply",
            )

    def _ends_turn(self, call: ToolCall) -> bool:
        assert self._session is not None
        return any(tool.ends_turn and tool.name == call.name for tool in self._session.tools)

    async def _within(self, work: Awaitable[T], seconds: float, kind: str, where: str) -> T:
        """Every wait has a deadline; the caller's own (episode) deadline passes through."""
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise BackendFailure(
                "deadline", where, f"{kind} did not answer in {seconds:g} s"
            ) from None

    # ------------------------------------------------------------ tokens

    def _room(self) -> int:
        return self._config.max_episode_tokens - len(self._prompt) - len(self._response)

    def _append_sampled(self, turn: int, generation: Generation, reading: Reading) -> None:
        start = len(self._prompt) + len(self._response)
        self._response.extend(generation.ids)
        self._mask.extend([True] * len(generation.ids))
        self._logprobs.extend(generation.logprobs)
        self._turns.append(
            Turn(
                "assistant",
                reading.text,
                reasoning=reading.reasoning,
                tool_calls=reading.calls,
                is_error=reading.error is not None,
                start=start,
                end=start + len(generation.ids),
                seed=self._seeds.turn(turn),
            )
        )

    def _observe(
        self, role: str, text: str, is_error: bool = False, tool_name: str = ""
    ) -> dict[str, Any]:
        message: dict[str, Any] = {"role": role, "content": text}
        if role == "tool":
            message["name"] = tool_name
        message["is_error"] = is_error
        return message

    def _append_observed(self, observations: list[dict[str, Any]], after: Generation) -> bool:
        """Append the rendered observations; False when they do not fit the token budget."""
        assert self._session is not None
        messages = [{k: v for k, v in o.items() if k != "is_error"} for o in observations]
        delta = self._parts.renderer.delta(messages, after.ids, self._session.tools)
        start = len(self._prompt) + len(self._response)
        fits = len(delta) < self._room()
        if fits:
            self._response.extend(delta)
            self._mask.extend([False] * len(delta))
            self._logprobs.extend([0.0] * len(delta))
        end = len(self._prompt) + len(self._response)
        for o in observations:
            self._turns.append(
                Turn(
                    o["role"],
                    o["content"],
                    tool_name=o.get("name", ""),
                    is_error=o["is_error"],
                    start=start,
                    end=end,
                )
            )
        return fits

    def _final_text(self) -> str:
        texts = [t.text for t in self._turns if t.role == "assistant" and t.text]
        return texts[-1] if texts else ""

    # ------------------------------------------------------------ the record

    @contextmanager
    def _clock(self, phase: str) -> Any:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started

    def failed(self, kind: FailureKind, where: str, detail: str) -> Failed:
        return Failed(kind, where, detail, tokens=len(self._prompt) + len(self._response))

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
            prompt_ids=np.asarray(self._prompt, dtype=np.int32),
            response_ids=np.asarray(self._response, dtype=np.int32),
            action_mask=np.asarray(self._mask, dtype=bool),
            behaviour_logprobs=np.asarray(self._logprobs, dtype=np.float32),
            turns=tuple(self._turns),
            finish_reason=finish if not isinstance(outcome, Failed) else "failed",
            outcome=outcome,
            sampling=self._sampling,
            effects=terminal.effects if terminal else (),
            state_hash=terminal.state_hash if terminal else "",
            tries=tries,
            malformed_turns=self._malformed,
            seconds=self.seconds,
        )
