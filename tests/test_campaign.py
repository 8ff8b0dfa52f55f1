"""Campaigns: durable, resumable, exact in coverage, indifferent to failures."""

import asyncio

import orjson
import pytest
from evaluation_helpers import LABELS, FakeRun
from hypothesis import given, settings
from hypothesis import strategies as st

from tbrl.errors import BackendFailure, ConfigError
from tbrl.evaluation import metrics
from tbrl.evaluation.aggregate import aggregate
from tbrl.evaluation.campaign import Campaign, run_campaign
from tbrl.evaluation.coverage import coverage_of
from tbrl.types import Failed

pytestmark = pytest.mark.anyio
BROKEN = Failed("backend", "sandbox", "database gone")


@pytest.fixture
def anyio_backend():
    return "asyncio"


def campaign(tmp_path, **changes):
    settings = {"attempts": 4, "policy": "weights-1", "concurrency": 3, "max_tries": 3}
    return Campaign(tmp_path / "results.jsonl", dict(LABELS), **{**settings, **changes})


def keys_in(path):
    return {(row["uid"], row["tbrl"]["attempt"]) for row in map(orjson.loads, path.open("rb"))}


async def test_every_key_is_scored_exactly_once(tmp_path):
    job = campaign(tmp_path)
    report = await run_campaign(job, FakeRun())
    assert report.coverage.exact and report.coverage.expected == 12
    assert len(job.path.read_bytes().splitlines()) == len(keys_in(job.path)) == 12


async def test_a_hung_episode_does_not_hold_back_the_others(tmp_path):
    job = campaign(tmp_path)
    run = FakeRun({("d/refund/0", 0): "hang"})
    running = asyncio.create_task(run_campaign(job, run))
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(run.calls) == 12 and ("d/refund/0", 0) not in keys_in(job.path)
    assert len(keys_in(job.path)) == 11
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(keys_in(job.path)) == 11
    again = FakeRun()
    report = await run_campaign(job, again, "resume")
    assert again.calls == [("d/refund/0", 0, 0)] and report.coverage.exact


async def test_a_failure_is_run_again_and_leaves_no_trace_in_the_numbers(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    calm, troubled = campaign(tmp_path / "a"), campaign(tmp_path / "b")
    table = {("d/refund/1", a): a % 2 == 0 for a in range(4)}
    await run_campaign(calm, FakeRun(table))
    failing = {
        ("d/refund/1", 1): [BROKEN, False],
        ("d/refund/1", 2): [BackendFailure("deadline", "episode", "120 s"), BROKEN, True],
    }
    report = await run_campaign(troubled, FakeRun({**table, **failing}))
    assert (report.progress.failures, report.progress.recovered) == (3, 2)
    one, two = (aggregate(job.path).attempts() for job in (calm, troubled))
    order = [two.tasks.index(task) for task in one.tasks]
    assert (one.passed == two.passed[order]).all()
    noted = [orjson.loads(line) for line in troubled.failures_path.open("rb")]
    assert sorted((f["attempt"], f["try"], f["kind"]) for f in noted) == [
        (1, 0, "backend"),
        (2, 0, "deadline"),
        (2, 1, "backend"),
    ]


async def test_a_failure_that_stays_gives_no_headline_until_repaired(tmp_path):
    job = campaign(tmp_path)
    report = await run_campaign(job, FakeRun({("d/refund/0", 2): BROKEN}, default=False))
    assert report.progress.gave_up == [("d/refund/0", 2)]
    assert report.coverage.missing == (("d/refund/0", 2),)
    with pytest.raises(ConfigError, match=r"11 of 12 attempts scored, 1 missing .*no headline"):
        aggregate(job.path).attempts(list(LABELS), 4)
    repaired = FakeRun()
    report = await run_campaign(job, repaired, "repair")
    assert repaired.calls == [("d/refund/0", 2, 0)] and report.coverage.exact
    assert metrics.pass_at_1(aggregate(job.path).attempts()) == 1 / 12


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=12, max_size=12), st.integers(0, 11))
def test_dropping_any_attempt_cannot_raise_a_number(results, dropped):
    """There is no number without it: the whole headline is refused."""
    outcome = {(task, a): results[4 * t + a] for t, task in enumerate(LABELS) for a in range(4)}
    del outcome[list(outcome)[dropped]]
    with pytest.raises(ConfigError, match="no headline number"):
        coverage_of(list(LABELS), 4, outcome).require("results")


def test_a_repair_runs_what_is_missing_and_what_failed():
    found = coverage_of(["a"], 3, {("a", 0): True, ("a", 1): None})
    assert found.to_run == (("a", 2), ("a", 1)) and not found.exact


async def test_an_unforeseen_error_stops_at_once_and_keeps_what_finished(tmp_path):
    job = campaign(tmp_path, concurrency=1)
    run = FakeRun({("d/refund/0", 3): ValueError("bug")})
    with pytest.raises(ValueError, match="bug"):
        await run_campaign(job, run)
    assert len(keys_in(job.path)) == 3 and len(run.calls) == 4


async def test_a_row_torn_by_a_kill_is_set_aside_and_run_again(tmp_path):
    job = campaign(tmp_path)
    await run_campaign(job, FakeRun())
    content = job.path.read_bytes()
    job.path.write_bytes(content[:-25])
    report = await run_campaign(job, FakeRun(), "resume")
    assert report.torn_bytes > 0 and report.coverage.exact
    torn = (tmp_path / "results.jsonl.torn").read_bytes()
    assert torn.rstrip(b"\n") == content.splitlines()[-1][:-24]


async def test_more_attempts_extend_a_campaign(tmp_path):
    await run_campaign(campaign(tmp_path, attempts=2), FakeRun())
    run = FakeRun()
    report = await run_campaign(campaign(tmp_path, attempts=3), run, "resume")
    assert report.coverage.exact and {attempt for _, attempt, _ in run.calls} == {2}


@pytest.mark.parametrize(
    ("changes", "start", "message"),
    [
        ({}, "fresh", "exists already"),
        ({"policy": "weights-2"}, "resume", "started with other policy"),
        ({"attempts": 3}, "resume", "started with other attempts"),
    ],
)
async def test_a_file_of_another_campaign_is_refused(tmp_path, changes, start, message):
    await run_campaign(campaign(tmp_path), FakeRun())
    with pytest.raises(ConfigError, match=message):
        await run_campaign(campaign(tmp_path, **changes), FakeRun(), start)


async def test_nothing_to_repair_is_said(tmp_path):
    with pytest.raises(ConfigError, match="nothing to repair"):
        await run_campaign(campaign(tmp_path), FakeRun(), "repair")


async def test_no_more_episodes_run_at_once_than_allowed(tmp_path):
    running = peak = 0

    async def run(task_ref, attempt, try_):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return await FakeRun()(task_ref, attempt, try_)

    await run_campaign(campaign(tmp_path, concurrency=2), run)
    assert peak == 2
