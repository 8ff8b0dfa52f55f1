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
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from tbrl.errors import InvariantError
from tbrl.learner.distributed import Ranks
from tbrl.learner.head import TokenScores
from tbrl.learner.loss import (
    SUM_FIELDS,
    LossInput,
    LossOutput,
    LossSettings,
    TokenSums,
    grpo_loss,
    merge_sums,
)
from tbrl.learner.model import Policy
from tbrl.learner.packing import PackedBatch, dummy_batch
from tbrl.learner.sequence import shard_batch
from tbrl.learner.spread import Outline, spread_weights
from tbrl.types import Sampling


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the engine needs to know."""

    sampling: Sampling = field(default_factory=Sampling)
    loss: LossSettings = field(default_factory=LossSettings)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    """0 = no clipping."""
    compute_dtype: str = "float32"
    """`float32` or `bfloat16`; master weights, gradients and moments are float32 either way."""
    own_pace: bool = True
    """Accumulate without communication (needs whole parameters and gradients per rank)."""


@dataclass(frozen=True, slots=True)
class StepStats:
    """One optimizer update (or none)."""

    stepped: bool
    """False when the step had no signal: nothing at all was changed."""
    grad_norm: float
    """Global norm of the normalised gradient before clipping."""
    sums: TokenSums
    """Over all micro-batches and ranks."""


@dataclass(frozen=True, slots=True)
class MicroResult:
    """What one micro-batch gave on this rank."""

    sums: TokenSums
    logprobs: Tensor
    """[N] of the policy used, without gradient: the old logprobs of later updates."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a caller may ask of the engine."""

    own_pace: bool
    phase_offload: bool
    reshard_load: bool = True
    """Checkpoints load onto another rank count."""


