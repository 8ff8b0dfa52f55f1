"""Learner side of weight transfer: one interface, three backends chosen by configuration.

`shm` writes one safetensors file into shared memory and hands its path to every engine (CPU).
`ipc` (same GPU) and `nccl` (a GPU a side) drive vLLM's own trainer-side engines.
The sender talks to engines through `EngineControl`, which actors/ implements over Ray.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from tbrl.engine.digest import WeightDigest
from tbrl.engine.vllm_engine import WeightEcho
from tbrl.errors import InvariantError

NamedWeights = Callable[[], Iterator[tuple[str, torch.Tensor]]]
"""A fresh pass over the full parameters; materialising them may be a collective over ranks."""


class EngineControl(Protocol):
    """Control plane of all engines at once; every call has a deadline."""

    def init_transfer(self, info: dict[str, Any]) -> None:
        """Each engine gets its own share of `info` (`info_of_engine`)."""

    def begin_update(self) -> None: ...
    def receive_update(self, info: Any) -> None: ...
    def end_update(self, version: int) -> list[WeightEcho]: ...


@dataclass(frozen=True, slots=True)
class SentWeights:
    """One weight update as every engine confirmed it."""

    policy_version: int
    digest: str
    echoes: tuple[WeightEcho, ...]
    bytes: int
    info: dict[str, Any] | None = None
    """What a rebuilt engine on the same host can load again (`shm`); None for device backends."""


class WeightSender(Protocol):
    """Called on every learner rank; ranks other than 0 only take part in gathering."""

    def send(self, weights: NamedWeights, version: int) -> SentWeights | None: ...
    def close(self) -> None: ...


class ShmSender:
    """Two alternating files in shared memory, so that a late reader never sees a torn one."""

    def __init__(self, control: EngineControl, rank: int, name: str) -> None:
        self._control = control
        self._rank = rank
        self._base = Path("/dev/shm") / f"tbrl-{name}"
        self._turn = 0

    def send(self, weights: NamedWeights, version: int) -> SentWeights | None:
        """Gather, write, load on all engines, compare digests. Returns None on ranks above 0."""
        digest = WeightDigest()
        tensors = {
            name: tensor.detach().contiguous().clone() for name, tensor in digest.tap(weights())
        }
        if self._rank:
            return None
        path = self._path(self._turn)
        self._turn ^= 1
        save_file(tensors, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
        self._control.begin_update()
        self._control.receive_update({"path": str(path)})
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        sent = confirm(self._control.end_update(version), digest.hexdigest(), version, size)
        return replace(sent, info={"path": str(path)})

    def _path(self, turn: int) -> Path:
        return self._base.with_name(f"{self._base.name}-{turn}.safetensors")

    def close(self) -> None:
        for turn in (0, 1):
            self._path(turn).unlink(missing_ok=True)


def info_of_engine(info: dict[str, Any], index: int, tensor_parallel: int) -> dict[str, Any]:
    """vLLM's init info for one of several engines: each joins the NCCL group with ranks of its
    own, behind those of the engines before it."""
    if "rank_offset" not in info:
        return info
    return {**info, "rank_offset": info["rank_offset"] + index * tensor_parallel}


class VllmSender:
    """`ipc` or `nccl`: vLLM's trainer-side transfer engine drives the round trip. GPU only."""

    def __init__(
        self,
        control: EngineControl,
        rank: int,
        backend: str,
        world_size: int,
        address: str,
        port: int,
    ) -> None:
        self._control = control
        self._rank = rank
        self._backend = backend
        self._rendezvous = (address, port, world_size)
        self._engine: Any = None
        self._metadata: list[Any] = []

    def _info(self) -> Any:
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        if self._backend == "ipc":
            # Each tensor must fit whole; the output head of an 8B policy alone passes vLLM's 1 GiB.
            largest = max(prod(meta.shape) * meta.dtype.itemsize for meta in self._metadata)
            return IPCTrainerInitInfo(
                rank=self._rank, packed=True, packed_buffer_size_bytes=max(largest, 1 << 30)
            )
        address, port, world_size = self._rendezvous
        return NCCLTrainerInitInfo(
            rank=self._rank,
            master_address=address,
            master_port=port,
            world_size=world_size,
            packed=True,
        )

    def _source(self, weights: NamedWeights) -> Any:
        """vLLM's WeightSource over our iterator, digesting what passes. Names, dtypes and shapes
        never change, so the pass that learns them is made once."""
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

        if not self._metadata:
            self._metadata = [ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in weights()]
        metadata = self._metadata

        class TappedSource(WeightSource):
            digest = WeightDigest()
            bytes = 0

            def metadata(self) -> list[Any]:
                return metadata

            def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
                for name, tensor in self.digest.tap(weights()):
                    self.bytes += tensor.numel() * tensor.element_size()
                    yield name, tensor

        return TappedSource()

    def send(self, weights: NamedWeights, version: int) -> SentWeights | None:
        source = self._source(weights)
        if self._engine is None:
            from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

            self._engine = WeightTransferTrainerFactory.trainer_init(
                self._info(), client=_ControlClient(self._control), source=source
            )
        self._engine.source = source
        self._engine.send_weights()
        if self._rank:
            return None
        echoes = self._control.end_update(version)
        return confirm(echoes, source.digest.hexdigest(), version, source.bytes)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()


class _ControlClient:
    """vLLM's weight-sync client protocol over EngineControl. `finish` is left to `end_update`,
    which also resets the caches and collects the echoes."""

    def __init__(self, control: EngineControl) -> None:
        self._control = control

    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        self._control.init_transfer(info)

    def start_weight_update(self) -> None:
        self._control.begin_update()

    def update_weights(self, info: Any) -> None:
        self._control.receive_update(info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        del weight_version

    def shutdown_weight_transfer_engine(self) -> None:
        """Engines are shut down by their actors."""


def confirm(echoes: list[WeightEcho], digest: str, version: int, size: int) -> SentWeights:
    """All engines must echo the version and digest that were sent."""
    for index, echo in enumerate(echoes):
        if echo.policy_version != version or echo.digest != digest:
            raise InvariantError(
                f"engine {index} echoes version {echo.policy_version} digest {echo.digest}, "
                f"sent version {version} digest {digest}"
            )
    return SentWeights(version, digest, tuple(echoes), size)
