"""The schedule: which data a step trains on never depends on durations, workers or order."""

import heapq
import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from tbrl.errors import ConfigError, InvariantError
from tbrl.schedule import Assignment, PoolExhausted, SlotSchedule, TaskStream

POOL = [f"task/{i}" for i in range(40)]


def verdict_of(assignment: Assignment, root: int = 0) -> str:
    """A verdict decided by what the assignment is, as seeded episodes are."""
    rng = random.Random(f"{root}/{assignment.step}/{assignment.slot}/{assignment.attempt}")
    return rng.choices(["accepted", "zero_variance", "failed"], [5, 4, 1])[0]


def run_steps(schedule, steps, workers, order_seed, dispatched=None):
    """Virtual cluster: `workers` groups at a time, random durations. Returns per step the
    committed (slot, task, attempt) in slot order, and all fates."""
    rng = random.Random(order_seed)
    data, fates = [], []
    for step in steps:
        schedule.begin_step(step)
        queue, running, clock, serial = [], [], 0.0, 0
        while not schedule.complete:
            fresh = schedule.ready()
            queue.extend(fresh)
            if dispatched is not None:
                dispatched.extend(fresh)
            while queue and len(running) < workers:
                serial += 1
                heapq.heappush(running, (clock + rng.expovariate(1.0), serial, queue.pop(0)))
            clock, _, assignment = heapq.heappop(running)
            fates.extend(schedule.resolve(assignment, verdict_of(assignment)))
        data.append([(a.slot, a.task_ref, a.attempt) for a in schedule.committed])
    return data, fates


def schedule_of(slots=6, speculation=0, max_attempts=40, pool=POOL, seed=0):
    return SlotSchedule(TaskStream(pool, seed), slots, max_attempts, speculation)


# ------------------------------------------------------------ the stream


@given(st.integers(0, 5), st.integers(0, 3))
def test_every_epoch_is_a_permutation_of_the_pool(seed, epoch):
    stream = TaskStream(POOL, seed)
    tasks = [stream.task_at(epoch * len(stream) + i) for i in range(len(stream))]
    assert sorted(tasks) == sorted(POOL)


