"""Logprob of given next tokens from hidden states, without the [T, V] matrix of logits.

Rows go through the output head a chunk at a time. With top-k sampling only the support (about k
tokens a row) has probability, so its ids and probabilities are all that the backward pass needs:
it touches k rows of the head instead of V and recomputes nothing. Without top-k the logits of all
chunks but the last are computed again in the backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tbrl.learner.support import find_candidates, restrict_
from tbrl.types import Sampling

_DENSE_VOCABULARY = 4096
"""Below it a scattered dense matmul beats gathering rows of the head."""


class TokenScores(NamedTuple):
    """Of N scored tokens; a tuple, so that module hooks find the tensors in it."""

    logprobs: Tensor
    """float [N], differentiable."""
    entropy: Tensor
    """float [N]: entropy in nats of the distribution on the support; no gradient."""
    edge: Tensor
    """bool [N]: the token lay outside the learner's own support and was forced in."""


def score_tokens(
    hidden: Tensor, weight: Tensor, targets: Tensor, sampling: Sampling, chunk: int
) -> TokenScores:
    """Logprob of `targets` under softmax(hidden @ weight.T / T) on the sampling's support.

    Args: hidden [N, H], weight [V, H], targets int64 [N]; chunk = rows at a time.
    Logits, logprobs and entropy are float32 (float64 for float64 inputs).
    """
    return TokenScores(*_TokenHead.apply(hidden, weight, targets, sampling, chunk))


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    if hidden.dtype in (torch.float32, torch.float64):
        logits = hidden @ weight.T
    elif hidden.is_cuda:
        logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)
    else:
        logits = (hidden @ weight.T).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


class _Kept(NamedTuple):
    """What a chunk of n rows leaves for the backward pass."""

    ids: Tensor | None = None
    """int64 [n, m + 1]: candidates; None = the whole vocabulary."""
    probabilities: Tensor | None = None
    """[n, m + 1] or [n, V]; None = to be computed again."""


class _TokenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, sampling: Sampling, chunk: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = hidden.shape[0]
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs = hidden.new_empty(rows, dtype=dtype)
        totals, entropy = torch.empty_like(logprobs), torch.empty_like(logprobs)
        edge = torch.zeros(rows, dtype=torch.bool, device=hidden.device)
        top_k = sampling.top_k if sampling.top_k < weight.shape[0] else 0
        kept: list[_Kept] = []
        for start in range(0, rows, chunk):
            part = slice(start, min(start + chunk, rows))
            if kept and kept[-1].ids is None:
                # Only the last chunk's [n, V] stays: the backward pass begins right after.
                kept[-1] = _Kept()
            logits = _logits(hidden[part], weight, sampling.temperature)
            found = find_candidates(logits, targets[part], top_k, sampling.top_p) if top_k else None
            if found is None:
                edge[part] = restrict_(logits, targets[part], top_k, sampling.top_p)
            else:
                edge[part] = found.edge
            chosen = logits.gather(1, targets[part, None])[:, 0]
            probabilities, totals[part], entropy[part] = _distribution(
                logits if found is None else found.logits
            )
            logprobs[part] = chosen - totals[part]
            kept.append(_Kept(None if found is None else found.ids, probabilities))
        ctx.save_for_backward(hidden, weight, targets, totals)
        ctx.sampling, ctx.chunk, ctx.kept, ctx.top_k = sampling, chunk, kept, top_k
        ctx.mark_non_differentiable(entropy, edge)
        return logprobs, entropy, edge

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, targets, totals = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            # Many chunks add up in it: 16 bits would round away the later ones.
            wide = torch.promote_types(weight.dtype, torch.float32)
            grad_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device)
        scaled = grad / ctx.sampling.temperature
        for index, start in enumerate(range(0, hidden.shape[0], ctx.chunk)):
            part = slice(start, min(start + ctx.chunk, hidden.shape[0]))
            ids, probabilities = ctx.kept[index]
            if ids is not None and weight.shape[0] >= _DENSE_VOCABULARY:
                slopes = _slopes(probabilities, scaled[part])
                grad_hidden[part] = _gather_rows(weight, ids, slopes)
                if grad_weight is not None:
                    _scatter_rows(grad_weight, ids, slopes, hidden[part])
                continue
            if ids is not None:
                slopes = scaled.new_zeros(ids.shape[0], weight.shape[0])
                slopes.scatter_add_(1, ids, _slopes(probabilities, scaled[part]))
            else:
                # `probabilities` is used up: a second backward pass computes it again.
                ctx.kept[index] = _Kept()
                if probabilities is None:
                    logits = _logits(hidden[part], weight, ctx.sampling.temperature)
                    restrict_(logits, targets[part], ctx.top_k, ctx.sampling.top_p)
                    probabilities = logits.sub_(totals[part, None]).exp_()
                slopes = probabilities.mul_(-scaled[part, None])
                slopes.scatter_add_(1, targets[part, None], scaled[part, None])
            slopes = slopes.to(hidden.dtype)
            grad_hidden[part] = slopes @ weight
            if grad_weight is not None:
                _add_product(grad_weight, slopes.T, hidden[part])
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, whose dtype may be narrower."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def _distribution(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities [n, m], logsumexp [n] and entropy [n] of logits [n, m], which are used up."""
    probabilities = logits.softmax(dim=1)
    # The likeliest token has at least 1 / m, so its log is exact enough, and reading two maxima
    # is cheaper than a second sum of exponentials.
    total = logits.amax(dim=1) - probabilities.amax(dim=1).log()
    # 0 * -inf is NaN: tokens outside the support become large instead of infinite.
    expected = logits.clamp_(min=torch.finfo(logits.dtype).min).mul_(probabilities).sum(dim=1)
    return probabilities, total, total - expected


def _slopes(probabilities: Tensor, grad: Tensor) -> Tensor:
    """d loss / d logit on the candidates [n, m + 1]: grad * (1[sampled] - p)."""
    slopes = probabilities * -grad[:, None]
    slopes[:, -1] += grad
    return slopes


def _gather_rows(weight: Tensor, ids: Tensor, slopes: Tensor) -> Tensor:
    """sum_j slopes[n, j] * weight[ids[n, j]] -> [n, H]."""
    return F.embedding_bag(ids, weight, per_sample_weights=slopes.to(weight.dtype), mode="sum")


def _scatter_rows(grad_weight: Tensor, ids: Tensor, slopes: Tensor, hidden: Tensor) -> None:
    """grad_weight[ids[n, j]] += slopes[n, j] * hidden[n], a few rows at a time."""
    for start in range(0, ids.shape[0], 64):
        part = slice(start, start + 64)
        rows = slopes[part, :, None].to(grad_weight.dtype) * hidden[part, None, :]
        grad_weight.index_add_(0, ids[part].reshape(-1), rows.reshape(-1, hidden.shape[1]))
