"""One episode through chat completions: the same sandbox, user, grader, limits and end conditions
as episode/loop.py, but messages instead of token ids (so nothing of it can be trained on)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import orjson

from tbrl.config import RolloutConfig
from tbrl.episode.meter import Meter
from tbrl.episode.seeding import EpisodeSeeds
from tbrl.errors import BackendFailure
from tbrl.evaluation.chat_models import DONE, ChatModel, CompletedCall, Completion
from tbrl.interfaces import Grader, Sandbox, SandboxSession, UserSimulator
from tbrl.types import (
    Episode,
    EpisodeKey,
    Failed,
    FinishReason,
    JsonObject,
    Outcome,
    PublicTask,
    Sampling,
    TerminalState,
    ToolCall,
    ToolResult,
    Turn,
)
from tbrl.usage import RoleUsage, Usage

_Asked = tuple[CompletedCall, ToolCall | str]
"""A call as sent, and as read: a ToolCall, or an error for the policy."""


@dataclass(frozen=True, slots=True)
class ChatRunner:
    """Runs attempts of tasks for a campaign: `run` is a campaign's `Run`."""

    model: ChatModel
    sandbox: Sandbox
    user: UserSimulator
    grader: Grader
    tasks: Mapping[str, PublicTask]
    config: RolloutConfig
    sampling: Sampling
    seeds_of: Callable[[str, int, int], EpisodeSeeds]
    """(task_ref, attempt, try_) -> seeds."""
    unanswered: RoleUsage
    """What a call without an answer is booked as."""

    async def run(self, task_ref: str, attempt: int, try_: int) -> Episode:
        """Play one attempt. Infrastructure errors and deadlines are the outcome."""
        seeds = self.seeds_of(task_ref, attempt, try_)
        play = _Play(self, self.tasks[task_ref], attempt, seeds, Meter(self.unanswered))
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self.config.episode_deadline_s):
                await play.play()
        except BackendFailure as failure:
            play.outcome = Failed(failure.kind, failure.where, failure.detail)  # type: ignore[arg-type]
        except TimeoutError:
            detail = f"episode passed its deadline of {self.config.episode_deadline_s:g} s"
            play.outcome = Failed("deadline", "episode", detail)
        finally:
            if play.session is not None:
                await play.session.close()
        play.meter.seconds["total"] = time.perf_counter() - started
        return play.record(try_ + 1)


