"""Dead and silent workers and ranks: rebuilt, or an error at their deadline; never waited for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from tbrl.actors import fleet as module
from tbrl.actors.fleet import MAX_REBUILDS, Loaded, RolloutFleet, _Worker
from tbrl.actors.learner import LearnerLost, LearnerRanks
from tbrl.actors.rollout_worker import EngineLost
from tbrl.config import RolloutConfig
from tbrl.errors import BackendFailure, InvariantError


def lost(cause: Exception) -> RayTaskError:
    return RayTaskError("run_group", "traceback", cause)


class Call:
    """A remote method of a fake actor that notes its calls."""

    def __init__(self, log: list[Any], name: str) -> None:
        self.log, self.name = log, name

    async def remote(self, *arguments: Any) -> None:
        await asyncio.sleep(0)
        self.log.append((self.name, *arguments))


class Actor:
    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Call:
        return Call(self._log, name)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two workers without Ray; `log` is what rebuilt actors were asked to do."""
    log: list[Any] = []
    settings: Any = SimpleNamespace(
        model_path="base",
        rollout=RolloutConfig(),
        engine=SimpleNamespace(start_timeout_s=5.0),
        group_size=4,
    )
    made: Any = RolloutFleet(settings, [], None, None, {}, lambda index: {})  # type: ignore[arg-type]
    monkeypatch.setattr(module, "spawn", lambda *_, **__: Actor(log))
    monkeypatch.setattr(module.ray, "kill", lambda actor: log.append(("kill",)))
    made._workers = [_Worker(index, Actor(log)) for index in range(2)]  # type: ignore[arg-type]
    made.log = log
    return made


def test_a_call_without_an_answer_is_a_failure_at_its_deadline(fleet: Any) -> None:
    with pytest.raises(BackendFailure, match=r"a group hangs: no answer in 0.01 s") as caught:
        asyncio.run(fleet._within(asyncio.Event().wait(), 0.01, "a group hangs"))
    assert caught.value.kind == "deadline"


def test_the_deadline_grows_with_what_waits_before_and_is_never_endless(fleet: Any) -> None:
    rollout, worker = fleet._settings.rollout, fleet._workers[0]
    once = rollout.episode_deadline_s * rollout.max_tries
    assert fleet._deadline(worker) == once + 30
    worker.episodes = 2 * rollout.concurrency
    assert fleet._deadline(worker) == 3 * once + 30


@pytest.mark.parametrize(
    "death", [RayActorError(), lost(EngineLost("gone")), lost(RayActorError())]
)
def test_a_dead_worker_is_rebuilt_with_the_present_weights_and_its_work_runs_again(
    fleet: Any, death: Exception
) -> None:
    fleet.loaded = Loaded(7, info={"path": "weights"})
    first, seen = fleet._workers[0].actor, []

    async def work(worker: _Worker) -> str:
        seen.append(worker.actor)
        if worker.actor is first:
            raise death
        return "done"

    assert asyncio.run(fleet._on_worker(4, work)) == ("done", 1)
    assert seen[0] is first and seen[1] is not first
    assert fleet.log == [
        ("kill",),
        ("start",),
        ("begin_update",),
        ("receive_update", {"path": "weights"}),
        ("end_update", 7),
    ]
    assert [worker.episodes for worker in fleet._workers] == [0, 0]


def test_groups_of_one_dead_worker_rebuild_it_once(fleet: Any) -> None:
    fleet._workers = fleet._workers[:1]
    first = fleet._workers[0].actor

    async def work(worker: _Worker) -> str:
        await asyncio.sleep(0)
        if worker.actor is first:
            raise RayActorError()
        return "done"

    async def several() -> list[tuple[str, int]]:
        return await asyncio.gather(*(fleet._on_worker(4, work) for _ in range(3)))

    assert [done for done, _ in asyncio.run(several())] == ["done"] * 3
    assert fleet.rebuilds == 1 and ("load_folder", "base", 0) in fleet.log


def test_a_worker_that_keeps_dying_ends_the_run(fleet: Any) -> None:
    async def work(worker: _Worker) -> None:
        raise RayActorError()

    with pytest.raises(BackendFailure, match=f"died {MAX_REBUILDS + 1} times"):
        asyncio.run(asyncio.wait_for(fleet._on_worker(4, work), 20))


def test_an_error_of_the_work_itself_is_raised_as_it_is(fleet: Any) -> None:
    async def work(worker: _Worker) -> None:
        raise lost(InvariantError("a bug"))

    with pytest.raises(InvariantError, match="a bug"):
        asyncio.run(fleet._on_worker(4, work))
    assert fleet.rebuilds == 0


# ---------------------------------------------------------------- learner ranks


class Rank:
    """A learner rank as far as `ping` goes."""

    def __init__(self, dead: bool) -> None:
        self.ping = self
        self.dead = dead

    async def remote(self) -> None:
        if self.dead:
            raise RayActorError()


def ranks(*dead: bool) -> Any:
    made: Any = object.__new__(LearnerRanks)
    made.actors = [Rank(d) for d in dead]
    return made


async def _raise(error: Exception) -> None:
    raise error


def test_a_rank_without_an_answer_is_lost_at_its_deadline() -> None:
    async def call() -> None:
        await ranks(False)._get([asyncio.Event().wait()], 0.01, "finish")

    with pytest.raises(LearnerLost, match=r"finish: no answer in 0.01 s"):
        asyncio.run(call())


@pytest.mark.parametrize(
    "error", [RayActorError(), lost(RuntimeError("connection closed by peer"))]
)
def test_a_dead_rank_loses_the_learner_at_once_also_where_another_rank_complains_first(
    error: Exception,
) -> None:
    async def call() -> None:
        calls = [_raise(error), asyncio.Event().wait()]
        await asyncio.wait_for(ranks(False, True)._get(calls, 600, "finish"), 5)

    with pytest.raises(LearnerLost, match="finish: a rank died"):
        asyncio.run(call())


def test_an_error_of_living_ranks_is_raised_as_it_is() -> None:
    async def call() -> None:
        await ranks(False, False)._get([_raise(lost(InvariantError("a bug")))], 600, "finish")

    with pytest.raises(InvariantError, match="a bug"):
        asyncio.run(call())
