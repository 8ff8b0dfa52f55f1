"""Attention of packed micro-batches: one interface, registered with transformers under one name.

CPU: scaled_dot_product_attention looped over the spans (a dense block mask costs O(T^2), and
about three times the time). CUDA: variable-length flash attention in one call; keys of a shared
prefix are gathered in front of each span's own, and the causal window is aligned to the end.
Masks that transformers would build are switched off: the spans say everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tbrl.errors import ConfigError
from tbrl.learner.distributed import SequenceShards
from tbrl.learner.packing import Span
from tbrl.learner.sequence import heads_to_tokens, spread_heads

ATTENTION_NAME = "tbrl_packed"


@dataclass(frozen=True, slots=True)
class VarlenPlan:
    """The spans as one variable-length call."""

    offsets_q: Tensor
    offsets_k: Tensor
    """int32 [spans + 1]: cumulative lengths of queries and keys."""
    longest_q: int
    longest_k: int
    key_rows: Tensor | None
    """int64: rows of the keys in order; None when no span has a prefix."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The spans of a micro-batch, prepared once for all layers."""

    spans: tuple[Span, ...]
    masks: tuple[Tensor | None, ...] = ()
    """CPU, per span: bool [length, prefix + length], None where plain causal attention does."""
    varlen: VarlenPlan | None = None
    """CUDA."""
    sequence: SequenceShards | None = None
    """Ranks that share the tokens."""


def plan_attention(
    spans: tuple[Span, ...], device: torch.device, sequence: SequenceShards | None = None
) -> AttentionPlan:
    """Masks or offsets for `spans` on a device."""
    if device.type != "cuda":
        masks = tuple(_suffix_mask(span) for span in spans)
        return AttentionPlan(spans, masks, sequence=sequence)
    queries = [span.length for span in spans]
    keys = [span.length + span.prefix_length for span in spans]
    rows = None
    if any(span.prefix_length for span in spans):
        rows = torch.cat([_key_rows(span) for span in spans]).to(device)
    varlen = VarlenPlan(
        _offsets(queries, device), _offsets(keys, device), max(queries), max(keys), rows
    )
    return AttentionPlan(spans, varlen=varlen, sequence=sequence)


def _suffix_mask(span: Span, device: torch.device | None = None) -> Tensor | None:
    if span.prefix_length == 0:
        return None
    total = span.prefix_length + span.length
    ones = torch.ones(span.length, total, dtype=torch.bool, device=device)
    return ones.tril(span.prefix_length)


def _key_rows(span: Span) -> Tensor:
    prefix = torch.arange(span.prefix_start, span.prefix_start + span.prefix_length)
    return torch.cat([prefix, torch.arange(span.start, span.start + span.length)])


def _offsets(lengths: list[int], device: torch.device) -> Tensor:
    total = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return total.to(device)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    plan: AttentionPlan | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The transformers attention interface.

    Args: query [1, heads, T, d]; key, value [1, kv_heads, T, d]; `plan` arrives as a model
    keyword. Returns [1, T, heads, d]. Raises ConfigError for sliding windows.
    """
    if plan is None:
        raise ConfigError(f"attention {ATTENTION_NAME} needs a plan: call the policy by its batch")
    if sliding_window is not None:
        raise ConfigError(
            "model.path: sliding-window attention is not supported by the learner; "
            "use a model with full attention"
        )
    if plan.sequence is not None:
        query, key, value = spread_heads(query, key, value, plan.sequence)
    if plan.varlen is not None and query.dtype in (torch.bfloat16, torch.float16):
        output = _attend_varlen(query, key, value, scaling, plan.varlen)
    else:
        output = _attend_spans(query, key, value, scaling, plan)
    return (output if plan.sequence is None else heads_to_tokens(output, plan.sequence)), None


def _attend_spans(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, plan: AttentionPlan
) -> Tensor:
    """Loop of SDPA over the spans."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        # The CPU flash kernel wants equal head counts; enable_gqa would leave it.
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    lengths = [span.length for span in plan.spans]
    queries, keys, values = (t.split(lengths, dim=2) for t in (query, key, value))
    by_start = {span.start: index for index, span in enumerate(plan.spans)}
    # Flash attention takes no float32: on CUDA the masks are then made here.
    masks = plan.masks or tuple(_suffix_mask(span, query.device) for span in plan.spans)
    outputs = []
    for index, (span, mask) in enumerate(zip(plan.spans, masks, strict=True)):
        own_key, own_value = keys[index], values[index]
        if span.prefix_length:
            prefix = by_start[span.prefix_start]
            own_key = torch.cat([keys[prefix], own_key], dim=2)
            own_value = torch.cat([values[prefix], own_value], dim=2)
        outputs.append(
            F.scaled_dot_product_attention(
                queries[index], own_key, own_value, mask, is_causal=mask is None, scale=scaling
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2)


def _attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, plan: VarlenPlan
) -> Tensor:
    """Flash attention over all spans at once."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (t[0].transpose(0, 1) for t in (query, key, value))
    if plan.key_rows is not None:
        key, value = key[plan.key_rows], value[plan.key_rows]
    output: Any = varlen_attn(
        query,
        key,
        value,
        plan.offsets_q,
        plan.offsets_k,
        plan.longest_q,
        plan.longest_k,
        scale=scaling,
        window_size=(-1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[None]


def register_attention() -> str:
    """Make the interface known to transformers (repeatable); returns its name."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, packed_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, lambda *_, **__: None)
    return ATTENTION_NAME
