"""The ledger: everything dispatched is accounted for exactly once, in episodes and tokens."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbrl.errors import InvariantError
from tbrl.ledger import StepLedger, length_bucket
from tbrl.schedule import Event, SlotSchedule, TaskStream
from tbrl.types import Failed, GroupSummary

GROUP = 4


def summary_of(assignment, verdict, length=100):
    failures = (Failed("backend", "sandbox/lookup", "gone", tokens=length),)
    rewards = {"accepted": (1.0, 0.0, 0.0, 1.0), "zero_variance": (0.0,) * 4, "failed": (1.0,) * 3}
    return GroupSummary(
        step=assignment.step,
        slot=assignment.slot,
        attempt=assignment.attempt,
        task_ref=assignment.task_ref,
        policy_version=1,
        rewards=rewards[verdict],
        failures=failures if verdict == "failed" else (),
        retried=(Failed("engine", "worker 0", "died", tokens=2 * length),),
        action_tokens=GROUP * length // 2,
        total_tokens=GROUP * length,
        wasted_tokens=length,
        episode_tokens=(length,) * GROUP,
        seconds={},
        malformed_turns=0,
        finish_reasons=("done",) * GROUP,
    )


def one_step(rng, speculation=2, answer_cancelled=True):
    """A whole step in random order; returns ledger, and the tokens the workers counted."""
    schedule = SlotSchedule(TaskStream([f"t{i}" for i in range(20)], 0), 5, 50, speculation)
    ledger, tokens, queue = StepLedger(1), 0, []
    schedule.begin_step(1)
    while not schedule.complete or (queue and answer_cancelled):
        if not schedule.complete:
            for assignment in schedule.ready():
                ledger.dispatched(assignment, GROUP)
                queue.append(assignment)
        assignment = queue.pop(rng.randrange(len(queue)))
        summary = summary_of(
            assignment,
            rng.choice(["accepted", "zero_variance", "failed"]),
            length=rng.randrange(10, 400),
        )
        ledger.received(assignment, summary)
        tokens += summary.total_tokens + summary.wasted_tokens
        ledger.settle(schedule.resolve(assignment, summary.verdict))
    return ledger, tokens


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3), st.booleans())
def test_dispatched_is_trained_plus_zero_variance_plus_failed_plus_cancelled(seed, ahead, answer):
    ledger, tokens = one_step(random.Random(seed), ahead, answer)
    row = ledger.close(reported_tokens=tokens)
    assert row.accounts["trained"].groups == 5
    assert row.dispatched_episodes == sum(a.episodes for a in row.accounts.values())
    assert row.received_tokens == tokens == sum(a.tokens for a in row.accounts.values())
    assert json.loads(json.dumps(row.to_json()))["step"] == 1
    assert sum(sum(a.lengths.values()) for a in row.accounts.values()) == (
        row.dispatched_episodes - GROUP * row.unreported_groups
    )


@pytest.fixture
def started():
    schedule = SlotSchedule(TaskStream(["a", "b"], 0), 2, 9)
    schedule.begin_step(1)
    ledger = StepLedger(1)
    first, second = schedule.ready()
    ledger.dispatched(first, GROUP)
    ledger.dispatched(second, GROUP)
    return ledger, first, second


def test_work_that_is_thrown_away_breaks_the_equation(started):
    ledger, first, second = started
    ledger.received(first, summary_of(first, "accepted"))
    ledger.received(second, summary_of(second, "accepted"))
    ledger.settled(Event("committed", first))
    with pytest.raises(InvariantError, match="2 groups dispatched, 1 booked"):
        ledger.close()


def test_work_that_is_counted_twice_is_refused(started):
    ledger, first, _ = started
    ledger.received(first, summary_of(first, "accepted"))
    ledger.settled(Event("committed", first))
    with pytest.raises(InvariantError, match="settled twice"):
        ledger.settled(Event("cancelled", first))
    with pytest.raises(InvariantError, match="answers twice"):
        ledger.received(first, summary_of(first, "accepted"))
    with pytest.raises(InvariantError, match="dispatched twice"):
        ledger.dispatched(first, GROUP)


def test_only_a_cancelled_group_may_stay_without_an_answer(started):
    ledger, first, second = started
    with pytest.raises(InvariantError, match="committed without an answer"):
        ledger.settled(Event("committed", first))
    ledger.settled(Event("cancelled", first))
    ledger.settled(Event("cancelled", second))
    assert ledger.close().unreported_groups == 2


def test_an_answer_for_another_group_or_with_missing_episodes_is_refused(started):
    ledger, first, second = started
    with pytest.raises(InvariantError, match="is answered by"):
        ledger.received(first, summary_of(second, "accepted"))
    short = replace(summary_of(first, "accepted"), rewards=(1.0, 0.0))
    with pytest.raises(InvariantError, match="4 episodes, 2 came back"):
        ledger.received(first, short)


def test_tokens_that_the_workers_counted_otherwise_are_found(started):
    ledger, first, second = started
    for assignment in (first, second):
        ledger.received(assignment, summary_of(assignment, "zero_variance"))
        ledger.settled(Event("zero_variance", assignment))
    with pytest.raises(InvariantError, match="1001 tokens reported by workers dispatched, 1000"):
        ledger.close(reported_tokens=1001)


def test_failures_are_counted_by_kind_place_and_length(started):
    ledger, first, second = started
    ledger.received(first, summary_of(first, "failed", length=300))
    ledger.received(second, summary_of(second, "zero_variance", length=20))
    ledger.settled(Event("failed", first))
    ledger.settled(Event("zero_variance", second))
    row = ledger.close()
    assert [(f.kind, f.where, f.length, f.repaired, f.count) for f in row.failures] == [
        ("backend", "sandbox/lookup", "256-511", False, 1),
        ("engine", "worker 0", "32-63", True, 1),
        ("engine", "worker 0", "512-1023", True, 1),
    ]
    assert row.retries == 2
    assert row.tasks[second.task_ref] == {"zero_variance": 1, "unsolved": 1}
    assert row.tasks[first.task_ref] == {"failed": 1}
    assert row.accounts["failed"].lengths == {"256-511": 4}


@given(st.integers(0, 1 << 20))
def test_a_length_lies_in_its_bucket(tokens):
    low, _, high = length_bucket(tokens).partition("-")
    assert int(low) <= tokens <= int(high or low)


def test_retries_favour_short_episodes_and_the_ledger_shows_it():
    """Failures that grow with length (a deadline, a flaky backend) thin out long episodes: the
    schedule cannot undo that, so it must be visible by length."""
    rng = random.Random(4)
    lengths = {f"task/{i}": 60 if i % 2 else 700 for i in range(40)}
    schedule = SlotSchedule(TaskStream(list(lengths), 1), 8, 99)
    trained, failed, causes = {60: 0, 700: 0}, {}, {}
    for step in range(1, 41):
        schedule.begin_step(step)
        ledger = StepLedger(step)
        while not schedule.complete:
            for assignment in schedule.ready():
                length = lengths[assignment.task_ref]
                down = rng.random() < length / 1000
                verdict = "failed" if down else rng.choice(["accepted", "zero_variance"])
                summary = replace(summary_of(assignment, verdict, length), retried=())
                ledger.dispatched(assignment, GROUP)
                ledger.received(assignment, summary)
                ledger.settle(schedule.resolve(assignment, summary.verdict))
        row = ledger.close()
        for assignment in schedule.committed:
            trained[lengths[assignment.task_ref]] += 1
        for bucket, count in row.accounts["failed"].lengths.items():
            failed[bucket] = failed.get(bucket, 0) + count
        for failure in row.failures:
            causes[failure.length] = causes.get(failure.length, 0) + failure.count
    assert trained[60] > 2 * trained[700]
    assert failed["512-1023"] > 5 * failed["32-63"]
    assert causes["512-1023"] > 5 * causes["32-63"]
