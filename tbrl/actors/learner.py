"""Learner ranks: one actor each, and the group of them that the controller talks to.

A rank fetches the payload of its groups from the object store itself. Rank 0 also drives weight
updates: it gathers (all ranks take part), sends, and collects the engines' echoes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from tbrl.actors.actor import actor, spawn
from tbrl.config import AlgorithmConfig, CheckpointConfig, ModelConfig, TopologyConfig
from tbrl.controller import LearnerReport
from tbrl.engine.weights import (
    SentWeights,
    ShmSender,
    VllmSender,
    WeightEcho,
    WeightSender,
    info_of_engine,
)
from tbrl.errors import ConfigError, TbrlError
from tbrl.types import EpisodeGroup, JsonObject, Sampling

UPDATE_DEADLINE_S = 600.0
"""For one message of a weight update to all engines."""


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """All that a learner rank is told at its start."""

    algorithm: AlgorithmConfig
    model: ModelConfig
    """`path` is a folder: builtin names are resolved before."""
    topology: TopologyConfig
    sampling: Sampling
    checkpoint: CheckpointConfig
    checkpoints: str
    """Folder of the run's checkpoints."""
    run_id: str
    """Names this run's files in shared memory."""


class LearnerLost(TbrlError):
    """A learner rank died: all ranks must start again from the last checkpoint."""


class RayEngineControl:
    """engine.weights.EngineControl over actor handles; every call goes to all engines and has a
    deadline."""

    def __init__(self, engines: list[ActorHandle], tensor_parallel: int) -> None:
        self._engines = engines
        self._tensor_parallel = tensor_parallel

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        calls = [getattr(engine, method).remote(*arguments) for engine in self._engines]
        return ray.get(calls, timeout=UPDATE_DEADLINE_S)

    def init_transfer(self, info: dict[str, Any]) -> None:
        calls = [
            engine.init_transfer.remote(info_of_engine(info, index, self._tensor_parallel))
            for index, engine in enumerate(self._engines)
        ]
        ray.get(calls, timeout=UPDATE_DEADLINE_S)

    def begin_update(self) -> None:
        self._all("begin_update")

    def receive_update(self, info: Any) -> None:
        self._all("receive_update", info)

    def end_update(self, version: int) -> list[WeightEcho]:
        return self._all("end_update", version)


@actor()
class LearnerRank:
    """One rank of the learner."""

    def __init__(self, settings: LearnerSettings, rank: int) -> None:
        import torch

        topology = settings.topology
        torch.set_num_threads(topology.threads_per_learner)
        os.environ["OMP_NUM_THREADS"] = str(topology.threads_per_learner)
        self._settings = settings
        self._rank = rank
        self._store: Any = None
        self._sender: WeightSender
        self._learner: Any

    def host_store(self) -> tuple[str, int]:
        """Rank 0 hosts the rendezvous on a port that the system picks: no race for one."""
        import torch.distributed as dist

        address = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(address, 0, None, True, wait_for_workers=False)
        return address, self._store.port

    def start(self, address: str, port: int) -> None:
        """Join the other ranks and load the policy."""
        import torch.distributed as dist

        from tbrl.learner.distributed import join_ranks
        from tbrl.learner.learner import GrpoLearner

        s = self._settings
        world = s.topology.learner_world
        if s.topology.nodes > 1:
            # Else gloo takes the address of the host name, which many systems map to loopback.
            name = interface_of(ray.util.get_node_ip_address())
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        if world > 1 and self._store is None:
            self._store = dist.TCPStore(address, port, None, False, wait_for_workers=False)
        ranks = join_ranks(
            self._rank,
            world,
            self._store,
            s.topology.device,
            timeout_s=s.topology.learner_deadline_s,
            sequence_parallel=s.topology.sequence_parallel,
        )
        self._learner = GrpoLearner(
            s.algorithm,
            s.model,
            s.sampling,
            ranks,
            # At their own pace ranks hold whole parameters and gradients: right where they fit
            # twice, as on one host; not for a policy that is sharded because it must be.
            own_pace=s.topology.device == "cpu",
            engine=s.topology.learner_engine,
            offload=s.topology.learner_offload,
        )

    def connect(self, engines: list[ActorHandle]) -> None:
        """(Re)build the weight sender for these engines."""
        s = self._settings
        control = RayEngineControl(engines, s.topology.tensor_parallel)
        if s.topology.weight_transfer == "shm":
            self._sender = ShmSender(control, self._rank, s.run_id)
        else:
            gpus = len(engines) * s.topology.tensor_parallel
            address = ray.util.get_node_ip_address()
            self._sender = VllmSender(
                control, self._rank, s.topology.weight_transfer, gpus + 1, address, _free_port()
            )

    def ping(self) -> None:
        """Answers while the process lives."""

    def begin_step(self) -> None:
        self._learner.begin_step()

    def add_group(self, slot: int, group: EpisodeGroup) -> None:
        """`group` arrives as a reference and is resolved here, by Ray."""
        self._learner.add_group(group, slot)

    def finish(self, action_tokens: int) -> Any:
        return self._learner.finish(action_tokens)

    def send_weights(self, version: int) -> SentWeights | None:
        import torch

        dtype = getattr(torch, self._settings.model.engine_dtype)
        return self._sender.send(lambda: self._learner.weights(dtype), version)

    def onload(self) -> None:
        self._learner.onload()

    def offload(self) -> None:
        self._learner.offload()

    def save(self, step: int, extra: JsonObject) -> None:
        s = self._settings
        self._learner.save(
            s.checkpoints,
            step,
            extra,
            keep=s.checkpoint.keep,
            asynchronous=s.checkpoint.asynchronous,
        )

    def load(self, folder: str) -> JsonObject:
        return self._learner.load(folder)

    def stop(self) -> None:
        """Finish a pending checkpoint, remove what lies in shared memory."""
        self._learner.wait_saved()
        self._sender.close()


