"""Engines and learner on the same GPUs: who is on the device when, and engines that lose weights
which only the learner has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from tbrl.actors import fleet as module
from tbrl.actors.fleet import Loaded, RolloutFleet, WeightsLost
from tbrl.actors.learner import interface_of
from tbrl.actors.rollout_worker import RolloutSettings
from tbrl.config import (
    EngineConfig,
    ModelConfig,
    RolloutConfig,
    TopologyConfig,
)
from tbrl.errors import ConfigError
from tbrl.stages.train import start_learner
from tbrl.types import RoleUsage


class Log:
    """Answers every coroutine of fleet, learner and cluster, and keeps the order."""

    def __init__(self, topology: TopologyConfig) -> None:
        self.config = SimpleNamespace(topology=topology)
        self.fleet = self
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any) -> Any:
            self.calls.append(" ".join([name, *(str(a) for a in arguments)]))
            return self if name == "start_learner" else {"step": 7, "policy_version": 5}

        return call


def start(topology: TopologyConfig, checkpoint: Path | None = None) -> list[str]:
    log = Log(topology)
    asyncio.run(start_learner(log, Path("c"), checkpoint))  # type: ignore[arg-type]
    return log.calls


def test_engines_make_room_before_the_ranks_load_and_wake_in_two_parts() -> None:
    shared = TopologyConfig(device="cuda", colocated=True)
    before, after = ["sleep", "start_learner c"], ["offload", "wake kv_cache"]
    assert start(shared) == [*before, "wake weights", "send_weights 0", *after]
    assert start(shared, Path("c/step-7")) == [
        *before, "load c/step-7", "wake weights", "send_weights 5", *after
    ]  # fmt: skip


@pytest.mark.parametrize(
    "topology", [TopologyConfig(), TopologyConfig(device="cuda", colocated=False)]
)
def test_engines_stay_awake_where_devices_are_their_own(topology: TopologyConfig) -> None:
    assert start(topology) == ["start_learner c", "send_weights 0"]


class Worker:
    """A rollout worker's handle; the first of them is dead."""

    born = 0

    def __init__(self) -> None:
        self.number, Worker.born = Worker.born, Worker.born + 1

    def __getattr__(self, method: str) -> Any:
        async def answer(*_: Any) -> str:
            if method == "run_attempt" and self.number == 0:
                raise RayActorError
            return f"{method} by {self.number}"

        return SimpleNamespace(remote=answer)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> RolloutFleet:
    monkeypatch.setattr(Worker, "born", 0)
    monkeypatch.setattr(module, "spawn", lambda *_, **__: Worker())
    monkeypatch.setattr(module.ray, "kill", lambda _: None)
    settings = RolloutSettings(
        "policy",
        ModelConfig(),
        EngineConfig(),
        TopologyConfig(),
        RolloutConfig(),
        0,
        8,
        RoleUsage(),
    )
    return RolloutFleet(settings, [], None, None, {}, lambda _: {})  # type: ignore[arg-type]


def test_a_rebuilt_engine_waits_for_weights_that_only_the_learner_has(fleet: RolloutFleet) -> None:
    async def run() -> None:
        async def work(worker: Any) -> str:
            return await worker.actor.run_attempt.remote()

        rebuilt: list[int] = []
        fleet.on_rebuild = lambda: rebuilt.append(1)
        await fleet.start()
        fleet.loaded = Loaded(3)
        for _ in range(2):
            with pytest.raises(WeightsLost):
                await fleet._on_worker(1, work)
        assert rebuilt == [1] and fleet.rebuilds == 1
        fleet.loaded = Loaded(3)  # as the learner notes when it has sent them
        assert (await fleet._on_worker(1, work))[0] == "run_attempt by 1"

    asyncio.run(run())


def test_the_interface_that_ranks_meet_on_is_the_one_with_rays_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(ConfigError, match=r"203\.0\.113\.9"):
        interface_of("203.0.113.9")
