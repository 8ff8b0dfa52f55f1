"""GRPO on one rank of the learner: groups in, one synchronous update out.

begin_step()                      all ranks
add_group(group, slot)            ranks with data_rank == slot % data_world, as accepted
finish(action_tokens)             all ranks -> LearnerStats
weights() / digest()              all ranks
save(dir, ...) / load(dir)        all ranks
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tbrl.config import AlgorithmConfig, ModelConfig
from tbrl.errors import ConfigError, InvariantError
from tbrl.learner.accumulate import Aggregation, PackingSettings, StepAccumulator
from tbrl.learner.checkpoint import Checkpointer, Manifest, load_state
from tbrl.learner.distributed import Ranks, join_ranks
from tbrl.learner.engine import EngineSettings, LearnerEngine, StepStats
from tbrl.learner.fsdp2 import Fsdp2Learner
from tbrl.learner.loss import LossSettings, TokenSums
from tbrl.learner.model import (
    HuggingFacePolicy,
    Policy,
    check_packing,
    load_policy,
    outline_policy,
)
from tbrl.learner.spread import Outline
from tbrl.learner.support import check_trainable
from tbrl.learner.zero3 import Zero3Learner
from tbrl.types import EpisodeGroup, JsonObject, Sampling

ENGINES: dict[str, type[Fsdp2Learner] | type[Zero3Learner]] = {
    "fsdp2": Fsdp2Learner,
    "zero3": Zero3Learner,
}
"""By the value of topology.learner_engine."""

_PACKING_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
"""Nats by which packed and unpacked logprobs may differ at start-up."""


@dataclass(frozen=True, slots=True)
class LearnerStats:
    """One step, the same on all ranks except `seconds`."""

    no_op: bool
    """No signal: nothing was changed, the policy version must not move."""
    loss: float
    """Normalised loss at the first update."""
    grad_norm: float
    """Before clipping, at the last update."""
    action_tokens: int
    divisor: float
    entropy: float
    """Mean over action tokens, nats, on the sampler's support."""
    mismatch_kl: float
    """Mean k3 estimate of KL(sampler || learner before the step), nats a token."""
    max_ratio: float
    """Largest exp(|learner - sampler|) of a token."""
    clip_share: float
    """Share of tokens on the clipped branch, last update (0 with one update a step)."""
    cap_share: float
    """Share of tokens whose importance weight was truncated."""
    edge_tokens: int
    """Sampled tokens outside the learner's own support."""
    reference_kl: float
    updates: int
    """Optimizer updates taken in all, this step's included."""
    micro_batches: int
    """Of this rank."""
    digest_before: str
    digest_after: str
    seconds: dict[str, float]
    """accumulate (model time while groups stream), finish, digest."""


