"""The learner's ranks: who they are and the few sums they exchange. World 1 needs no group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tbrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SequenceShards:
    """The ranks that share the tokens of a micro-batch, and this one's place among them."""

    group: Any
    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the learner's ranks."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    mesh: DeviceMesh | None = None
    """1-D mesh over all ranks; None for a single process without a group."""
    checkpoint_group: Any = None
    """Own gloo group for checkpoint writers: their collectives run on a thread and must not
    interleave with those of the step."""

    sequence: SequenceShards | None = None
    """None without sequence parallelism. Neighbouring ranks form a group."""

    @property
    def data_rank(self) -> int:
        """Which share of the slots is this rank's: slot % data_world."""
        return self.rank // (self.sequence.size if self.sequence else 1)

    @property
    def data_world(self) -> int:
        return self.world // (self.sequence.size if self.sequence else 1)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise float64 sum over ranks."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        """Element-wise float64 maximum over ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def sum_integers(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise int64 sum over ranks; wraps."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def _reduce(self, values: Sequence[float], op: Any) -> list[float]:
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op)
        return tensor.tolist()


def join_ranks(
    rank: int,
    world: int,
    store: dist.Store | None = None,
    device: str = "cpu",
    timeout_s: float = 600.0,
    always_group: bool = False,
    sequence_parallel: int = 1,
) -> Ranks:
    """Join the learner's process group through `store` (made by the caller, port 0: no race).

    One rank joins nothing, unless `always_group` asks for a group of one (mixed precision lives
    in the sharding). A peer that hangs raises after `timeout_s`; one that dies, at once.
    """
    target = (
        torch.device(device, torch.cuda.current_device())
        if device == "cuda"
        else torch.device(device)
    )
    if world == 1 and not always_group:
        return Ranks(device=target)
    backend = "cpu:gloo,cuda:nccl" if target.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=store or dist.HashStore(),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_s),
    )
    mesh = init_device_mesh(target.type, (world,), mesh_dim_names=("fsdp",))
    writers = dist.new_group(backend="gloo") if world > 1 else None
    return Ranks(
        rank, world, target, mesh, writers, _sequence_shards(rank, world, sequence_parallel)
    )


def _sequence_shards(rank: int, world: int, size: int) -> SequenceShards | None:
    if size == 1:
        return None
    if world % size:
        raise ConfigError(
            f"topology.sequence_parallel={size}: must divide topology.learner_world={world}"
        )
    # Every rank takes part in making every group.
    groups = [dist.new_group(list(range(s, s + size))) for s in range(0, world, size)]
    return SequenceShards(groups[rank // size], rank % size, size)


def leave_ranks(ranks: Ranks) -> None:
    """Destroy the process group, if there is one."""
    if ranks.mesh is not None:
        dist.destroy_process_group()
