"""Nothing is sampled before the engine has echoed the version and weights that it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tbrl.actors.rollout_worker import RolloutWorker
from tbrl.engine.vllm_engine import VllmEngine, WeightEcho
from tbrl.engine.weights import confirm
from tbrl.errors import BackendFailure, InvariantError
from tbrl.schedule import Assignment
from tbrl.types import Generation, PublicTask, Sampling

TASK = PublicTask("t/1", "toy", "toy/compact", "hi", {}, {}, "t")


class FakeLlm:
    """vLLM's AsyncLLM as far as the wrapper calls it."""

    def __init__(self, digests: tuple[str, ...] = ("d",), resets: bool = True) -> None:
        self.digests, self.resets, self.version = digests, resets, "0"
        self.forgets_version = False
        self.outputs: list[Any] = []
        self.during: Any = lambda: None

    async def collective_rpc(self, method: str, **_: Any) -> list[str]:
        return list(self.digests) if method == "end_digest" else []

    async def start_weight_update(self) -> None: ...

    async def finish_weight_update(self, weight_version: str) -> None:
        if not self.forgets_version:
            self.version = weight_version

    update_weight_version = finish_weight_update

    async def reset_prefix_cache(self) -> bool:
        return self.resets

    async def get_weight_version(self) -> str:
        return self.version

    async def generate(self, *_: Any) -> AsyncIterator[Any]:
        self.during()
        for output in self.outputs:
            yield output


def updated(llm: FakeLlm) -> tuple[VllmEngine, Any]:
    """The engine, and the echo of an update to version 4 or what stopped it."""
    engine = VllmEngine(llm, 3)

    async def update() -> WeightEcho:
        await engine.begin_update()
        return await engine.end_update(4)

    try:
        return engine, asyncio.run(update())
    except InvariantError as error:
        return engine, str(error)


def test_an_update_that_every_worker_confirms_is_the_new_version() -> None:
    engine, echo = updated(FakeLlm(("d", "d")))
    assert echo == WeightEcho(4, "d", True)
    assert engine.policy_version == 4


def test_an_engine_that_keeps_version_cache_or_other_weights_stays_without_a_version() -> None:
    stuck, asleep = FakeLlm(resets=False), FakeLlm()
    asleep.forgets_version = True
    for llm, message in (
        (stuck, "prefix cache could not be reset"),
        (asleep, "engine echoes version 0, expected 4"),
        (FakeLlm(("d", "e")), "workers of one engine received different weights"),
    ):
        engine, said = updated(llm)
        assert message in said
        assert engine.policy_version == -1


def test_loading_a_folder_is_confirmed_like_an_update() -> None:
    llm = FakeLlm()
    llm.forgets_version = True
    engine = VllmEngine(llm, 3)
    with pytest.raises(InvariantError, match="engine echoes version 0, expected 4"):
        asyncio.run(engine.load_folder("folder", 4))
    assert engine.policy_version == -1


@pytest.mark.parametrize("serves", [-1, 1, 3])
def test_a_worker_refuses_another_version_than_its_engine_has_echoed(serves: int) -> None:
    worker = object.__new__(RolloutWorker.__ray_metadata__.modified_class)
    worker._engine = SimpleNamespace(policy_version=serves, dead=False)
    message = f"asked to sample policy version 2, the engine echoes {serves}"
    with pytest.raises(InvariantError, match=message):
        asyncio.run(worker.run_group(Assignment(0, 0, 0, 0, "t/1"), TASK, 2))
    with pytest.raises(InvariantError, match=message):
        asyncio.run(worker.run_attempt(TASK, "probe", 0, 0, 1, Sampling(), 2))


@pytest.mark.parametrize(("version", "digest"), [(3, "d"), (4, "e"), (4, "")])
def test_an_echo_of_another_version_or_digest_names_the_engine(version: int, digest: str) -> None:
    echoes = [WeightEcho(4, "d", True), WeightEcho(version, digest, True)]
    with pytest.raises(InvariantError, match="engine 1 echoes"):
        confirm(echoes, "d", 4, 10)


def sampled(llm: FakeLlm, ids: tuple[int, ...], logprobs: Any, reason: str = "stop") -> Generation:
    output = SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason=reason)
    llm.outputs = [SimpleNamespace(outputs=[output], num_cached_tokens=0)]
    engine = VllmEngine(llm, 3)
    if llm.version == "moving":
        llm.during = lambda: setattr(engine, "policy_version", 4)
    return asyncio.run(engine.generate([1, 2], Sampling(), 8, 0, [9]))


def test_a_turn_carries_the_version_it_was_sampled_with() -> None:
    pytest.importorskip("vllm")
    table = [{5: SimpleNamespace(logprob=-0.5)}]
    turn = sampled(FakeLlm(), (5,), table)
    assert (turn.ids, turn.logprobs, turn.policy_version) == ((5,), (-0.5,), 3)
    moving = FakeLlm()
    moving.version = "moving"
    with pytest.raises(InvariantError, match="weights changed from version 3 during a turn"):
        sampled(moving, (5,), table)


def test_tokens_without_a_logprob_each_are_refused_and_an_aborted_turn_is_a_failure() -> None:
    pytest.importorskip("vllm")
    table = [{5: SimpleNamespace(logprob=-0.5)}]
    for logprobs in (None, table):
        with pytest.raises(InvariantError, match="without a behaviour logprob for each"):
            sampled(FakeLlm(), (5, 6), logprobs)
    with pytest.raises(BackendFailure, match="aborted"):
        sampled(FakeLlm(), (5,), table, "abort")
