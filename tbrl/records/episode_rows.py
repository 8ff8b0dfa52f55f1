"""An episode as one row of a table: the columns, the way there and back, and its digest.

Arguments of tool calls are JSON text: they hold whatever the policy wrote, of any type.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

import numpy as np
import pyarrow as pa

from tbrl.types import (
    Episode,
    EpisodeKey,
    Failed,
    JsonObject,
    RowChange,
    Sampling,
    Scored,
    ToolCall,
    Turn,
)
from tbrl.usage import COUNTS, ROLES, RoleUsage, Usage

_CHANGES = pa.list_(
    pa.struct([(n, pa.string()) for n in ("table", "key", "kind", "column", "before", "after")])
)
_USAGE = pa.struct([(name, pa.int64()) for name in COUNTS])
_TURN = pa.struct(
    [
        ("role", pa.string()),
        ("text", pa.string()),
        ("reasoning", pa.string()),
        ("tool_calls", pa.list_(pa.struct([("name", pa.string()), ("arguments", pa.string())]))),
        ("tool_name", pa.string()),
        ("is_error", pa.bool_()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("seed", pa.int64()),
        ("usage", _USAGE),
    ]
)
_OUTCOME = pa.struct(
    [
        ("reward", pa.float64()),
        ("state_equal", pa.bool_()),
        ("rubrics_passed", pa.list_(pa.bool_())),
        ("attribution", pa.string()),
        ("differences", _CHANGES),
        ("kind", pa.string()),
        ("where", pa.string()),
        ("detail", pa.string()),
        ("tokens", pa.int64()),
    ]
)
SCHEMA = pa.schema(
    [
        *((name, pa.int32()) for name in ("step", "slot", "attempt", "rollout")),
        ("fate", pa.string()),
        *((name, pa.string()) for name in ("task_ref", "domain", "template")),
        ("policy_version", pa.int64()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("action_mask", pa.list_(pa.bool_())),
        ("behaviour_logprobs", pa.list_(pa.float32())),
        ("segments", pa.list_(pa.int32())),
        ("turns", pa.list_(_TURN)),
        ("finish_reason", pa.string()),
        ("outcome", _OUTCOME),
        ("temperature", pa.float64()),
        ("top_k", pa.int32()),
        ("top_p", pa.float64()),
        ("effects", _CHANGES),
        ("state_hash", pa.string()),
        ("tries", pa.int32()),
        ("malformed_turns", pa.int32()),
        ("seconds", pa.map_(pa.string(), pa.float64())),
        ("usage", pa.struct([(role, _USAGE) for role in ROLES])),
        ("digest", pa.string()),
    ]
)
ARRAYS = {
    "prompt_ids": np.dtype("<i4"),
    "response_ids": np.dtype("<i4"),
    "action_mask": np.dtype("?"),
    "behaviour_logprobs": np.dtype("<f4"),
}


def content_digest(row: JsonObject) -> str:
    """Hex digest of a row's content (all columns but `digest`): arrays by their bytes, the rest as
    sorted JSON. Changes with any bit of any field."""
    hasher = hashlib.blake2b(digest_size=16)
    rest = {name: value for name, value in row.items() if name not in ARRAYS and name != "digest"}
    hasher.update(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())
    for name, dtype in ARRAYS.items():
        array = np.ascontiguousarray(row[name], dtype=dtype)
        hasher.update(f"{name}:{array.size}:".encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()


def episode_row(episode: Episode, fate: str) -> JsonObject:
    """The parquet row of an episode, digest included."""
    row: JsonObject = {
        **asdict(episode.key),
        "fate": fate,
        "task_ref": episode.task_ref,
        "domain": episode.domain,
        "template": episode.template,
        "policy_version": episode.policy_version,
        **{name: getattr(episode, name).astype(dtype) for name, dtype in ARRAYS.items()},
        "segments": list(episode.segments),
        "turns": [_turn_row(turn) for turn in episode.turns],
        "finish_reason": episode.finish_reason,
        "outcome": _outcome_row(episode.outcome),
        **asdict(episode.sampling),
        "effects": [asdict(change) for change in episode.effects],
        "state_hash": episode.state_hash,
        "tries": episode.tries,
        "malformed_turns": episode.malformed_turns,
        "seconds": list(episode.seconds.items()),
        "usage": episode.usage.to_json(),
    }
    row["digest"] = content_digest(row)
    return row


def _turn_row(turn: Turn) -> JsonObject:
    calls = [{"name": c.name, "arguments": json.dumps(c.arguments)} for c in turn.tool_calls]
    return {
        "role": turn.role,
        "text": turn.text,
        "reasoning": turn.reasoning,
        "tool_calls": calls,
        "tool_name": turn.tool_name,
        "is_error": turn.is_error,
        "start": turn.start,
        "end": turn.end,
        "seed": turn.seed,
        "usage": None if turn.usage is None else turn.usage.to_json(),
    }


def _outcome_row(outcome: Scored | Failed) -> JsonObject:
    row: JsonObject = {field.name: None for field in _OUTCOME}
    row.update(asdict(outcome))
    if isinstance(outcome, Scored):
        row["rubrics_passed"] = list(outcome.rubrics_passed)
        row["differences"] = [asdict(change) for change in outcome.differences]
    return row


def episode_of(row: JsonObject) -> Episode:
    return Episode(
        key=EpisodeKey(row["step"], row["slot"], row["attempt"], row["rollout"]),
        task_ref=row["task_ref"],
        domain=row["domain"],
        template=row["template"],
        policy_version=row["policy_version"],
        **{name: row[name] for name in ARRAYS},
        turns=tuple(_turn_of(turn) for turn in row["turns"]),
        finish_reason=row["finish_reason"],
        outcome=_outcome_of(row["outcome"]),
        sampling=Sampling(row["temperature"], row["top_k"], row["top_p"]),
        effects=tuple(RowChange(**change) for change in row["effects"]),
        state_hash=row["state_hash"],
        tries=row["tries"],
        malformed_turns=row["malformed_turns"],
        seconds=dict(row["seconds"]),
        segments=tuple(row["segments"]),
        usage=RoleUsage.from_json(row["usage"]),
    )


def _turn_of(row: JsonObject) -> Turn:
    calls = tuple(ToolCall(c["name"], json.loads(c["arguments"])) for c in row["tool_calls"])
    usage = Usage(**row["usage"]) if row["usage"] else None
    return Turn(**{**row, "tool_calls": calls, "usage": usage})


def _outcome_of(row: JsonObject) -> Scored | Failed:
    if row["reward"] is None:
        return Failed(row["kind"], row["where"], row["detail"], row["tokens"])
    return Scored(
        reward=row["reward"],
        state_equal=row["state_equal"],
        rubrics_passed=tuple(row["rubrics_passed"]),
        attribution=row["attribution"],
        differences=tuple(RowChange(**change) for change in row["differences"]),
    )