class Fsdp2Learner:
    """Trains a Policy.

    `reference` is the frozen policy of the KL term, needed when its coefficient is above zero.
    A policy given as Outline gets its weights, after sharding, from rank 0.
    """

    def __init__(
        self,
        model: Policy | Outline,
        ranks: Ranks,
        settings: EngineSettings,
        reference: Policy | Outline | None = None,
    ) -> None:
        self.ranks, self.settings = ranks, settings
        if settings.loss.kl_coefficient > 0 and reference is None:
            raise InvariantError("a KL coefficient above 0 needs a reference policy")
        self.reference = None if reference is None else self._place(reference, frozen=True)
        self.model = self._place(model)
        self.optimizer = self._optimizer()
        self.sums: list[TokenSums] = []
        self.open = False
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
        s = self.settings
        optimizer = torch.optim.AdamW(
            params, lr=0.0, betas=s.betas, eps=s.eps, weight_decay=s.weight_decay, fused=True
        )
        for p in params:
            # As the first step would make them; made here, so that every checkpoint has them.
            optimizer.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
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

    def begin_step(self) -> None:
        """Start accumulating. Collective."""
        if self.open:
            raise InvariantError("begin_step while a step is open")
        self.open = True
        self.sums = []
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

    def accumulate(
        self, batch: PackedBatch | None, old: Tensor | None = None
    ) -> MicroResult | None:
        """Add a micro-batch's un-normalised gradient; None = a dummy of weight zero.

        `old` are the logprobs [N] of the policy before the step's first update, when this is a
        later one. Aligned mode: collective, equally often on all ranks.
        """
        if not self.open:
            raise InvariantError("accumulate outside a step")
        real = batch if batch is not None else dummy_batch(self.ranks.device)
        real = self._mine(real.to(self.ranks.device))
        loss, scores = self._loss(real, old)
        if batch is None:
            (loss.total * 0.0).backward()
            return None
        loss.total.backward()
        self.sums.append(loss.sums)
        return MicroResult(loss.sums, scores.logprobs.detach())

    def _mine(self, batch: PackedBatch) -> PackedBatch:
        sequence = self.ranks.sequence
        return batch if sequence is None else shard_batch(batch, sequence)

    def _loss(self, batch: PackedBatch, old: Tensor | None) -> tuple[LossOutput, TokenScores]:
        sampling, with_kl = self.settings.sampling, self.settings.loss.kl_coefficient > 0
        wanted: tuple[Sampling, ...] = (sampling,)
        reference = None
        if with_kl:
            full = Sampling(temperature=sampling.temperature)
            wanted = (sampling, full)
            assert self.reference is not None
            with torch.no_grad():
                reference = self.reference(batch, (full,))[0].logprobs
        self.forwarded = True
        scores = self.model(batch, wanted)
        dtype = scores[0].logprobs.dtype
        loss_input = LossInput(
            logprobs=scores[0].logprobs,
            behaviour_logprobs=batch.behaviour_logprobs.to(dtype),
            advantages=batch.advantages.to(dtype),
            weights=batch.weights.to(dtype),
            mask=torch.ones_like(batch.targets, dtype=torch.bool),
            entropy=scores[0].entropy,
            edge=scores[0].edge,
            old_logprobs=old,
            full_logprobs=scores[1].logprobs if with_kl else None,
            reference_logprobs=reference,
        )
        return grpo_loss(loss_input, self.settings.loss), scores[0]

    def finish_step(self, divisor: float, lr: float) -> StepStats:
        """Reduce, divide once by the global `divisor`, clip by the global norm, one AdamW step.

        A step without signal (no token with a non-zero advantage and no KL term) changes nothing:
        parameters, moments and counters stay bitwise as they were. Raises InvariantError, with
        everything unchanged, when the gradient is not finite. Collective.
        """
        if self.sharded and self.settings.own_pace:
            self._hold(False)
            self.accumulate(None)
        sums = self._total_sums()
        live = sums.tokens if self.settings.loss.kl_coefficient > 0 else sums.signal_tokens
        if live == 0 or divisor == 0:
            self._close()
            return StepStats(False, 0.0, sums)
        norm = self._grad_norm() / divisor
        if not norm < float("inf"):
            self.abort_step()
            raise InvariantError(f"gradient norm is {norm}: the step was not taken")
        limit = self.settings.max_grad_norm
        scale = min(1.0, limit / (norm + 1e-6)) if limit > 0 else 1.0
        torch._foreach_mul_(self._local_grads(), scale / divisor)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self._close()
        return StepStats(True, norm, sums)

    def abort_step(self) -> None:
        """Drop what was accumulated; the step can begin again. Each rank by itself."""
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
        if self.open:
            raise InvariantError("parameters are read and written between steps, not inside one")
        for unit in self._units(self.model):
            unit.reshard()

    def _total_sums(self) -> TokenSums:
        mine = merge_sums(self.sums)
        totals = self.ranks.sum([getattr(mine, name) for name in SUM_FIELDS])
        largest = self.ranks.max([mine.max_ratio])[0]
        return TokenSums(**dict(zip(SUM_FIELDS, totals, strict=True)), max_ratio=largest)

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

    @torch.no_grad()
    def logprobs(self, batch: PackedBatch) -> Tensor:
        """Logprobs [N] of the action tokens (of this rank's, with sequence parallelism), no
        gradient. Collective when sharded."""
        batch = self._mine(batch.to(self.ranks.device))
        return self.model(batch, (self.settings.sampling,))[0].logprobs

    @torch.no_grad()
    def iter_full_params(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, whole tensor) of each parameter once: a tied head does not appear.

        Collective: all ranks iterate, all get the tensor. The cast comes before the gather.
        """
        self._rest()
        for name, parameter in self.model.named_parameters():
            tensor = parameter.detach()
            if dtype is not None:
                tensor = tensor.to(dtype)
            if isinstance(tensor, DTensor):
                tensor = tensor.full_tensor()
            yield self.model.public_name(name), tensor

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Live tensors by kind and name: what a checkpoint holds, and what it loads into.

        Raises InvariantError inside a step."""
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
        """Parameters and moments to the host: engines get the GPU. No-op on CPU."""
        if self.ranks.device.type == "cuda":
            self._move(torch.device("cpu"))
            torch.cuda.empty_cache()

    def onload(self) -> None:
        """Bring them back. No-op on CPU."""
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
