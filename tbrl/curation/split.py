"""Deterministic stratified split: the same tasks give the same halves, whatever their order."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping

from tbrl.errors import ConfigError


def stratified_split(
    strata: Mapping[str, tuple[str, ...]], test_share: float, seed: int
) -> tuple[list[str], list[str]]:
    """Split task_refs into (train, test), each sorted.

    `strata` maps task_ref to its stratum, e.g. (domain, template). Sizes: the total is rounded
    once, then given to strata by largest remainder, so that every stratum is within one task of
    its exact share. Within a stratum tasks are ordered by a hash of (seed, task_ref): adding a
    task to one stratum does not reshuffle the others.
    """
    if not 0.0 <= test_share < 1.0:
        raise ConfigError(f"curation.test_share: {test_share} must be in [0, 1)")
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for ref, stratum in strata.items():
        groups[stratum].append(ref)
    sizes = _largest_remainder({s: len(refs) * test_share for s, refs in groups.items()}, seed)
    train: list[str] = []
    test: list[str] = []
    for stratum, refs in groups.items():
        ordered = sorted(refs, key=lambda ref: _rank(seed, ref))
        test += ordered[: sizes[stratum]]
        train += ordered[sizes[stratum] :]
    return sorted(train), sorted(test)


def _largest_remainder(
    exact: Mapping[tuple[str, ...], float], seed: int
) -> dict[tuple[str, ...], int]:
    sizes = {stratum: int(share) for stratum, share in exact.items()}
    missing = round(sum(exact.values())) - sum(sizes.values())
    by_remainder = sorted(exact, key=lambda s: (sizes[s] - exact[s], _rank(seed, "\x1f".join(s))))
    for stratum in by_remainder[:missing]:
        sizes[stratum] += 1
    return sizes


def _rank(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}\x1f{text}".encode()).digest()
