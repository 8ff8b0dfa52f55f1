"""Worker counts, delays and transient failures leave no trace in what is trained on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from toy_tokenizers import toy_tokenizer

from tbrl.config import AlgorithmConfig, CheckpointConfig, RolloutConfig
from tbrl.controller import Controller, LearnerReport, StepRecord
from tbrl.episode.group import run_group
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.loop import Parts, run_episode
from tbrl.episode.rendering import Renderer
from tbrl.episode.seeding import training_seeds
from tbrl.errors import BackendFailure
from tbrl.schedule import SlotSchedule, TaskStream
from tbrl.types import (
    Episode,
    EpisodeKey,
    Generation,
    Grade,
    PublicTask,
    Sampling,
    Scored,
    TerminalState,
    ToolResult,
    ToolSpec,
    UserReply,
)
from tbrl.usage import unanswered

SLOTS, SIZE, STEPS, ROOT = 3, 4, 3, 5
TOOLS = (ToolSpec("look", "look", {"type": "object", "properties": {}}),)
TOKENIZER = toy_tokenizer("chatml_xml")
RENDERER, INTERPRETER = Renderer(TOKENIZER), Interpreter(TOKENIZER, TOOLS)
SAYINGS = ("<tool_call>\n<function=look>\n</function>\n</tool_call>", "hello", "<DONE>")


@dataclass
class World:
    """Engine, sandbox, user and grader of one run of an episode: what they answer depends on seeds
    and texts alone; when they answer, and whether they break, on `disturbance`."""

    disturbance: random.Random
    patience: int
    breaks: bool
    policy_version: int = 0
    session_id: str = "s"
    tools: tuple[ToolSpec, ...] = TOOLS
    policy: str = "be kind"

    async def _wait(self, place: str) -> None:
        for _ in range(self.disturbance.randrange(self.patience)):
            await asyncio.sleep(0)
        if self.breaks and self.disturbance.random() < 0.3:
            raise BackendFailure("backend", place, "gone for a moment")

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Any, max_tokens: int, seed: int, stop_ids: Any
    ) -> Generation:
        await self._wait("engine")
        draw = random.Random(f"{seed} {prompt_ids}")
        text = f"{draw.randrange(100)} {draw.choice(SAYINGS)}<|im_end|>"
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        return Generation(tuple(ids), tuple(-draw.random() for _ in ids), "stop", 0)

    async def open(self, task: PublicTask) -> World:
        await self._wait("open")
        return self

    async def call_tool(self, name: str, arguments: Any) -> ToolResult:
        await self._wait("call")
        return ToolResult("nothing here")

    async def reply(self, task: PublicTask, visible: Any, seed: int) -> UserReply:
        await self._wait("user")
        return UserReply(f"number {seed % 1000}")

    async def finish(self) -> TerminalState:
        await self._wait("finish")
        return TerminalState("hash", (), 0)

    async def grade(self, task_ref: str, terminal: TerminalState, final_text: str) -> Grade:
        await self._wait("grade")
        passed = random.Random(f"{task_ref} {final_text}").random() < 0.2
        return Grade(Scored(float(passed), passed))

    async def close(self) -> None: ...


@dataclass
class Rollouts:
    """Real groups of real episodes on `workers` workers."""

    workers: asyncio.Semaphore
    disturbance: int
    patience: int
    breaks: bool

    async def run_group(self, a: Any, policy_version: int) -> Any:
        async def member(key: EpisodeKey, tries: int, salt: int) -> Episode:
            chance = random.Random(f"{self.disturbance} {key} {tries}")
            world = World(chance, self.patience, self.breaks and tries == 1)
            parts = Parts(
                world, world, world, world, RENDERER, lambda session: INTERPRETER, unanswered()
            )
            task = PublicTask(a.task_ref, "toy", "toy/compact", "please", {}, {}, "look")
            config = RolloutConfig(max_agent_turns=4, max_turn_tokens=200, max_episode_tokens=2000)
            seeds = training_seeds(ROOT, key, salt)
            return await run_episode(parts, task, key, config, Sampling(), seeds, tries)

        async with self.workers:
            result = await run_group(a.task_ref, a.step, a.slot, a.attempt, SIZE, 3, member)
        return result.summary, result.group


def train(
    workers: int,
    disturbance: int = 0,
    patience: int = 1,
    breaks: bool = False,
    speculation: int = 0,
) -> tuple[list[Any], list[StepRecord]]:
    """(everything of the trained episodes that learning depends on, step records)"""
    records: list[StepRecord] = []

    async def nothing(*_: Any) -> Any:
        return {}

    async def finish(action_tokens: int) -> LearnerReport:
        return LearnerReport(True, "a", "a", {}, 0.0)

    async def main() -> None:
        async def on_step(record: StepRecord) -> None:
            records.append(record)

        learner = SimpleNamespace(
            begin_step=nothing, add_group=nothing, finish=finish, save=nothing
        )
        stream = TaskStream([f"t{i}" for i in range(7)], 0)
        await Controller(
            SlotSchedule(stream, SLOTS, 60, speculation),
            Rollouts(asyncio.Semaphore(workers), disturbance, patience, breaks),  # type: ignore[arg-type]
            learner,  # type: ignore[arg-type]
            AlgorithmConfig(groups_per_step=SLOTS, group_size=SIZE, max_attempts=60),
            RolloutConfig(failure_rate_limit=1.0),
            CheckpointConfig(every=100),
            alternate=False,
            on_step=on_step,
        ).run(0, STEPS)

    asyncio.run(main())
    trained = [
        (a.step, a.slot, a.attempt, a.task_ref, [content(e) for e in r.arrived[a][1].episodes])
        for r in records
        for a in r.committed
    ]
    return trained, records


def content(e: Episode) -> tuple[Any, ...]:
    arrays = (e.prompt_ids, e.response_ids, e.action_mask, e.behaviour_logprobs)
    return (e.key, *(a.tolist() for a in arrays), e.turns, e.finish_reason, e.outcome)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_worker_counts_delays_and_transient_failures_leave_no_trace_in_the_tokens(
    workers: int,
) -> None:
    expected, calm = train(workers=1)
    assert len(expected) == STEPS * SLOTS and not any(r.ledger.retries for r in calm)
    found, records = train(workers, 17 * workers, 6, breaks=True, speculation=workers - 1)
    assert found == expected
    assert sum(r.ledger.retries for r in records) > 10
    assert sum(r.ledger.accounts["failed"].groups for r in records) == 0
