"""Results files: one JSON object a line, one line per scored (task, attempt).

A row is readable by ThinkingBox's tools (`uid`, `messages`, `test_result`, `usage`, `metadata`,
`is_system_error`, `finish_reason` in its vocabulary) and carries everything of ours under the one
key `tbrl`, which they ignore. Failures have no row here: they go to `<stem>.failures.jsonl`, so a
results file never holds a number that was not earned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tbrl.errors import ConfigError
from tbrl.evaluation.metrics import TaskLabels
from tbrl.records.jsonl import decode_line, read_jsonl
from tbrl.types import Episode, Failed, JsonObject, Scored, Turn
from tbrl.usage import NOTHING, UNKNOWN, RoleUsage, Usage

FORMAT = 2
"""Version of the `tbrl` part of a row."""

MAX_ATTEMPTS = 1_000_000

FINISH_REASONS = {"length": "agent_limit", "failed": "agent_error"}
"""Ours that the common vocabulary lacks; every other finish reason is the same word."""


# ---------------------------------------------------------------- writing rows


def row_of(episode: Episode, attempt: int, labels: TaskLabels, policy: str) -> JsonObject:
    """The row of one scored episode. `policy` names the weights and sampling (a digest); raises
    TypeError for a failed episode: it has no number and no row."""
    outcome = episode.outcome
    if not isinstance(outcome, Scored):
        raise TypeError(f"{episode.task_ref} attempt {attempt} failed and has no results row")
    seconds = episode.seconds
    return {
        "uid": episode.task_ref,
        "messages": [message for turn in episode.turns for message in messages_of(turn)],
        "test_result": {
            "result": outcome.reward >= 1.0,
            "reward": outcome.reward,
            "is_system_error": False,
            "tb": outcome.attribution,
            "metadata": {},
        },
        "usage": [
            usage_row(turn.usage)
            for turn in episode.turns
            if turn.role == "assistant" and turn.usage is not None
        ],
        "metadata": {
            "scenario": episode.domain,
            "test_case_name": episode.task_ref,
            "repetition": attempt,
            "execution_time": seconds.get("total", 0.0),
            "time_tool": seconds.get("tools", 0.0),
            "time_agent": seconds.get("engine", 0.0),
            "time_user": seconds.get("user", 0.0),
            "time_test": seconds.get("grade", 0.0),
        },
        "is_system_error": False,
        "finish_reason": FINISH_REASONS.get(episode.finish_reason, episode.finish_reason),
        "tbrl": {
            "format": FORMAT,
            "attempt": attempt,
            "policy": policy,
            "policy_version": episode.policy_version,
            **asdict(labels),
            "finish_reason": episode.finish_reason,
            "tries": episode.tries,
            "state_equal": outcome.state_equal,
            "rubrics_passed": list(outcome.rubrics_passed),
            "attribution": outcome.attribution,
            "differences": [asdict(change) for change in outcome.differences],
            "effects": [asdict(change) for change in episode.effects],
            "agent_turns": episode.agent_turns,
            "malformed_turns": episode.malformed_turns,
            "tool_calls": sum(len(turn.tool_calls) for turn in episode.turns),
            "tokens": episode.usage.to_json(),
            "seconds": dict(seconds),
        },
    }


def usage_row(used: Usage) -> JsonObject:
    """One agent turn in the common form; null is not known."""
    if used.unknown:
        return {"input_tokens": None, "output_tokens": None, "total_tokens": None}
    return {
        "input_tokens": used.input,
        "input_tokens_details": {"cached_tokens": None if used.cache_unknown else used.cached},
        "output_tokens": used.output,
        "total_tokens": used.input + used.output,
    }


def messages_of(turn: Turn) -> list[JsonObject]:
    """One turn as messages tagged by `T`."""
    if turn.role == "tool":
        reply = {"T": "ToolResponse", "name": turn.tool_name, "content": turn.text, "id": ""}
        return [{**reply, "metadata": {"is_error": turn.is_error}}]
    messages: list[JsonObject] = []
    if turn.reasoning:
        messages.append(_text("assistant", turn.reasoning, "think"))
    if turn.text or not turn.tool_calls:
        messages.append(_text(turn.role, turn.text, "text"))
    if turn.tool_calls:
        calls = [
            {"T": "ToolCall", "name": call.name, "arguments": call.arguments, "id": ""}
            for call in turn.tool_calls
        ]
        messages.append({"T": "ParallelToolCall", "tool_calls": calls})
    return messages


def _text(role: str, content: str, tag: str) -> JsonObject:
    return {"T": "Text", "role": role, "content": content, "metadata": {"tag": tag}}


def failure_of(
    task_ref: str, attempt: int, try_: int, failed: Failed, used: RoleUsage
) -> JsonObject:
    """One line of the failures file. `length` is that of the conversation, `tokens` what all its
    requests used."""
    why = asdict(failed)
    return {
        "uid": task_ref,
        "attempt": attempt,
        "try": try_,
        "length": why.pop("tokens"),
        **why,
        "tokens": used.to_json(),
    }


# ---------------------------------------------------------------- reading rows


def failures_beside(path: Path) -> Path:
    """The failures file of a results file."""
    return path.with_suffix(".failures.jsonl")


def read_failures(path: Path) -> list[JsonObject]:
    """What failed on the way to a results file; nothing where it has no failures file."""
    beside = failures_beside(path)
    return read_jsonl(beside) if beside.is_file() else []


def agent_usage_of(raw: JsonObject) -> Usage:
    """What the agent used by a row of the common form, whoever wrote it."""
    turns = [_turn_usage(used) for used in raw.get("usage") or ()]
    return sum(turns, NOTHING) if turns else UNKNOWN


def _turn_usage(used: JsonObject) -> Usage:
    read, written = used.get("input_tokens"), used.get("output_tokens")
    if read is None or written is None:
        return UNKNOWN
    details = used.get("input_tokens_details") or {}
    return Usage.of(read, details.get("cached_tokens"), written)


class ResultRow(NamedTuple):
    """What metrics need of one row. A tuple, since a million of them are made in one pass."""

    uid: str
    attempt: int
    passed: bool | None
    """None: the row is an error of the system and has no number."""
    policy: str
    """Weights and sampling; empty in foreign files."""
    finish_reason: str
    raw: JsonObject
    """The whole row."""

    @property
    def labels(self) -> TaskLabels:
        ours = self.raw.get("tbrl", {})
        return TaskLabels(
            domain=str(ours.get("domain", "")),
            template=str(ours.get("template", "")),
            ordinary=bool(ours.get("ordinary", True)),
            ticket_only=ours.get("ticket_only"),
            transfer=bool(ours.get("transfer", False)),
            eval_only=bool(ours.get("eval_only", False)),
        )


def parse_row(raw: Any, where: str) -> ResultRow:
    """Validate one decoded line. `where` is `file:line`; ConfigError names it and the field."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: a results row must be an object, this is {_kind(raw)}")
    uid = _typed(raw, "uid", str, where)
    ours = raw.get("tbrl")
    if ours is None:
        policy = ""
        metadata = raw.get("metadata")
        attempt = metadata.get("repetition") if isinstance(metadata, dict) else None
        finish_reason = raw.get("finish_reason", "")
    elif not isinstance(ours, dict) or ours.get("format") != FORMAT:
        found = ours.get("format") if isinstance(ours, dict) else ours
        raise ConfigError(
            f"{where}: tbrl.format is {found!r}, this version reads {FORMAT};"
            " read the file with the version that wrote it"
        )
    else:
        policy = f"{ours.get('policy')}@{ours.get('policy_version')}"
        attempt = ours.get("attempt")
        finish_reason = ours.get("finish_reason", "")
    if type(attempt) is not int or not 0 <= attempt < MAX_ATTEMPTS:
        raise ConfigError(
            f"{where}: metadata.repetition must be a number in [0, {MAX_ATTEMPTS}),"
            f" this is {attempt!r}"
        )
    return ResultRow(uid, attempt, _passed(raw, where), policy, finish_reason, raw)