class GrpoLearner:
    """Owns the policy's float32 master weights and its optimizer on one rank."""

    def __init__(
        self,
        algorithm: AlgorithmConfig,
        model: ModelConfig,
        sampling: Sampling,
        ranks: Ranks = Ranks(),
        policy: Policy | None = None,
        own_pace: bool = True,
        engine: str = "fsdp2",
        offload: bool = False,
    ) -> None:
        """`policy` replaces the module loaded from `model.path` (tests, benchmarks). `engine`,
        `offload`: topology.learner_engine and .learner_offload."""
        check_trainable(sampling)
        if ranks.mesh is None and (model.learner_dtype != "float32" or engine == "zero3"):
            # Mixed precision lives in the sharding, and ZeRO-3 is nothing else: a group of one.
            ranks = join_ranks(0, 1, device=ranks.device.type, always_group=True)
        self.algorithm, self.ranks, self.sampling = algorithm, ranks, sampling
        self.engine: LearnerEngine = ENGINES[engine](
            policy or self._load(model),
            ranks,
            engine_settings(algorithm, model, sampling, own_pace, offload),
            self._load(model) if algorithm.kl_coefficient > 0 else None,
        )
        placed = self.engine.model
        if policy is None and isinstance(placed, HuggingFacePolicy):
            vocabulary, limit = placed.causal_lm.config.vocab_size, _PACKING_TOLERANCE
            check_packing(self.engine.score, vocabulary, ranks.device, limit[model.learner_dtype])
        self.updates = 0
        self.accumulator: StepAccumulator | None = None
        self.accumulate_s = 0.0
        self.known_digest = ""
        self.checkpointer: Checkpointer | None = None

    def _load(self, model: ModelConfig) -> Policy | Outline:
        """Several ranks: rank 0 alone reads the weights, before the engine shards the policy."""
        if model.attention != "auto":
            raise ConfigError(f"model.attention={model.attention}: only `auto` is known")
        keys = (model.path, self.algorithm.head_chunk, self.algorithm.gradient_checkpointing)
        if self.ranks.world == 1:
            return load_policy(*keys)
        return Outline(outline_policy(*keys), load_policy(*keys) if self.ranks.rank == 0 else None)

    # ------------------------------------------------------------ a step

    def begin_step(self) -> None:
        """Open a step. Collective; with one rank, add_group and finish do it by themselves."""
        if not self.known_digest:
            self.digest()
        self.accumulator = self._new_accumulator()
        self.engine.begin_step()

    def _new_accumulator(self) -> StepAccumulator:
        a = self.algorithm
        settings = PackingSettings(
            Aggregation(a.aggregation, a.constant_length), a.advantage_std, a.micro_batch_tokens
        )
        self.accumulate_s = 0.0
        return StepAccumulator(self.engine, settings, a.accumulation, a.updates_per_step > 1)

    def add_group(self, group: EpisodeGroup, slot: int) -> None:
        """Accumulate an accepted group on its own rank; no communication (except when aligned:
        then it only queues)."""
        if self.accumulator is None:
            if self.ranks.world == 1:
                self.begin_step()
            else:
                raise InvariantError("add_group before begin_step")
        assert self.accumulator is not None
        started = time.perf_counter()
        self.accumulator.add(group, slot)
        self.accumulate_s += time.perf_counter() - started

    def finish(
        self, action_tokens: int | None = None, learning_rate: float | None = None
    ) -> LearnerStats:
        """Close the step: the only division, clipping, the update(s). Collective.

        `action_tokens` is the caller's own count of the step's action tokens over all ranks;
        raises InvariantError, before anything changes, when the learner's differs.
        """
        if self.accumulator is None:
            self.begin_step()
        accumulator, self.accumulator = self.accumulator, None
        assert accumulator is not None
        lr = self.algorithm.learning_rate if learning_rate is None else learning_rate
        before = self.known_digest
        started = time.perf_counter()
        divisor = accumulator.finish()
        tokens = int(self.ranks.sum([accumulator.action_tokens])[0])
        if action_tokens is not None and action_tokens != tokens:
            self.engine.abort_step()
            raise InvariantError(f"learner counted {tokens} action tokens, caller {action_tokens}")
        micro_batches = len(self.engine.sums)
        first = last = self.engine.finish_step(divisor, lr)
        self.updates += first.stepped
        for _ in range(self.algorithm.updates_per_step - 1 if first.stepped else 0):
            self.engine.begin_step()
            accumulator.repeat()
            last = self.engine.finish_step(divisor, lr)
            self.updates += last.stepped
        finished = time.perf_counter()
        after = self.digest() if first.stepped else before
        seconds = {
            "accumulate": self.accumulate_s,
            "finish": finished - started,
            "digest": time.perf_counter() - finished,
        }
        return self._stats(first, last, divisor, tokens, micro_batches, before, after, seconds)

    def _stats(
        self,
        first: StepStats,
        last: StepStats,
        divisor: float,
        tokens: int,
        micro_batches: int,
        before: str,
        after: str,
        seconds: dict[str, float],
    ) -> LearnerStats:
        sums: TokenSums = first.sums
        count = max(sums.tokens, 1.0)
        return LearnerStats(
            no_op=not first.stepped,
            loss=sums.loss / divisor if divisor else 0.0,
            grad_norm=last.grad_norm,
            action_tokens=tokens,
            divisor=divisor,
            entropy=sums.entropy / count,
            mismatch_kl=sums.mismatch_kl / count,
            max_ratio=sums.max_ratio,
            clip_share=last.sums.clipped / count,
            cap_share=sums.capped / count,
            edge_tokens=int(sums.edge),
            reference_kl=last.sums.reference_kl / count,
            updates=self.updates,
            micro_batches=micro_batches,
            digest_before=before,
            digest_after=after,
            seconds=seconds,
        )

    # ------------------------------------------------------------ reading

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, whole tensor), each once; no tied head. Collective."""
        return self.engine.iter_full_params(dtype)

    def digest(self) -> str:
        """Of the float32 master weights (digest.py). Collective; equal on all ranks."""
        self.known_digest = self.engine.digest()
        return self.known_digest

    def offload(self) -> None:
        """Leave the GPU to the engines. No-op on CPU."""
        self.engine.offload()

    def onload(self) -> None:
        """Come back. No-op on CPU."""
        self.engine.onload()

    # ------------------------------------------------------------ checkpoints

    def save(
        self,
        root: str | Path,
        step: int,
        extra: JsonObject | None = None,
        keep: int = 2,
        asynchronous: bool = False,
    ) -> Future[Path]:
        """Write `<root>/step-<step>` (see checkpoint.py). Collective."""
        if self.engine.open:
            raise InvariantError("save inside a step")
        if self.checkpointer is None or self.checkpointer.root != Path(root):
            self.checkpointer = Checkpointer(root, self.ranks, keep, asynchronous)
        body = {"learner": {"updates": self.updates}, "caller": extra or {}}
        return self.checkpointer.save(step, self.engine.state(), body, self.engine.flat_shapes())

    def wait_saved(self) -> None:
        """Until an asynchronous save is complete; raises what it raised."""
        if self.checkpointer is not None:
            self.checkpointer.wait()

    def load(self, folder: str | Path) -> JsonObject:
        """Restore weights, moments and counters from one checkpoint; returns the caller's extra.
        Collective; any rank count, the same engine."""
        flat = self.engine.flat_shapes()
        manifest: Manifest = load_state(folder, self.engine.state(), self.ranks, flat)
        self.engine.state_loaded()
        self.updates = manifest.extra["learner"]["updates"]
        self.known_digest = ""
        return manifest.extra["caller"]


def engine_settings(
    a: AlgorithmConfig,
    model: ModelConfig,
    sampling: Sampling,
    own_pace: bool,
    offload: bool = False,
) -> EngineSettings:
    """What the configuration means for the engine. Raises ConfigError for an unknown dtype."""
    if model.learner_dtype not in _PACKING_TOLERANCE:
        raise ConfigError(
            f"model.learner_dtype={model.learner_dtype}: use one of {sorted(_PACKING_TOLERANCE)}"
        )
    return EngineSettings(
        sampling=sampling,
        loss=LossSettings(a.clip_low, a.clip_high, a.importance_cap, a.kl_coefficient),
        betas=tuple(a.adam_betas),  # type: ignore[arg-type]
        eps=a.adam_eps,
        weight_decay=a.weight_decay,
        max_grad_norm=a.max_grad_norm,
        compute_dtype=model.learner_dtype,
        own_pace=own_pace,
        offload=offload,
    )