def test_the_stream_depends_on_the_seed_and_the_epoch_but_not_on_the_files_order():
    n = len(POOL)
    orders = {
        tuple(TaskStream(POOL, seed).task_at(epoch * n + i) for i in range(n))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 4
    backwards = TaskStream(POOL[::-1], 0)
    assert [backwards.task_at(i) for i in range(n)] == [
        TaskStream(POOL, 0).task_at(i) for i in range(n)
    ]


def test_an_empty_pool_and_a_duplicate_are_refused_by_name():
    with pytest.raises(ConfigError, match="no task is left"):
        TaskStream([], 0)
    with pytest.raises(ConfigError, match="'b' is listed twice"):
        TaskStream(["b", "a", "b"], 0)


# ------------------------------------------------------------ slots


@settings(max_examples=40, deadline=None)
@given(
    workers=st.integers(1, 20),
    speculation=st.integers(0, 4),
    order_seed=st.integers(0, 10**6),
)
def test_data_do_not_depend_on_workers_durations_or_speculation(workers, speculation, order_seed):
    sequential, _ = run_steps(schedule_of(), range(1, 6), 1, 0)
    concurrent, _ = run_steps(
        schedule_of(speculation=speculation), range(1, 6), workers, order_seed
    )
    assert concurrent == sequential


@settings(max_examples=30, deadline=None)
@given(speculation=st.integers(0, 4), order_seed=st.integers(0, 10**6))
def test_every_dispatched_assignment_has_exactly_one_fate(speculation, order_seed):
    dispatched: list[Assignment] = []
    _, fates = run_steps(
        schedule_of(speculation=speculation), range(1, 4), 7, order_seed, dispatched=dispatched
    )
    assert Counter(event.assignment for event in fates) == Counter(dispatched)


def test_a_slot_takes_its_positions_in_order_and_skips_none():
    slots = 6
    _, fates = run_steps(schedule_of(slots, speculation=3), range(1, 9), 9, 3)
    used = [e.assignment for e in fates if e.fate != "cancelled"]
    for slot in range(slots):
        positions = [a.position for a in used if a.slot == slot]
        assert positions == [slot + k * slots for k in range(len(positions))]


def test_positions_of_cancelled_attempts_are_given_back():
    schedule = schedule_of(slots=1, speculation=2)
    schedule.begin_step(1)
    first, second, third = schedule.ready()
    assert schedule.resolve(second, "accepted") == []
    assert schedule.ready() == []
    fates = [(e.fate, e.assignment) for e in schedule.resolve(first, "accepted")]
    assert fates == [("committed", first), ("cancelled", second), ("cancelled", third)]
    assert schedule.resolve(third, "zero_variance") == []
    schedule.begin_step(2)
    assert schedule.ready()[0].task_ref == second.task_ref


def test_an_attempt_that_ran_ahead_waits_for_the_lower_ones():
    schedule = schedule_of(slots=1, speculation=1)
    schedule.begin_step(1)
    first, second = schedule.ready()
    assert schedule.resolve(second, "accepted") == []
    assert schedule.committed == (None,)
    assert [e.fate for e in schedule.resolve(first, "failed")] == ["failed", "committed"]
    assert schedule.complete and schedule.committed == (second,)


def test_without_speculation_nothing_is_cancelled():
    _, fates = run_steps(schedule_of(speculation=0), range(1, 6), 20, 5)
    assert "cancelled" not in {event.fate for event in fates}


# ------------------------------------------------------------ fairness


def acceptance(task_ref: str) -> float:
    """Hard tasks are accepted less often; see `duration`: they also take longer."""
    return 0.15 + 0.8 * (POOL.index(task_ref) / len(POOL))


def simulate(speculation: int, workers: int, steps: int, seed: int, first_wins: bool = False):
    """Committed groups per task when hard tasks are slow. `first_wins` is the faulty policy:
    run twice as many groups as slots and keep the first accepted ones to finish."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    slots = 8
    if first_wins:
        stream, position = TaskStream(POOL, seed), 0
        for _ in range(steps):
            finished: list[tuple[float, str]] = []
            while len(finished) < 2 * slots:
                task = stream.task_at(position)
                position += 1
                if rng.random() < acceptance(task):
                    finished.append((rng.gammavariate(4, 1.1 - acceptance(task)), task))
            counts.update(task for _, task in sorted(finished)[:slots])
        return counts
    schedule = SlotSchedule(TaskStream(POOL, seed), slots, 200, speculation)
    for step in range(1, steps + 1):
        schedule.begin_step(step)
        queue, running, clock, serial = [], [], 0.0, 0
        while not schedule.complete:
            queue.extend(schedule.ready())
            while queue and len(running) < workers:
                task = queue[0].task_ref
                serial += 1
                end = clock + rng.gammavariate(4, 1.1 - acceptance(task))
                heapq.heappush(running, (end, serial, queue.pop(0)))
            clock, _, assignment = heapq.heappop(running)
            accepted = rng.random() < acceptance(assignment.task_ref)
            schedule.resolve(assignment, "accepted" if accepted else "zero_variance")
        counts.update(a.task_ref for a in schedule.committed)
    return counts


def p_value(left: Counter, right: Counter) -> float:
    return chi2_contingency([[c[ref] for ref in POOL] for c in (left, right)]).pvalue


def test_the_committed_distribution_is_that_of_a_sequential_run():
    sequential = simulate(speculation=0, workers=1, steps=600, seed=1)
    for speculation, workers in ((0, 16), (3, 16), (3, 5)):
        assert p_value(sequential, simulate(speculation, workers, 600, seed=2)) > 0.01


def test_first_finished_wins_would_be_caught():
    sequential = simulate(speculation=0, workers=1, steps=600, seed=1)
    assert p_value(sequential, simulate(0, 0, 600, seed=2, first_wins=True)) < 1e-6


# ------------------------------------------------------------ checkpoints


@settings(max_examples=25, deadline=None)
@given(stop=st.integers(1, 5), speculation=st.integers(0, 3))
def test_a_restored_schedule_continues_as_if_never_stopped(stop, speculation):
    whole, _ = run_steps(schedule_of(speculation=speculation), range(1, 7), 4, 1)
    before = schedule_of(speculation=speculation)
    head, _ = run_steps(before, range(1, stop + 1), 4, 2)
    after = schedule_of(speculation=speculation)
    after.restore(json.loads(json.dumps(before.state())))
    tail, _ = run_steps(after, range(stop + 1, 7), 9, 3)
    assert head + tail == whole


@settings(max_examples=25, deadline=None)
@given(resolved=st.integers(0, 30), speculation=st.integers(0, 3))
def test_attempts_that_passed_survive_a_stop_in_the_middle_of_a_step(resolved, speculation):
    whole, _ = run_steps(schedule_of(speculation=speculation), [1, 2], 4, 1)
    before = schedule_of(speculation=speculation)
    before.begin_step(1)
    queue, passed = before.ready(), []
    for _ in range(resolved):
        if before.complete:
            break
        assignment = queue.pop(0)
        events = before.resolve(assignment, verdict_of(assignment))
        passed += [e.assignment for e in events if e.fate in ("zero_variance", "failed")]
        queue = [a for a in queue + before.ready() if a in before.running]
    if before.complete:
        return
    committed = {a.slot for a in before.committed if a}
    after = schedule_of(speculation=speculation)
    after.restore(json.loads(json.dumps(before.state())))
    data, fates = run_steps(after, [1, 2], 4, 7)
    assert data == whole
    again = {e.assignment for e in fates} & set(passed)
    assert not {a for a in again if a.slot not in committed}


def test_a_state_of_another_pool_or_slot_count_is_refused():
    state = schedule_of(slots=6).state()
    with pytest.raises(ConfigError, match="another one"):
        schedule_of(slots=6, pool=POOL[:-1]).restore(state)
    with pytest.raises(ConfigError, match=r"groups_per_step=7: .* with 6"):
        schedule_of(slots=7).restore(state)


# ------------------------------------------------------------ misuse and exhaustion


def test_a_pool_without_mixed_outcomes_stops_the_run_and_names_the_tasks():
    schedule = schedule_of(slots=2, pool=["easy", "hard", "flaky"], max_attempts=6)
    schedule.begin_step(1)
    verdicts = {
        "easy": ("zero_variance", 1.0),
        "hard": ("zero_variance", 0.0),
        "flaky": ("failed", None),
    }
    with pytest.raises(PoolExhausted) as caught:
        while True:
            for assignment in schedule.ready():
                schedule.resolve(assignment, *verdicts[assignment.task_ref])
    assert caught.value.always_solved == ("easy",)
    assert caught.value.never_solved == ("hard",)
    assert caught.value.failed == ("flaky",)
    assert "always solved: easy; never solved: hard; failed: flaky" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_speculation_never_passes_max_attempts():
    schedule = schedule_of(slots=1, max_attempts=2, speculation=5)
    schedule.begin_step(1)
    assert [a.attempt for a in schedule.ready()] == [0, 1]


def test_results_that_nobody_asked_for_are_refused():
    schedule = schedule_of(slots=2)
    schedule.begin_step(1)
    first, second = schedule.ready()
    with pytest.raises(InvariantError, match="step 2 begins while step 1 is incomplete"):
        schedule.begin_step(2)
    schedule.resolve(first, "accepted")
    with pytest.raises(InvariantError, match="not running"):
        schedule.resolve(first, "accepted")
    schedule.resolve(second, "accepted")
    with pytest.raises(InvariantError, match="step 1 begins after step 1"):
        schedule.begin_step(1)
