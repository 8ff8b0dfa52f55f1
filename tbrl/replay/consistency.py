"""Whether a step's files agree with each other: nothing is sampled, graded or trained again.

Each check yields one line per difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tbrl.episode.group import salt_of
from tbrl.errors import ConfigError
from tbrl.records.episodes import StoredGroup, file_sha256
from tbrl.records.jsonl import read_jsonl
from tbrl.records.receipts import StepReceipt
from tbrl.records.run_dir import RunDir
from tbrl.seeds import episode_seed
from tbrl.types import Episode, JsonObject, Scored


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step's rows in the run's JSONL files."""

    receipt: StepReceipt
    ledger: JsonObject
    metrics: JsonObject

    @classmethod
    def read(cls, run: RunDir, step: int) -> Recorded:
        rows = [_row_of(path, step) for path in (run.receipts, run.ledger, run.metrics)]
        return cls(StepReceipt.from_json(rows[0]), rows[1], rows[2])


def _row_of(path: Path, step: int) -> JsonObject:
    rows = [row for row in read_jsonl(path) if row.get("step") == step] if path.exists() else []
    if len(rows) != 1:
        raise ConfigError(
            f"step={step}: {path} has {len(rows)} rows of that step; "
            "replay a step that the run has finished"
        )
    return rows[0]


def file_differences(run: RunDir, recorded: Recorded) -> Iterable[str]:
    path = run.episodes(recorded.receipt.step)
    if not path.exists():
        yield f"{path} is missing"
    elif file_sha256(path) != recorded.receipt.episodes_sha256:
        yield f"{path} is not the file that the receipt names"


def group_differences(receipt: StepReceipt, trained: list[StoredGroup]) -> Iterable[str]:
    found = [(s.group.slot, s.group.attempt, s.group.task_ref, s.digest) for s in trained]
    named = [(s.slot, s.attempt, s.task_ref, s.group_digest) for s in receipt.slots]
    for group in sorted(set(named) - set(found)):
        yield f"the receipt names {group}, the file has no such trained group"
    for group in sorted(set(found) - set(named)):
        yield f"the file has a trained group {group}, the receipt does not name it"
    for stored in trained:
        versions = {e.policy_version for e in stored.group.episodes}
        if versions != {receipt.policy_version_before}:
            yield (
                f"slot {stored.group.slot} was sampled by policy versions {sorted(versions)}, "
                f"the step updates version {receipt.policy_version_before}"
            )


def ledger_differences(recorded: Recorded, stored: list[StoredGroup]) -> Iterable[str]:
    groups = Counter(s.fate for s in stored)
    episodes = Counter(s.fate for s in stored for _ in s.group.episodes)
    unreported = recorded.ledger["unreported_groups"]
    for fate, account in recorded.ledger["accounts"].items():
        missing = unreported if fate == "cancelled" else 0
        if groups[fate] != account["groups"] - missing:
            yield f"{groups[fate]} groups {fate} in the file, {account['groups']} in the ledger"
        elif not missing and episodes[fate] != account["episodes"]:
            yield f"{episodes[fate]} episodes {fate}, {account['episodes']} in the ledger"
    for s in stored:
        rewards = [e.outcome.reward for e in s.group.episodes if isinstance(e.outcome, Scored)]
        failed = len(rewards) < len(s.group.episodes)
        actual = "failed" if failed else "trained" if len(set(rewards)) > 1 else "zero_variance"
        if s.fate not in (actual, "cancelled"):
            yield f"{name_of(s.group.episodes[0])}: {s.fate}, but its outcomes say {actual}"
    tokens = sum(e.action_tokens for s in stored if s.fate == "trained" for e in s.group.episodes)
    if tokens != recorded.receipt.action_tokens:
        yield f"{tokens} action tokens trained, {recorded.receipt.action_tokens} in the receipt"


def token_differences(episodes: list[Episode]) -> Iterable[str]:
    for e in episodes:
        sizes = {len(e.response_ids), len(e.action_mask), len(e.behaviour_logprobs)}
        if len(sizes) != 1:
            yield f"{name_of(e)}: ids, mask and logprobs have lengths {sorted(sizes)}"
            continue
        if not np.all(np.isfinite(e.behaviour_logprobs)):
            yield f"{name_of(e)}: a behaviour logprob is not a number"
        if np.any(e.behaviour_logprobs[~e.action_mask] != 0.0):
            yield f"{name_of(e)}: an observed token carries a logprob"
        sampled = np.zeros(len(e.response_ids), dtype=bool)
        for turn in e.turns:
            if turn.role == "assistant":
                sampled[turn.start - len(e.prompt_ids) : turn.end - len(e.prompt_ids)] = True
        if not np.array_equal(sampled, e.action_mask):
            yield f"{name_of(e)}: the action mask does not cover exactly the assistant turns"


def seed_differences(root: int, episodes: list[Episode]) -> tuple[int, tuple[str, ...]]:
    differences, compared = [], 0
    for e in episodes:
        k = e.key
        sampled = [turn for turn in e.turns if turn.role == "assistant"]
        for number, turn in enumerate(sampled):
            compared += 1
            seed = episode_seed(
                root, k.step, k.slot, k.attempt, k.rollout, number, salt_of(e.tries)
            )
            if turn.seed != seed:
                differences.append(f"{name_of(e)}: turn {number} has seed {turn.seed}, not {seed}")
    return compared, tuple(differences)


def name_of(episode: Episode) -> str:
    k = episode.key
    return f"step {k.step} slot {k.slot} attempt {k.attempt} rollout {k.rollout}"
