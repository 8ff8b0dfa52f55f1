"""Seeds: one number per purpose and counter, from a hash; no generator state anywhere.

    seed = blake2b("tbrl.<purpose>", root, counters...) mod 2^63

Each purpose is its own name space (blake2b's `person`), each counter a fixed-width field, so two
different tuples never hash the same bytes. A seed depends on what an episode *is* (step, slot,
attempt, rollout, turn), not on who runs it, when, or among how many workers. 63 bits fit a signed
int64: `torch.Generator.manual_seed`, vLLM's request seed and `random.Random` all take them.
"""

from __future__ import annotations

import hashlib
import struct

SEED_BITS = 63


def _seed(purpose: bytes, root: int, *counters: int, name: str = "") -> int:
    """Hash of (purpose, root, counters, name) in [0, 2^63). `purpose` is at most 16 bytes."""
    fixed = struct.pack(f"<{1 + len(counters)}q", root, *counters)
    digest = hashlib.blake2b(fixed + name.encode(), digest_size=8, person=purpose).digest()
    return int.from_bytes(digest, "little") >> (64 - SEED_BITS)


def episode_seed(
    root: int, step: int, slot: int, attempt: int, rollout: int, turn: int, salt: int = 0
) -> int:
    """Sampling seed of one assistant turn. `salt` stays 0 unless a failure has repeated: a
    transient failure is run again with the same seed and leaves no trace in the data."""
    return _seed(b"tbrl.episode", root, step, slot, attempt, rollout, turn, salt)


def user_seed(
    root: int, step: int, slot: int, attempt: int, rollout: int, turn: int, salt: int = 0
) -> int:
    """Seed of one reply of the simulated user in a training episode."""
    return _seed(b"tbrl.user", root, step, slot, attempt, rollout, turn, salt)


def probe_seed(root: int, task_ref: str, probe: int, turn: int, salt: int = 0) -> int:
    """Sampling seed of a probe's turn: by the task's name, so that adding tasks to a pool does
    not change the probes of the others."""
    return _seed(b"tbrl.probe", root, probe, turn, salt, name=task_ref)


def evaluation_seed(root: int, task_ref: str, attempt: int, turn: int, salt: int = 0) -> int:
    """Sampling seed of an evaluation turn: no step in it, so that before and after training are
    compared on common random numbers."""
    return _seed(b"tbrl.evaluate", root, attempt, turn, salt, name=task_ref)


def evaluation_user_seed(root: int, task_ref: str, attempt: int, turn: int, salt: int = 0) -> int:
    """Seed of the simulated user's reply in a probe or an evaluation attempt."""
    return _seed(b"tbrl.evalusr", root, attempt, turn, salt, name=task_ref)


def task_rank(root: int, epoch: int, task_ref: str) -> int:
    """Sorting key of a task within an epoch's permutation (see schedule.TaskStream)."""
    return _seed(b"tbrl.stream", root, epoch, name=task_ref)
