"""Digest of the master weights, without gathering them.

Per parameter two 64-bit sums over its raw words, plain and weighted by position, are taken where
each shard lives and added over ranks; they are hashed with names, dtypes and shapes. The result
does not depend on the number of ranks, and any single changed bit changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from tbrl.learner.distributed import Ranks

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's part of a parameter."""

    label: str
    """Name, dtype and whole shape."""
    local: Tensor
    first: int
    """Index of its first element in the whole parameter."""


def shard_of(
    name: str, tensor: Tensor, ranks: Ranks, shape: tuple[int, ...] | None = None
) -> Shard:
    """A parameter is sharded along its first dimension in equal chunks, the last ones shorter.

    `shape`: its true one, when the tensor is flattened.
    """
    label = f"{name}|{tensor.dtype}|{shape or tuple(tensor.shape)}"
    if not isinstance(tensor, DTensor):
        return Shard(label, tensor.detach(), 0)
    rows = tensor.shape[0]
    chunk = -(-rows // ranks.world)
    row = tensor.numel() // rows
    return Shard(label, tensor.to_local().detach(), min(ranks.rank * chunk, rows) * row)


def digest_parameters(
    named: Iterable[tuple[str, Tensor]],
    ranks: Ranks,
    flat_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> str:
    """Hex digest (128 bit) of parameters in the order given. Collective; equal on all ranks.

    `flat_shapes`: true shapes of those that are flattened.
    """
    shards = [shard_of(name, tensor, ranks, flat_shapes.get(name)) for name, tensor in named]
    if not shards:
        return hashlib.blake2b(digest_size=16).hexdigest()
    sums = torch.stack([_sums(shard) for shard in shards])
    totals = ranks.sum_integers(sums).tolist()
    state = hashlib.blake2b(digest_size=16)
    for shard, (plain, weighted) in zip(shards, totals, strict=True):
        state.update(f"{shard.label}|{plain}|{weighted};".encode())
    return state.hexdigest()


def _sums(shard: Shard) -> Tensor:
    """int64 [2]; sums wrap modulo 2^64, as they would over the whole parameter."""
    words = shard.local.contiguous().view(-1).view(_WORDS[shard.local.element_size()])
    total = torch.zeros(2, dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _CHUNK):
        chunk = words[start : start + _CHUNK].to(torch.int64)
        position = torch.arange(chunk.numel(), device=chunk.device) + (shard.first + start)
        total += torch.stack([chunk.sum(), (chunk * (2 * position + 1)).sum()])
    return total
