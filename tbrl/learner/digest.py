"""Digest of parameters: what a step receipt holds and what an engine can echo."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The raw bytes of a tensor (copied to the host and made contiguous when it must be)."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def digest_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Hex blake2b (128 bit) over (name, dtype, shape, bytes) in the order given."""
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in named:
        state.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        state.update(tensor_bytes(tensor))
    return state.hexdigest()
