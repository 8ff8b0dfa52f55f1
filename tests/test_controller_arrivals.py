"""What the controller trains on does not depend on when groups arrive, or on speculation."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbrl.config import AlgorithmConfig, CheckpointConfig, RolloutConfig
from tbrl.controller import Controller, LearnerReport, TooManyFailures
from tbrl.schedule import SlotSchedule, TaskStream
from tbrl.types import Failed, GroupSummary

SLOTS, SIZE, STEPS = 4, 4, 3


class Rollouts:
    """Groups that answer after a random number of turns of the event loop, often together."""

    def __init__(self, order_seed, latest, failures=()):
        self.rng, self.latest, self.failures = random.Random(order_seed), latest, failures
        self.running = self.cancelled = 0

    async def run_group(self, a, policy_version):
        self.running += 1
        try:
            for _ in range(self.rng.randrange(self.latest)):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        accepted = random.Random(f"{a.step}/{a.slot}/{a.attempt}").random() < 0.4
        return summary(a, (1.0, 0.0) * 2 if accepted else (0.0,) * 4, self.failures), a

    async def sleep(self): ...
    async def wake(self, part): ...


class Learner:
    def __init__(self, rollouts):
        self.rollouts, self.groups, self.open = rollouts, [], False

    async def begin_step(self):
        self.open = True

    async def add_group(self, slot, group):
        assert self.open and slot == group.slot
        self.groups.append((group.step, slot, group.attempt, group.task_ref))

    async def finish(self, action_tokens):
        assert self.rollouts.running == 0, "a group samples across the update"
        self.open = False
        return LearnerReport(False, "a", "b", {}, 0.0)

    async def send_weights(self, policy_version):
        return {}

    async def onload(self): ...
    async def offload(self): ...
    async def save(self, step, extra): ...


def summary(a, rewards, retried):
    return GroupSummary(
        step=a.step,
        slot=a.slot,
        attempt=a.attempt,
        task_ref=a.task_ref,
        policy_version=0,
        rewards=rewards,
        failures=(),
        retried=retried,
        action_tokens=10,
        total_tokens=20,
        wasted_tokens=0,
        episode_tokens=(5,) * SIZE,
        seconds={},
        malformed_turns=0,
        finish_reasons=("done",) * SIZE,
    )


def train(order_seed, latest, speculation, alternate=False, failures=()):
    """(groups per step in slot order, ledger rows)"""
    records = []

    async def main():
        async def on_step(record):
            records.append(record)

        rollouts = Rollouts(order_seed, latest, failures)
        learner = Learner(rollouts)
        algorithm = AlgorithmConfig(
            groups_per_step=SLOTS, group_size=SIZE, max_attempts=60, speculation=speculation
        )
        schedule = SlotSchedule(TaskStream([f"t{i}" for i in range(11)], 0), SLOTS, 60, speculation)
        controller = Controller(
            schedule,
            rollouts,
            learner,
            algorithm,
            RolloutConfig(),
            CheckpointConfig(every=100),
            alternate=alternate,
            on_step=on_step,
        )
        await controller.run(0, STEPS)
        return sorted(learner.groups)

    trained = asyncio.run(main())
    assert trained == sorted(
        (a.step, a.slot, a.attempt, a.task_ref) for r in records for a in r.committed
    )
    for record in records:
        answered = [summary for summary, _ in record.arrived.values()]
        assert record.ledger.received_tokens == sum(s.total_tokens for s in answered)
        assert record.ledger.dispatched_groups == len(answered) + record.ledger.unreported_groups
    return trained, [r.ledger for r in records]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 4), st.booleans())
def test_arrival_and_speculation_never_choose_the_data(order_seed, latest, speculation, alternate):
    expected, _ = train(0, 1, 0)
    data, ledgers = train(order_seed, latest, speculation, alternate)
    assert data == expected
    for row in ledgers:
        accounts = row.accounts
        assert accounts["trained"].groups == SLOTS
        assert row.dispatched_groups == sum(a.groups for a in accounts.values())
        assert speculation or not accounts["cancelled"].groups


def test_a_backend_that_keeps_failing_stops_the_run_with_the_reason():
    down = (Failed("backend", "sandbox/open", "connection refused"),) * (2 * SIZE)
    with pytest.raises(TooManyFailures, match="backend in sandbox/open: connection refused"):
        train(0, 3, 0, failures=down)
    assert train(0, 3, 0, failures=down[:1])