def _passed(raw: JsonObject, where: str) -> bool | None:
    if raw.get("is_system_error", False):
        return None
    result = raw.get("test_result")
    if result is None:
        raise ConfigError(
            f"{where}: test_result is missing and is_system_error is not set;"
            " is this a results file? (probe files of other layouts: curation.fields)"
        )
    if not isinstance(result, dict):
        raise ConfigError(f"{where}: test_result must be an object, this is {_kind(result)}")
    if result.get("is_system_error", False):
        return None
    return _typed(result, "result", bool, where, "test_result.")


def _typed(raw: JsonObject, key: str, kind: type, where: str, prefix: str = "") -> Any:
    value = raw.get(key)
    if not isinstance(value, kind):
        raise ConfigError(
            f"{where}: {prefix}{key} must be a {kind.__name__}, this is {_kind(value)};"
            " is this a results file?"
        )
    return value


def _kind(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def read_rows(path: Path) -> Iterator[ResultRow]:
    """Stream a results file. ConfigError with one line for a truncated, duplicated, mixed-version,
    non-UTF-8 or foreign file: nothing is skipped. Memory: one row, and one bit per key."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such results file; run stage=evaluate first")
    seen: dict[str, int] = {}
    policy: str | None = None
    name = str(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{name}:{number}"
            if not line.strip():
                raise ConfigError(f"{where}: empty line; a results file has one row a line")
            row = parse_row(decode_line(line, where), where)
            attempts, this = seen.get(row.uid, 0), 1 << row.attempt
            if attempts & this:
                first = next(n for n, key in _keys(path) if key == (row.uid, row.attempt))
                raise ConfigError(
                    f"{where}: duplicate of line {first}: {row.uid} attempt {row.attempt};"
                    " keep one of them"
                )
            seen[row.uid] = attempts | this
            if policy is None:
                policy = row.policy
            if row.policy != policy:
                raise ConfigError(
                    f"{where}: mixed versions: policy {row.policy or '(none)'} here,"
                    f" {policy or '(none)'} on line 1; evaluate one policy per file"
                )
            yield row


def _keys(path: Path) -> Iterator[tuple[int, tuple[str, int]]]:
    """(line number, key) of each row; used to say where a duplicate's twin is."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = parse_row(decode_line(line, f"{path}:{number}"), f"{path}:{number}")
            yield number, (row.uid, row.attempt)
