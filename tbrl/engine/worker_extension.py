"""Runs inside vLLM's workers: the `shm` weight-transfer backend and the digest echo.

Importing this module (vLLM does, as `worker_extension_cls`) registers the backend next to the
built-in `ipc` and `nccl`; all three share one start / update / finish life cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from tbrl.engine.digest import WeightDigest


@dataclass
class ShmInit(WeightTransferInitInfo):
    """Nothing to rendezvous: the path comes with each update."""


@dataclass
class ShmUpdate(WeightTransferUpdateInfo):
    path: str
    """A safetensors file in shared memory on this host."""


class ShmWeightTransfer(WeightTransferEngine[ShmInit, ShmUpdate]):
    """Weights through a memory-mapped safetensors file on the same host."""

    init_info_cls = ShmInit
    update_info_cls = ShmUpdate

    def init_transfer_engine(self, init_info: ShmInit) -> None:
        del init_info

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ShmUpdate) -> None:
        model: Any = self.model
        with safe_open(update_info.path, framework="pt", device="cpu") as file:
            model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


if "shm" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("shm", ShmWeightTransfer)


def repack(model: torch.nn.Module) -> None:
    """vLLM on CPU packs weights for its GEMMs at load, and a reload forgets two kinds: a tied
    output head, whose logits would silently use the old embedding, and experts, which would be
    left unpacked for a kernel that reads packed ones."""
    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
        elif isinstance(module, RoutedExperts):
            method: Any = module.quant_method
            method.moe_kernel.fused_experts.process_weights_after_loading(module)


class WorkerExtension:
    """Methods that the engine wrapper calls on each worker through collective_rpc."""

    model_runner: Any
    _digest: WeightDigest

    def begin_digest(self) -> None:
        """Tap the weights that the next update loads, whatever backend delivers them."""
        self._digest = digest = WeightDigest()
        # Not `model_runner.model`: with CUDA graphs that is a wrapper, which loads nothing.
        model = self.model_runner.get_model()
        load = type(model).load_weights

        def tapped(weights: Any, *args: Any, **kwargs: Any) -> Any:
            return load(model, digest.tap(weights), *args, **kwargs)

        model.__dict__["load_weights"] = tapped

    def end_digest(self) -> str:
        """Untap, rebuild what the reload missed, return the digest of what was received."""
        model = self.model_runner.get_model()
        model.__dict__.pop("load_weights", None)
        repack(model)
        return self._digest.hexdigest()
