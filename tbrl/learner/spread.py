"""Weights from the one rank that read them to every rank's shards.

A rank that loaded the whole policy before sharding would need it whole in its memory, on each of
the node's GPUs at once. Instead every rank shards an outline without storage; rank 0 reads the
checkpoint on the host and hands out one tensor at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from tbrl.learner.distributed import Ranks
from tbrl.learner.model import Policy


@dataclass(frozen=True, slots=True)
class Outline:
    """A policy that has no weights of its own yet."""

    policy: Policy
    """On the meta device."""
    source: Policy | None
    """The same policy with its weights, on the host of rank 0; None on other ranks."""


@torch.no_grad()
def spread_weights(model: Policy, source: Policy | None, ranks: Ranks) -> None:
    """Give a sharded outline its storage and `source`'s weights and buffers, in place.

    `source` is the same policy, whole, on rank 0; other ranks pass None. Collective. At most one
    whole tensor is on a device at a time.
    """
    model.to_empty(device=ranks.device)
    whole = named_tensors(source) if source is not None else {}
    for name, target in named_tensors(model).items():
        _fill(target, whole.get(name), ranks)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters (a tied one once) and buffers, in the same order on all ranks."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _fill(target: Tensor, whole: Tensor | None, ranks: Ranks) -> None:
    if whole is None:
        whole = torch.empty(target.shape, dtype=target.dtype, device=ranks.device)
    whole = whole.detach().to(ranks.device)
    assert ranks.mesh is not None
    placements = target.placements if isinstance(target, DTensor) else None
    received = distribute_tensor(whole, ranks.mesh, placements, src_data_rank=0).to_local()
    (target.to_local() if isinstance(target, DTensor) else target).copy_(received)
