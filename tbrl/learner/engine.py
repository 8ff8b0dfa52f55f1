"""What a learner engine is: one step of un-normalised accumulation, one division, one AdamW.

    begin_step -> accumulate* -> finish_step | abort_step

The contract is the same for every engine: float32 master weights and moments; the gradient of a
step is a plain sum over micro-batches and ranks, divided once by the step's global divisor, clipped
by its global norm; a step without signal changes nothing. Engines differ in where parameters live
and in how ranks keep pace (`Capabilities.own_pace`):

- own pace: accumulate does not communicate; ranks may call it unequally often, at any time.
- aligned: accumulate is collective; ranks call it equally often, with None where they have none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tbrl.errors import InvariantError
from tbrl.learner.digest import digest_parameters
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
from tbrl.learner.spread import Outline
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
    """FSDP2: accumulate without communication (needs whole parameters and gradients per rank)."""
    offload: bool = False
    """ZeRO-3: parameters, gradients and moments stay in host memory."""


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
    """`offload` frees the GPU for the engines that share it."""
    reshard_load: bool = True
    """Checkpoints load onto another rank count."""


class LearnerEngine(ABC):
    """The step, written once; subclasses own parameters, gradients and moments."""

    model: Policy

    def __init__(
        self, ranks: Ranks, settings: EngineSettings, reference: Policy | Outline | None
    ) -> None:
        """`reference`: the frozen policy of the KL term, needed when its coefficient is above 0."""
        if settings.loss.kl_coefficient > 0 and reference is None:
            raise InvariantError("a KL coefficient above 0 needs a reference policy")
        self.ranks, self.settings = ranks, settings
        self.sums: list[TokenSums] = []
        self.open = False

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    # ------------------------------------------------------------ one step

    def begin_step(self) -> None:
        """Start accumulating. Collective."""
        if self.open:
            raise InvariantError("begin_step while a step is open")
        self.open = True
        self.sums = []
        self._begin()

    def accumulate(
        self, batch: PackedBatch | None, old: Tensor | None = None
    ) -> MicroResult | None:
        """Add a micro-batch's un-normalised gradient; None = a dummy of weight zero.

        `old` are the logprobs [N] of the policy before the step's first update, when this is a
        later one. Aligned: collective, equally often on all ranks.
        """
        if not self.open:
            raise InvariantError("accumulate outside a step")
        real = batch if batch is not None else dummy_batch(self.ranks.device)
        real = self._mine(real.to(self.ranks.device))
        loss, scores = self._loss(real, old)
        if batch is None:
            self._backward(loss.total * 0.0)
            return None
        self._backward(loss.total)
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
            with torch.no_grad():
                reference = self._reference_score(batch, (full,))[0].logprobs
        scores = self.score(batch, wanted)
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
        self._reduce()
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
        self._update(scale / divisor, lr)
        self._close()
        return StepStats(True, norm, sums)

    @abstractmethod
    def abort_step(self) -> None:
        """Drop what was accumulated; the step can begin again. Each rank by itself."""

    def _total_sums(self) -> TokenSums:
        mine = merge_sums(self.sums)
        totals = self.ranks.sum([getattr(mine, name) for name in SUM_FIELDS])
        largest = self.ranks.max([mine.max_ratio])[0]
        return TokenSums(**dict(zip(SUM_FIELDS, totals, strict=True)), max_ratio=largest)

    @abstractmethod
    def _begin(self) -> None:
        """Ready for the first micro-batch."""

    @abstractmethod
    def _reference_score(
        self, batch: PackedBatch, samplings: tuple[Sampling, ...]
    ) -> tuple[TokenScores, ...]: ...

    @abstractmethod
    def _backward(self, loss: Tensor) -> None:
        """Add the loss's gradient to what is accumulated."""

    @abstractmethod
    def _reduce(self) -> None:
        """After it the gradient is the sum over ranks. Collective."""

    @abstractmethod
    def _grad_norm(self) -> float:
        """Global norm of the summed gradient; not finite when any part is not. Collective."""

    @abstractmethod
    def _update(self, factor: float, lr: float) -> None:
        """One AdamW step on the summed gradient times `factor`. Collective."""

    @abstractmethod
    def _close(self) -> None:
        """Drop gradients and gathered parameters; no step is open any more."""

    # ------------------------------------------------------------ reading

    @abstractmethod
    def score(self, batch: PackedBatch, samplings: tuple[Sampling, ...]) -> tuple[TokenScores, ...]:
        """The policy's scores of this rank's batch. Collective when sharded."""

    @torch.no_grad()
    def logprobs(self, batch: PackedBatch) -> Tensor:
        """Logprobs [N] of the action tokens (of this rank's, with sequence parallelism), no
        gradient. Collective when sharded."""
        batch = self._mine(batch.to(self.ranks.device))
        return self.score(batch, (self.settings.sampling,))[0].logprobs

    def iter_full_params(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, whole tensor) of each parameter once: a tied head does not appear.

        Collective: all ranks iterate, all get the tensor. The cast comes before the gather.
        """
        self._rest()
        yield from self._full_params(dtype)

    @abstractmethod
    def _full_params(self, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]: ...

    def _rest(self) -> None:
        """Before parameters are read or written as a whole. Raises InvariantError inside a step."""
        if self.open:
            raise InvariantError("parameters are read and written between steps, not inside one")

    @abstractmethod
    def state(self) -> dict[str, dict[str, Tensor]]:
        """Live tensors by kind (model, exp_avg, exp_avg_sq, step) and name: what a checkpoint
        holds, and what it loads into. Raises InvariantError inside a step."""

    def flat_shapes(self) -> dict[str, tuple[int, ...]]:
        """True shapes of the parameters that `state` holds flattened; empty when none is."""
        return {}

    def state_loaded(self) -> None:
        """New values were written into `state()`: what derives from them follows. Collective."""
        return None

    def digest(self) -> str:
        """Of the float32 master weights (digest.py). Collective; equal on all ranks."""
        return digest_parameters(self.state()["model"].items(), self.ranks, self.flat_shapes())

    # ------------------------------------------------------------ phases

    @abstractmethod
    def offload(self) -> None:
        """Leave the GPU to the engines. No-op on CPU."""

    @abstractmethod
    def onload(self) -> None:
        """Come back. No-op on CPU."""


def adamw(parameters: Iterable[Tensor], settings: EngineSettings) -> torch.optim.AdamW:
    """The optimizer of every engine; each step sets its learning rate."""
    s = settings
    return torch.optim.AdamW(
        parameters, lr=0.0, betas=s.betas, eps=s.eps, weight_decay=s.weight_decay, fused=True
    )


def make_moments(optimizer: torch.optim.Optimizer, masters: Iterable[Tensor]) -> None:
    """As the first step would make them; made before it, so that every checkpoint has them."""
    for master in masters:
        optimizer.state[master] = {
            "step": torch.zeros((), dtype=torch.float32, device=master.device),
            "exp_avg": torch.zeros_like(master),
            "exp_avg_sq": torch.zeros_like(master),
        }
