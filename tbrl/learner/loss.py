"""The GRPO objective as un-normalised token sums.

Per action token, with A the advantage, w the aggregation weight, and the logprobs of the learner
now (new), of the learner before the step's first update (old) and of the sampler (behaviour):

    ratio      = exp(new - old)                                  clipped, PPO arXiv 1707.06347 eq. 7
    importance = min(exp(old - behaviour), cap), no gradient     truncated importance sampling
    loss       = -w * importance * min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)
               + w * kl_coefficient * (exp(ref - new) - (ref - new) - 1)   k3, DeepSeekMath eq. 4

With one update a step old is new without its gradient: the ratio is 1 and its gradient is that of
the logprob. Nothing here divides by a count: the step divides once, by the divisor of all its
groups on all ranks, so the result does not depend on micro-batches, ranks or order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

_LOG_RATIO_LIMIT = 20.0
"""exp() of more overflows long before the ratio means anything; beyond it the ratio is constant."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The objective's constants."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    importance_cap: float = 2.0
    """0 turns the importance weight off."""
    kl_coefficient: float = 0.0


@dataclass(frozen=True, slots=True)
class LossInput:
    """Action tokens of a micro-batch. All tensors are [N]."""

    logprobs: Tensor
    """Learner now; carries the gradient."""
    behaviour_logprobs: Tensor
    """Sampler, on the same support."""
    advantages: Tensor
    weights: Tensor
    """Aggregation weights (1 for token-mean)."""
    mask: Tensor
    """bool: False drops the position, whatever it holds (NaN and infinities included)."""
    entropy: Tensor
    edge: Tensor
    """bool: token outside the learner's own support."""
    old_logprobs: Tensor | None = None
    """Learner before the first update; None = `logprobs` without gradient."""
    full_logprobs: Tensor | None = None
    """Learner now on the full vocabulary, for the KL term."""
    reference_logprobs: Tensor | None = None
    """Reference policy on the full vocabulary, for the KL term."""


@dataclass(frozen=True, slots=True)
class TokenSums:
    """Sums over action tokens, as numbers; they add up over micro-batches and ranks."""

    tokens: float = 0.0
    loss: float = 0.0
    entropy: float = 0.0
    mismatch_kl: float = 0.0
    """Sum of exp(d) - d - 1 with d = old - behaviour: k3 estimate of KL(sampler || learner)."""
    reference_kl: float = 0.0
    clipped: float = 0.0
    """Tokens whose clipped branch is the smaller one: no gradient from them."""
    capped: float = 0.0
    """Tokens whose importance weight was truncated."""
    edge: float = 0.0
    empty_batches: float = 0.0
    """Micro-batches without an action token."""
    signal_tokens: float = 0.0
    """Tokens with a non-zero advantage and weight."""
    max_ratio: float = 0.0
    """Largest of exp(|old - behaviour|): a maximum, not a sum."""

    def __add__(self, other: TokenSums) -> TokenSums:
        return merge_sums([self, other])


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The differentiable sum of a micro-batch and its metrics."""

    total: Tensor
    """Scalar: un-normalised sum of token losses."""
    sums: TokenSums


SUM_FIELDS = tuple(name for name in TokenSums.__dataclass_fields__ if name != "max_ratio")


def merge_sums(parts: Iterable[TokenSums]) -> TokenSums:
    """Total of several TokenSums."""
    parts = list(parts)
    totals = {name: sum(getattr(part, name) for part in parts) for name in SUM_FIELDS}
    return TokenSums(**totals, max_ratio=max((part.max_ratio for part in parts), default=0.0))


def grpo_loss(batch: LossInput, settings: LossSettings) -> LossOutput:
    """Un-normalised GRPO loss of N tokens; formulas in the module docstring.

    Masked positions are replaced before anything is exponentiated, so they give exact zeros in
    value and gradient. An empty mask gives a zero that is still connected to the graph.
    """
    mask = batch.mask

    def select(values: Tensor) -> Tensor:
        return torch.where(mask, values, 0.0)

    new = select(batch.logprobs)
    old = new.detach() if batch.old_logprobs is None else select(batch.old_logprobs)
    gap = old - select(batch.behaviour_logprobs)
    advantages, weights = select(batch.advantages), select(batch.weights)

    ratio = (new - old).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).exp()
    plain = ratio * advantages
    limited = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high) * advantages
    surrogate = torch.minimum(plain, limited)
    cap = settings.importance_cap
    importance = gap.clamp(max=_LOG_RATIO_LIMIT).exp()
    if cap > 0:
        surrogate = surrogate * importance.clamp(max=cap)
    losses = -weights * surrogate
    divergence = torch.zeros_like(new)
    if settings.kl_coefficient > 0:
        divergence = _reference_divergence(batch, select)
        losses = losses + weights * settings.kl_coefficient * divergence
    total = losses.sum()

    with torch.no_grad():
        # float64: the term is quadratic in a gap that is often below 1e-4.
        wide = gap.double().clamp(max=_LOG_RATIO_LIMIT)
        mismatch = torch.expm1(wide) - wide
        columns = {
            "tokens": mask,
            "loss": losses,
            "entropy": select(batch.entropy),
            "mismatch_kl": mismatch,
            "reference_kl": divergence,
            "clipped": mask & (limited < plain),
            "capped": mask & (importance > cap) if cap > 0 else torch.zeros_like(mask),
            "edge": mask & batch.edge,
            "signal_tokens": (advantages * weights) != 0,
        }
        stacked = torch.stack([column.double().sum() for column in columns.values()]).tolist()
        largest = float(gap.abs().clamp(max=_LOG_RATIO_LIMIT).exp().max()) if len(gap) else 0.0
        sums = dict(zip(columns, stacked, strict=True))
        empty = 1.0 if sums["tokens"] == 0 else 0.0
    return LossOutput(
        total,
        TokenSums(**sums, empty_batches=empty, max_ratio=0.0 if empty else largest),
    )


def _reference_divergence(batch: LossInput, select) -> Tensor:  # type: ignore[no-untyped-def]
    """k3 estimate per token of KL(learner || reference) on the full vocabulary."""
    if batch.full_logprobs is None or batch.reference_logprobs is None:
        raise ValueError("kl_coefficient > 0 needs full_logprobs and reference_logprobs")
    gap = select(batch.reference_logprobs) - select(batch.full_logprobs)
    gap = gap.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    return gap.exp() - gap - 1.0
