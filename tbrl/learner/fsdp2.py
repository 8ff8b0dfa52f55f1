"""The learner engine on FSDP2: float32 master shards, un-normalised accumulation, one AdamW.

    begin_step -> accumulate* -> finish_step | abort_step

Ranks may accumulate different numbers of micro-batches. Two ways, same result:

- own pace: parameters are gathered once at begin_step, gradients add up unsharded and without any
  communication, and one dummy micro-batch of weight zero at the end reduces them. Groups can be
  accumulated the moment they arrive; costs whole parameters and gradients on each rank.
- aligned: each micro-batch gathers and reduces; ranks must call accumulate equally often, with
  None where they have none. Gradients stay sharded.

A single float32 process is not sharded at all and needs no process group.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from tbrl.learner.distributed import Ranks
from tbrl.learner.engine import Capabilities, EngineSettings, LearnerEngine, adamw, make_moments
from tbrl.learner.head import TokenScores
from tbrl.learner.model import Policy
from tbrl.learner.packing import PackedBatch
from tbrl.learner.spread import Outline, spread_weights
from tbrl.types import Sampling


class Fsdp2Learner(LearnerEngine):
    """Trains a Policy; `reference` is the frozen policy of the KL term.

    A policy given as Outline gets its weights, after sharding, from rank 0.
    """

    def __init__(
        self,
        model: Policy | Outline,
        ranks: Ranks,
        settings: EngineSettings,
        reference: Policy | Outline | None = None,
    ) -> None:
        super().__init__(ranks, settings, reference)
        self.reference = None if reference is None else self._place(reference, frozen=True)
        self.model = self._place(model)
        self.optimizer = self._optimizer()
        self.forwarded = False
        """A forward has begun: the sharding has per-iteration state to reset after an abort."""

    # ------------------------------------------------------------ construction

    def _place(self, given: Policy | Outline, frozen: bool = False) -> Policy:
        """On this rank's device, sharded; frozen parameters get no gradient."""
        model = given.policy if isinstance(given, Outline) else given
        if frozen:
            model.requires_grad_(False)
        if self.ranks.mesh is None:
            return model.to(self.ranks.device)
        # Sharding moves one unit after the other to the device: never the whole policy.
        self._shard(model)
        if isinstance(given, Outline):
            spread_weights(model, given.source, self.ranks)
        return model

    def _shard(self, model: Policy) -> None:
        low = self.settings.compute_dtype == "bfloat16"
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if low else None,
            reduce_dtype=torch.float32 if low else None,
        )
        for module in [*model.shard_units(), model]:
            # The root is used twice (embedding, head): keep it whole between the two.
            again = module is not model
            unit = fully_shard(
                module, mesh=self.ranks.mesh, mp_policy=policy, reshard_after_forward=again
            )
            # Plain sums over ranks; gloo has no pre-multiplied sum. Neither call is recursive.
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)

    def _optimizer(self) -> torch.optim.AdamW:
        params = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = adamw(params, self.settings)
        make_moments(optimizer, params)
        return optimizer

    @property
    def sharded(self) -> bool:
        return self.ranks.mesh is not None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            own_pace=self.settings.own_pace or self.ranks.world == 1,
            phase_offload=self.ranks.device.type == "cuda",
        )

    @staticmethod
    def _units(model: Policy) -> list[FSDPModule]:
        return [m for m in model.modules() if isinstance(m, FSDPModule)]

    # ------------------------------------------------------------ one step

    def _begin(self) -> None:
        if self.sharded and self.settings.own_pace:
            self._hold(True)

    def _hold(self, held: bool) -> None:
        """Own pace: keep everything gathered and unreduced, or let the next backward reduce."""
        for unit in self._units(self.model):
            unit.set_reshard_after_forward(not held and unit is not self.model, recurse=False)
            unit.set_reshard_after_backward(not held, recurse=False)
            unit.set_requires_gradient_sync(not held, recurse=False)
            if held:
                unit.unshard()
        self._units(self.model)[0].set_is_last_backward(not held)
        if self.reference is not None:
            for unit in self._units(self.reference):
                unit.set_reshard_after_forward(not held, recurse=False)
                unit.unshard() if held else unit.reshard()

    def _backward(self, loss: Tensor) -> None:
        loss.backward()

    def _reduce(self) -> None:
        if self.sharded and self.settings.own_pace:
            self._hold(False)
            self.accumulate(None)

    def _update(self, factor: float, lr: float) -> None:
        torch._foreach_mul_(self._local_grads(), factor)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    def abort_step(self) -> None:
        if self.sharded:
            self.model.zero_grad(set_to_none=True)  # while gathered: the unsharded gradients
            for unit in self._units(self.model):
                for group in unit._get_fsdp_state()._fsdp_param_groups:
                    for parameter in group.fsdp_params:
                        # Low precision adds up here; no public call drops it.
                        parameter.unsharded_accumulated_grad = None
            if self.forwarded:
                self._units(self.model)[0].reset_iter_state()
            if self.settings.own_pace:
                self._hold(False)
        self._close()

    def _close(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.open = False
        self._rest()

    def _rest(self) -> None:
        """Between steps parameters are shards; a forward alone leaves the root's gathered, and
        what is written into gathered ones is lost."""
        super()._rest()
        for unit in self._units(self.model):
            unit.reshard()

    def _local_grads(self) -> list[Tensor]:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [g.to_local() if isinstance(g, DTensor) else g for g in grads]

    def _grad_norm(self) -> float:
        squares = [
            torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in self._local_grads()
        ]
        local = float(torch.stack(squares).sum()) if squares else 0.0
        return self.ranks.sum([local])[0] ** 0.5

    # ------------------------------------------------------------ reading

    def score(self, batch: PackedBatch, samplings: tuple[Sampling, ...]) -> tuple[TokenScores, ...]:
        self.forwarded = True
        return self.model(batch, samplings)

    def _reference_score(
        self, batch: PackedBatch, samplings: tuple[Sampling, ...]
    ) -> tuple[TokenScores, ...]:
        assert self.reference is not None
        return self.reference(batch, samplings)

    @torch.no_grad()
    def _full_params(self, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.model.named_parameters():
            tensor = parameter.detach()
            if dtype is not None:
                tensor = tensor.to(dtype)
            if isinstance(tensor, DTensor):
                tensor = tensor.full_tensor()
            yield self.model.public_name(name), tensor

    def state(self) -> dict[str, dict[str, Tensor]]:
        self._rest()
        result: dict[str, dict[str, Tensor]] = {
            k: {} for k in ("model", "exp_avg", "exp_avg_sq", "step")
        }
        for name, parameter in self.model.named_parameters():
            public = self.model.public_name(name)
            result["model"][public] = parameter.detach()
            if parameter.requires_grad:
                for key, value in self.optimizer.state[parameter].items():
                    result[key][public] = value
        return result

    # ------------------------------------------------------------ phases

    def offload(self) -> None:
        if self.ranks.device.type == "cuda":
            self._move(torch.device("cpu"))
            torch.cuda.empty_cache()

    def onload(self) -> None:
        if self.ranks.device.type == "cuda":
            self._move(self.ranks.device)

    def _move(self, device: torch.device) -> None:
        self._rest()
        # .to() keeps parameter identity under FSDP2; assigning .data would silently do nothing.
        self.model.to(device)
        if self.reference is not None:
            self.reference.to(device)
        for state in self.optimizer.state.values():
            for key, value in state.items():
                state[key] = value.to(device, non_blocking=device.type == "cuda")
