"""Logprob of given next tokens from hidden states, without the [T, V] matrix of logits.

Rows go through the output head a chunk at a time. With top-k sampling only the support (about k
tokens a row) has probability, so its ids and probabilities are all that the backward pass needs:
it touches k rows of the head instead of V and recomputes nothing. Without top-k the chunk's
logits are computed again in the backward pass.
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


class _TokenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, sampling: Sampling, chunk: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = hidden.shape[0]
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs = hidden.new_empty(rows, dtype=dtype)
        entropy = hidden.new_empty(rows, dtype=dtype)
        edge = torch.zeros(rows, dtype=torch.bool, device=hidden.device)
        kept: list[tuple[Tensor, Tensor] | None] = []
        top_k = sampling.top_k if sampling.top_k < weight.shape[0] else 0
        for start in range(0, rows, chunk):
            part = slice(start, min(start + chunk, rows))
            logits = _logits(hidden[part], weight, sampling.temperature)
            found = find_candidates(logits, targets[part], top_k, sampling.top_p) if top_k else None
            if found is None:
                edge[part] = restrict_(logits, targets[part], top_k, sampling.top_p)
                chosen = logits.gather(1, targets[part, None])[:, 0]
                kept.append(None)
            else:
                edge[part] = found.edge
                chosen = logits.gather(1, targets[part, None])[:, 0]
                logits = found.logits
            total = logits.logsumexp(dim=1)
            logprobs[part] = chosen - total
            probabilities = logits.sub_(total[:, None]).exp()
            # 0 * -inf is NaN: tokens outside the support are selected away first.
            inside = torch.where(probabilities > 0, logits, 0.0)
            entropy[part] = -(probabilities * inside).sum(dim=1)
            if found is not None:
                kept.append((found.ids, probabilities))
        ctx.save_for_backward(hidden, weight, targets)
        ctx.sampling, ctx.chunk, ctx.kept, ctx.top_k = sampling, chunk, kept, top_k
        ctx.mark_non_differentiable(entropy, edge)
        return logprobs, entropy, edge

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, targets = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        scaled = grad / ctx.sampling.temperature
        for index, start in enumerate(range(0, hidden.shape[0], ctx.chunk)):
            part = slice(start, min(start + ctx.chunk, hidden.shape[0]))
            kept = ctx.kept[index]
            if kept is not None and weight.shape[0] >= _DENSE_VOCABULARY:
                ids, slopes = kept[0], _sparse_slopes(kept[1], scaled[part])
                grad_hidden[part] = _gather_rows(weight, ids, slopes)
                if grad_weight is not None:
                    _scatter_rows(grad_weight, ids, slopes, hidden[part])
                continue
            if kept is None:
                slope = _dense_slopes(ctx, hidden[part], weight, targets[part], scaled[part])
            else:
                slope = scaled.new_zeros(kept[0].shape[0], weight.shape[0])
                slope.scatter_add_(1, kept[0], _sparse_slopes(kept[1], scaled[part]))
            slope = slope.to(hidden.dtype)
            grad_hidden[part] = slope @ weight
            if grad_weight is not None:
                grad_weight.addmm_(slope.T, hidden[part])
        return grad_hidden, grad_weight, None, None, None


def _sparse_slopes(probabilities: Tensor, grad: Tensor) -> Tensor:
    """d loss / d logit on the candidates [n, m + 1]: grad * (1[sampled] - p)."""
    slopes = probabilities * -grad[:, None]
    slopes[:, -1] += grad
    return slopes


def _dense_slopes(
    ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, grad: Tensor
) -> Tensor:
    """d loss / d logit [n, V], from logits computed again."""
    logits = _logits(hidden, weight, ctx.sampling.temperature)
    restrict_(logits, targets, ctx.top_k, ctx.sampling.top_p)
    slope = logits.softmax(dim=1).mul_(-grad[:, None])
    slope.scatter_add_(1, targets[:, None], grad[:, None])
    return slope


def _gather_rows(weight: Tensor, ids: Tensor, slopes: Tensor) -> Tensor:
    """sum_j slopes[n, j] * weight[ids[n, j]] -> [n, H]."""
    return F.embedding_bag(ids, weight, per_sample_weights=slopes.to(weight.dtype), mode="sum")


def _scatter_rows(grad_weight: Tensor, ids: Tensor, slopes: Tensor, hidden: Tensor) -> None:
    """grad_weight[ids[n, j]] += slopes[n, j] * hidden[n], a few rows at a time."""
    for start in range(0, ids.shape[0], 64):
        part = slice(start, start + 64)
        rows = slopes[part, :, None].to(hidden.dtype) * hidden[part, None, :]
        grad_weight.index_add_(0, ids[part].reshape(-1), rows.reshape(-1, hidden.shape[1]))