@dataclass(slots=True)
class _Play:
    """The attempt in progress."""

    runner: ChatRunner
    task: PublicTask
    attempt: int
    seeds: EpisodeSeeds
    meter: Meter
    session: SandboxSession | None = None
    messages: list[JsonObject] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    malformed: int = 0
    finish: FinishReason = "failed"
    terminal: TerminalState | None = None
    outcome: Outcome = field(default_factory=lambda: Failed("backend", "open", "did not begin"))

    async def play(self) -> None:
        runner, config = self.runner, self.runner.config
        opening = runner.sandbox.open(self.task)
        patience = config.turn_deadline_s
        self.session = await self.meter.within(opening, patience, "tools", "backend", "open")
        self._say("system", self.session.policy)
        self._say("user", self.task.query)
        self.finish = await self._converse()
        finishing = self.session.finish()
        self.terminal = await self.meter.within(finishing, patience, "tools", "backend", "finish")
        grading = runner.grader.grade(self.task.task_ref, self.terminal, self._final_text())
        deadline = config.grade_deadline_s
        grade = await self.meter.asked("judge", grading, deadline, "grade", "grader", "grade")
        self.outcome = grade.outcome

    async def _converse(self) -> FinishReason:
        """Turns until one of the reasons to finish, as in episode/loop.py."""
        config = self.runner.config
        user_turns = 0
        for number in range(config.max_agent_turns):
            completion = await self._complete(number)
            text = completion.text.strip()
            done = text.endswith(DONE) and not completion.calls
            calls = self._heard(number, completion, text.removesuffix(DONE).rstrip())
            if completion.truncated:
                return "length"
            if completion.error:
                self.malformed += 1
                self._say("tool", completion.error)
            elif calls:
                if any(self._ends_turn(call) for _, call in calls):
                    return "end_turn_tool"
                await self._answer(calls)
            elif done:
                return "done"
            elif not text:
                self.malformed += 1
                self._say("user", "Your last message was empty: call a tool or answer the user.")
            elif user_turns == config.max_user_turns:
                return "user_limit"
            else:
                user_turns += 1
                if await self._hear_user(number):
                    return "user_done"
        return "agent_limit"

    async def _complete(self, number: int) -> Completion:
        assert self.session is not None
        completing = self.runner.model.complete(
            self.task.task_ref,
            self.attempt,
            number,
            self.messages,
            self.session.tools,
            self.seeds.turn(number),
        )
        deadline = self.runner.config.turn_deadline_s
        return await self.meter.asked("agent", completing, deadline, "engine", "engine", "complete")

    async def _hear_user(self, number: int) -> bool:
        """Whether the user ended the conversation."""
        replying = self.runner.user.reply(self.task, self._visible(), self.seeds.user(number))
        deadline = self.runner.config.user_deadline_s
        reply = await self.meter.asked("user", replying, deadline, "user", "user", "reply")
        self._say("user", reply.text, reply.usage)
        return reply.text.endswith(DONE)

    def _heard(self, number: int, completion: Completion, text: str) -> list[_Asked]:
        """Record the agent's message; returns its calls as sent beside what they say."""
        asked = [(call, _read_call(call)) for call in completion.calls]
        malformed = any(isinstance(call, str) for _, call in asked)
        self.malformed += malformed
        self.turns.append(
            Turn(
                "assistant",
                text,
                reasoning=completion.reasoning,
                tool_calls=tuple(call for _, call in asked if isinstance(call, ToolCall)),
                is_error=malformed,
                seed=self.seeds.turn(number),
                usage=completion.usage,
            )
        )
        self.messages.append(_assistant_message(completion))
        return asked

    async def _answer(self, asked: list[_Asked]) -> None:
        """Run the calls one after the other; a malformed one gets its error."""
        assert self.session is not None
        deadline = self.runner.config.turn_deadline_s
        for sent, call in asked:
            if isinstance(call, str):
                result = ToolResult(call, is_error=True)
            else:
                calling = self.session.call_tool(call.name, call.arguments)
                result = await self.meter.within(calling, deadline, "tools", "backend", call.name)
            turn = Turn("tool", result.text, tool_name=sent.name, is_error=result.is_error)
            self.turns.append(turn)
            reply = {"role": "tool", "tool_call_id": sent.call_id, "content": result.text}
            self.messages.append(reply)

    def _ends_turn(self, call: ToolCall | str) -> bool:
        assert self.session is not None
        if isinstance(call, str):
            return False
        return any(tool.ends_turn and tool.name == call.name for tool in self.session.tools)

    def _say(self, role: str, text: str, usage: Usage | None = None) -> None:
        self.turns.append(Turn(role, text, usage=usage))  # type: ignore[arg-type]
        self.messages.append({"role": role, "content": text})

    def _visible(self) -> list[Turn]:
        return [
            Turn(t.role, t.text) for t in self.turns if t.role in ("user", "assistant") and t.text
        ]

    def _final_text(self) -> str:
        said = (
            turn.text for turn in reversed(self.turns) if turn.role == "assistant" and turn.text
        )
        return next(said, "")

    def record(self, tries: int) -> Episode:
        return Episode(
            key=EpisodeKey(0, 0, self.attempt, 0),
            task_ref=self.task.task_ref,
            domain=self.task.domain,
            template=self.task.template,
            policy_version=0,
            prompt_ids=np.zeros(0, np.int32),
            response_ids=np.zeros(0, np.int32),
            action_mask=np.zeros(0, bool),
            behaviour_logprobs=np.zeros(0, np.float32),
            turns=tuple(self.turns),
            finish_reason="failed" if isinstance(self.outcome, Failed) else self.finish,
            outcome=self.outcome,
            sampling=self.runner.sampling,
            effects=self.terminal.effects if self.terminal else (),
            state_hash=self.terminal.state_hash if self.terminal else "",
            tries=tries,
            malformed_turns=self.malformed,
            seconds=self.meter.seconds,
            usage=self.meter.usage,
        )


def _read_call(call: CompletedCall) -> ToolCall | str:
    """The call, or what the policy is told where its arguments are no JSON object."""
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        return f"Error: the arguments of {call.name} are no JSON object"
    return ToolCall(call.name, arguments)


def _assistant_message(completion: Completion) -> JsonObject:
    """The agent's own message as it goes back into the history, its calls exactly as sent."""
    message: JsonObject = {"role": "assistant", "content": completion.text}
    if completion.reasoning:
        message["reasoning_content"] = completion.reasoning
    if completion.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in completion.calls
        ]
    return message
