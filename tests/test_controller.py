"""The step loop with fake rollouts and a fake learner: order, conservation, recall, refusal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tbrl.config import AlgorithmConfig, CheckpointConfig, RolloutConfig
from tbrl.controller import Controller, LearnerReport, StepRecord, TooManyFailures
from tbrl.schedule import Assignment, PoolExhausted, SlotSchedule, TaskStream
from tbrl.types import Failed, GroupSummary, JsonObject

SLOTS, SIZE = 4, 4


def summary_of(
    a: Assignment, version: int, rewards: tuple[float, ...], failures=()
) -> GroupSummary:
    return GroupSummary(
        step=a.step,
        slot=a.slot,
        attempt=a.attempt,
        task_ref=a.task_ref,
        policy_version=version,
        rewards=rewards,
        failures=tuple(failures),
        retried=(),
        action_tokens=10,
        total_tokens=50,
        wasted_tokens=0,
        episode_tokens=(12,) * SIZE,
        seconds={},
        malformed_turns=0,
        finish_reasons=("done",) * SIZE,
    )


@dataclass
class FakeRollouts:
    """Rewards are decided by (task, step, attempt); durations by `order`, which must not matter."""

    order: random.Random
    log: list[str] = field(default_factory=list)
    running: int = 0
    failing: frozenset[str] = frozenset()
    never_mixed: bool = False

    async def run_group(self, a: Assignment, version: int) -> tuple[GroupSummary, Any]:
        self.running += 1
        try:
            for _ in range(self.order.randrange(1, 20)):
                await asyncio.sleep(0)
        finally:
            self.running -= 1
        if a.task_ref in self.failing:
            down = Failed("backend", "get_rental", "connection refused")
            return summary_of(a, version, (), (down,) * SIZE), a
        mixed = (
            not self.never_mixed
            and (int(a.task_ref.removeprefix("task-").removeprefix("t")) + a.step) % 3 != 0
        )
        return summary_of(a, version, (1.0, 0.0, 0.0, 0.0) if mixed else (0.0,) * SIZE), a

    async def sleep(self) -> None:
        self.log.append("sleep")

    async def wake(self, part: str) -> None:
        self.log.append(f"wake {part}")


@dataclass
class FakeLearner:
    rollouts: FakeRollouts
    no_op: bool = False
    log: list[str] = field(default_factory=list)
    added: list[tuple[int, Assignment]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    saved: list[tuple[int, JsonObject]] = field(default_factory=list)

    async def begin_step(self) -> None:
        self.log.append("begin")

    async def add_group(self, slot: int, group: Any) -> None:
        self.log.append("add")
        self.added.append((slot, group))

    async def finish(self, action_tokens: int) -> LearnerReport:
        assert self.rollouts.running == 0, "a group samples across the update"
        self.log.append("finish")
        self.tokens.append(action_tokens)
        return LearnerReport(self.no_op, "a", "a" if self.no_op else "b", {}, 0.0)

    async def send_weights(self, policy_version: int) -> JsonObject:
        self.log.append("send")
        return {"policy_version": policy_version}

    async def onload(self) -> None:
        self.log.append("onload")

    async def offload(self) -> None:
        self.log.append("offload")

    async def save(self, step: int, extra: JsonObject) -> None:
        self.saved.append((step, extra))


def controller_of(
    rollouts: FakeRollouts,
    learner: FakeLearner,
    on_step: Callable[[StepRecord], Awaitable[None]],
    checkpoint_every: int = CheckpointConfig.every,
) -> Controller:
    """Of nine tasks and the smallest step."""
    return Controller(
        SlotSchedule(TaskStream([f"t{i}" for i in range(9)], 1), SLOTS, 12),
        rollouts,
        learner,
        AlgorithmConfig(groups_per_step=SLOTS, group_size=SIZE),
        RolloutConfig(),
        CheckpointConfig(every=checkpoint_every),
        alternate=False,
        on_step=on_step,
    )


def run_steps(
    steps: int = 3, seed: int = 0, speculation: int = 0, alternate: bool = False, **fake: Any
) -> tuple[list[StepRecord], FakeLearner, Controller]:
    rollouts = FakeRollouts(random.Random(seed), **fake)
    learner = FakeLearner(rollouts)
    records: list[StepRecord] = []

    async def keep(record: StepRecord) -> None:
        records.append(record)

    algorithm = AlgorithmConfig(groups_per_step=SLOTS, group_size=SIZE, max_attempts=12)
    stream = TaskStream([f"task-{i}" for i in range(13)], seed=7)
    controller = Controller(
        SlotSchedule(stream, SLOTS, algorithm.max_attempts, speculation),
        rollouts,
        learner,
        algorithm,
        RolloutConfig(),
        CheckpointConfig(every=2),
        alternate=alternate,
        on_step=keep,
    )
    asyncio.run(controller.run(0, steps))
    return records, learner, controller


def test_arrival_order_and_speculation_do_not_choose_what_is_trained_on() -> None:
    expected = [[(a.slot, a.task_ref) for a in r.committed] for r in run_steps(4)[0]]
    for seed in range(1, 6):
        for speculation in (0, 2):
            records, _, _ = run_steps(4, seed=seed, speculation=speculation)
            assert [[(a.slot, a.task_ref) for a in r.committed] for r in records] == expected


def test_every_step_trains_each_slot_once_and_counts_its_tokens() -> None:
    records, learner, _ = run_steps(3)
    assert len(learner.added) == 3 * SLOTS
    for index in range(3):
        slots = sorted(slot for slot, _ in learner.added[index * SLOTS : (index + 1) * SLOTS])
        assert slots == list(range(SLOTS))
    assert learner.tokens == [10 * SLOTS] * 3
    assert [r.next_version for r in records] == [1, 2, 3]


def test_nothing_samples_across_an_update_even_with_speculation() -> None:
    # FakeLearner.finish asserts that no group is running.
    records, _, _ = run_steps(4, seed=3, speculation=3)
    cancelled = sum(r.ledger.accounts["cancelled"].groups for r in records)
    assert cancelled > 0


def test_a_step_without_signal_sends_no_weights_and_keeps_the_version() -> None:
    rollouts = FakeRollouts(random.Random(0))
    learner = FakeLearner(rollouts, no_op=True)
    records: list[StepRecord] = []

    async def keep(record: StepRecord) -> None:
        records.append(record)

    controller = controller_of(rollouts, learner, keep)
    asyncio.run(controller.run(0, 1))
    assert "send" not in learner.log
    assert (records[0].policy_version, records[0].next_version) == (0, 0)


def test_where_devices_are_shared_the_phases_alternate() -> None:
    _, learner, _ = run_steps(1, alternate=True)
    assert learner.rollouts.log == ["sleep", "wake weights", "wake kv_cache"]
    expected = ["onload", "begin", *["add"] * SLOTS, "finish", "send", "offload"]
    assert learner.log == expected


def test_where_devices_are_not_shared_groups_accumulate_as_they_are_accepted() -> None:
    _, learner, _ = run_steps(1)
    assert learner.log == ["begin", *["add"] * SLOTS, "finish", "send"]


def test_checkpoints_come_every_n_steps_and_at_the_end_with_the_schedule() -> None:
    _, learner, _ = run_steps(3)
    assert [step for step, _ in learner.saved] == [2, 3]
    assert learner.saved[0][1]["policy_version"] == 2
    assert len(learner.saved[0][1]["schedule"]["cursors"]) == SLOTS


def test_a_backend_that_is_down_stops_the_run_with_the_reason() -> None:
    everything = frozenset(f"task-{i}" for i in range(13))
    with pytest.raises(TooManyFailures, match="backend in get_rental: connection refused"):
        run_steps(1, failing=everything)


def test_a_failing_task_is_passed_over_and_counted() -> None:
    records, learner, _ = run_steps(3, failing=frozenset({"task-3"}))
    assert all(a.task_ref != "task-3" for _, a in learner.added)
    failed = sum(r.ledger.accounts["failed"].groups for r in records)
    assert failed == sum(r.ledger.tasks.get("task-3", {}).get("failed", 0) for r in records) > 0


def test_a_pool_without_mixed_outcomes_stops_and_names_the_tasks() -> None:
    with pytest.raises(PoolExhausted, match="never solved: task-"):
        run_steps(1, never_mixed=True)


def test_a_crash_inside_a_group_ends_the_step_and_leaves_nothing_running() -> None:
    class Crashing(FakeRollouts):
        async def run_group(self, a: Assignment, version: int) -> tuple[GroupSummary, Any]:
            if a.slot == 1:
                raise RuntimeError("worker bug")
            return await super().run_group(a, version)

    rollouts = Crashing(random.Random(0))

    async def ignore(record: StepRecord) -> None:
        raise AssertionError("the step must not complete")

    controller = controller_of(rollouts, FakeLearner(rollouts), ignore)

    async def crash() -> int:
        with pytest.raises(RuntimeError, match="worker bug"):
            await controller.run(0, 1)
        return rollouts.running

    assert asyncio.run(crash()) == 0


def test_a_lost_learner_ends_the_step_while_groups_are_still_decoding() -> None:
    class Lost(FakeLearner):
        async def add_group(self, slot: int, group: Any) -> None:
            for _ in range(200):  # until no arrival is left that would end the wait
                await asyncio.sleep(0)
            raise RuntimeError("the learner died")

    class Endless(FakeRollouts):
        async def run_group(self, a: Assignment, version: int) -> tuple[GroupSummary, Any]:
            if a.slot == SLOTS - 1:
                self.running += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    self.running -= 1
            return await super().run_group(a, version)

    async def ignore(record: StepRecord) -> None:
        raise AssertionError("the step must not complete")

    rollouts = Endless(random.Random(0))
    controller = controller_of(rollouts, Lost(rollouts), ignore)

    async def crash() -> int:
        with pytest.raises(RuntimeError, match="the learner died"):
            await asyncio.wait_for(controller.run(0, 1), 5)
        return rollouts.running

    assert asyncio.run(crash()) == 0


def test_a_requested_stop_finishes_the_step_and_writes_a_checkpoint() -> None:
    rollouts = FakeRollouts(random.Random(0))
    learner = FakeLearner(rollouts)

    async def stop_after_first(record: StepRecord) -> None:
        controller.request_stop()

    controller = controller_of(rollouts, learner, stop_after_first, checkpoint_every=100)
    assert asyncio.run(controller.run(0, 50)) == 1
    assert [step for step, _ in learner.saved] == [1]
