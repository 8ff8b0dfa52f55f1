"""Sequence parallelism: the tokens of one micro-batch spread over several ranks.

Each rank of a sequence group holds T / n tokens. Everything but attention is per token; around
attention an all-to-all trades tokens for heads, so that each rank attends over all T tokens with
1 / n of the heads, and trades back (DeepSpeed Ulysses, arXiv 2309.14509). Action tokens are scored
where the token that predicts them lies. Losses and gradients are sums, so sharded parameters need
nothing else: they add up over all ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tbrl.errors import ConfigError
from tbrl.learner.distributed import SequenceShards
from tbrl.learner.packing import PackedBatch, Span


def shard_batch(batch: PackedBatch, shards: SequenceShards) -> PackedBatch:
    """This rank's part of a whole micro-batch.

    Tokens are padded to a multiple of the group size (a last span that nobody scores); spans stay
    those of the whole; N shrinks to the action tokens predicted from here.
    """
    missing = -batch.tokens % shards.size
    part = (batch.tokens + missing) // shards.size
    first, last = shards.rank * part, (shards.rank + 1) * part
    pad = torch.arange(missing, device=batch.input_ids.device)
    spans = (*batch.spans, Span(batch.tokens, missing)) if missing else batch.spans
    here = (batch.rows >= first) & (batch.rows < last)
    return replace(
        batch,
        input_ids=torch.cat([batch.input_ids, pad * 0])[first:last],
        position_ids=torch.cat([batch.position_ids, pad])[first:last],
        spans=spans,
        rows=batch.rows[here] - first,
        targets=batch.targets[here],
        behaviour_logprobs=batch.behaviour_logprobs[here],
        advantages=batch.advantages[here],
        weights=batch.weights[here],
        sequence=shards,
    )


class _AllToAll(torch.autograd.Function):
    """Chunk i of dimension 0 goes to rank i; its own inverse."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        output = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        dist.all_to_all_single(output, tensor.contiguous(), group=group)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _AllToAll.apply(grad, ctx.group), None


def tokens_to_heads(tensor: Tensor, shards: SequenceShards) -> Tensor:
    """[1, heads, T / n, d] -> [1, heads / n, T, d]."""
    _, heads, tokens, width = tensor.shape
    n = shards.size
    parts = _AllToAll.apply(tensor[0].reshape(n, heads // n, tokens, width), shards.group)
    return parts.transpose(0, 1).reshape(1, heads // n, n * tokens, width)


def heads_to_tokens(tensor: Tensor, shards: SequenceShards) -> Tensor:
    """[1, T, heads / n, d] -> [1, T / n, heads, d]."""
    _, tokens, heads, width = tensor.shape
    n = shards.size
    parts = _AllToAll.apply(tensor[0].reshape(n, tokens // n, heads, width), shards.group)
    return parts.transpose(0, 1).reshape(1, tokens // n, n * heads, width)


def spread_heads(
    query: Tensor, key: Tensor, value: Tensor, shards: SequenceShards
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of all tokens for this rank's heads.

    Key-value heads that do not divide by the group size are repeated to the query heads first.
    Raises ConfigError when the query heads do not divide.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads % shards.size:
        raise ConfigError(
            f"topology.sequence_parallel={shards.size}: must divide the model's {heads} heads"
        )
    if kv_heads % shards.size:
        key, value = (t.repeat_interleave(heads // kv_heads, 1) for t in (key, value))
    query, key, value = (tokens_to_heads(t, shards) for t in (query, key, value))
    return query, key, value
