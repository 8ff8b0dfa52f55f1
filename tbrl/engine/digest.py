"""Digest of a stream of named weights, cheap on any device.

Per tensor two integer sums over its raw words (plain and position-weighted) are taken where the
tensor lives, so a GPU sends 16 bytes to the host, not the tensor; names, dtypes, shapes and sums
are hashed together. Sender and engines compute it over the same stream: equal digests mean that
every engine received these bytes under these names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import xxhash

Named = tuple[str, torch.Tensor]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 24
_PERIOD = 65521  # prime, so that swapped blocks of any usual size change the weighted sum


class WeightDigest:
    """Accumulates over `add(name, tensor)`; entries are keyed by name, so order is free."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        words = tensor.detach().contiguous().view(-1).view(_WORDS[tensor.element_size()])
        plain = weighted = 0
        for start in range(0, words.numel(), _CHUNK):
            chunk = words[start : start + _CHUNK].to(torch.int64)
            index = torch.arange(start, start + chunk.numel(), device=chunk.device) % _PERIOD + 1
            plain += int(chunk.sum())
            weighted += int((chunk * index).sum())
        self._entries[name] = f"{tensor.dtype}{tuple(tensor.shape)}{plain}:{weighted}"

    def tap(self, weights: Iterable[Named]) -> Iterator[Named]:
        """Pass weights through, adding each on the way."""
        for name, tensor in weights:
            self.add(name, tensor)
            yield name, tensor

    def hexdigest(self) -> str:
        state = xxhash.xxh3_128()
        for name in sorted(self._entries):
            state.update(f"{name}={self._entries[name]};".encode())
        return state.hexdigest()