def interface_of(address: str) -> str:
    """Name of the network interface with an IP address."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return str(name)
    raise ConfigError(f"no network interface of this node has Ray's address {address}")


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


class LearnerRanks:
    """Implements controller.Learner."""

    def __init__(
        self,
        settings: LearnerSettings,
        options: Callable[[int], JsonObject],
        on_sent: Callable[[SentWeights], None],
    ) -> None:
        """`options(rank)` are Ray actor options; `on_sent` hears each confirmed update."""
        self._settings = settings
        self._world = settings.topology.learner_world
        self._deadline = settings.topology.learner_deadline_s
        self._on_sent = on_sent
        self._engines: Callable[[], list[ActorHandle]] = list
        self._stale = False
        self.actors: list[ActorHandle] = [
            spawn(LearnerRank, settings, rank, options=options(rank)) for rank in range(self._world)
        ]

    async def start(self, engines: Callable[[], list[ActorHandle]]) -> None:
        """Form the ranks, load the policy, connect to the engines (asked for again after one
        was rebuilt)."""
        self._engines = engines
        [(address, port)] = await self._get([self.actors[0].host_store.remote()], 120, "store")
        await self._all("start", self._deadline, address, port)
        await self._connect()

    async def _connect(self) -> None:
        self._stale = False
        await self._all("connect", 120, self._engines())

    def reconnect_later(self) -> None:
        """An engine was rebuilt: the next update goes to its new handle."""
        self._stale = True

    async def load(self, folder: str) -> JsonObject:
        """Restore a checkpoint; returns the controller's own extra."""
        return (await self._all("load", self._deadline, folder))[0]

    # ------------------------------------------------------------ controller.Learner

    async def begin_step(self) -> None:
        await self._all("begin_step", self._deadline)

    async def add_group(self, slot: int, group: Any) -> None:
        """To the ranks that own the slot: one, or all of one sequence-parallel group."""
        size = self._settings.topology.sequence_parallel
        first = slot % (self._world // size) * size
        owners = self.actors[first : first + size]
        calls = [rank.add_group.remote(slot, group) for rank in owners]
        await self._get(calls, self._deadline, "add_group")

    async def finish(self, action_tokens: int) -> LearnerReport:
        stats = (await self._all("finish", self._deadline, action_tokens))[0]
        metrics = {k: float(v) for k, v in asdict(stats).items() if isinstance(v, int | float)}
        metrics.pop("no_op")
        return LearnerReport(
            no_op=stats.no_op,
            digest_before=stats.digest_before,
            digest_after=stats.digest_after,
            metrics=metrics,
            overlap_s=stats.seconds["accumulate"],
        )

    async def send_weights(self, policy_version: int) -> JsonObject:
        if self._stale:
            await self._connect()
        sent = (await self._all("send_weights", self._deadline, policy_version))[0]
        self._on_sent(sent)
        return {
            "policy_version": sent.policy_version,
            "digest": sent.digest,
            "bytes": sent.bytes,
            "echoes": [asdict(echo) for echo in sent.echoes],
        }

    async def onload(self) -> None:
        await self._all("onload", self._deadline)

    async def offload(self) -> None:
        await self._all("offload", self._deadline)

    async def save(self, step: int, extra: JsonObject) -> None:
        await self._all("save", self._deadline, step, extra)

    # ------------------------------------------------------------ life cycle

    async def stop(self, gently: bool) -> None:
        """`gently` waits for a pending checkpoint; otherwise only shared memory is cleaned."""
        if gently:
            await self._all("stop", self._deadline)
        for rank in self.actors:
            ray.kill(rank)

    async def _all(self, method: str, seconds: float, *arguments: Any) -> list[Any]:
        calls = [getattr(actor, method).remote(*arguments) for actor in self.actors]
        return await self._get(calls, seconds, method)

    async def _get(self, references: list[Any], seconds: float, what: str) -> list[Any]:
        """All results. The first error wins at once: the other ranks may wait for the dead one."""
        try:
            async with asyncio.timeout(seconds):
                return list(await asyncio.gather(*references))
        except TimeoutError:
            raise LearnerLost(f"learner: {what}: no answer in {seconds:g} s") from None
        except RayActorError as error:
            raise LearnerLost(f"learner: {what}: a rank died") from error
        except RayTaskError as error:
            # One dead rank breaks the collectives of the others, whose errors may come first.
            if await self._rank_is_dead():
                raise LearnerLost(f"learner: {what}: a rank died ({error.cause})") from error
            raise (error.cause if isinstance(error.cause, Exception) else error) from None

    async def _rank_is_dead(self) -> bool:
        answers = await asyncio.gather(
            *(asyncio.wait_for(_answer(rank), 10) for rank in self.actors), return_exceptions=True
        )
        return any(isinstance(answer, RayActorError | TimeoutError) for answer in answers)


async def _answer(rank: ActorHandle) -> None:
    await rank.ping.remote()
