"""Probe files: what a policy did on candidate tasks, ours or of foreign layouts.

Our own probes are campaign results (evaluation/campaign.py). Any other JSONL works by dotted
field names: `uid` (the task), `result` (true/false or 1/0), and optionally `error` (a truthy value
marks a system error: the probe is not clean and counts for nothing; several fields: `a|b`) and
`attempt`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbrl.errors import ConfigError
from tbrl.records.jsonl import decode_line

DEFAULT_FIELDS = {
    "uid": "uid",
    "result": "test_result.result",
    "error": "is_system_error|test_result.is_system_error",
    "attempt": "metadata.repetition",
}


@dataclass(frozen=True, slots=True)
class Probes:
    """Clean probes of one task, and how many were not clean."""

    task_ref: str
    results: tuple[bool, ...]
    """In the order of attempts."""
    errors: int = 0
    """Probes that failed for reasons outside the policy: reported, never counted."""

    @property
    def n(self) -> int:
        return len(self.results)

    @property
    def k(self) -> int:
        return sum(self.results)

    def first(self, limit: int) -> Probes:
        """The first `limit` clean probes."""
        return Probes(self.task_ref, self.results[:limit], self.errors)


def read_probes(
    paths: Sequence[Path], fields: Mapping[str, str] | None = None
) -> dict[str, Probes]:
    """All probes of the files together, by task_ref, sorted. ConfigError names file, line and
    field of a malformed row; two clean results for the same (task, attempt) are refused."""
    layout = {**DEFAULT_FIELDS, **(fields or {})}
    unknown = set(layout) - set(DEFAULT_FIELDS)
    if unknown:
        raise ConfigError(
            f"curation.fields: unknown key {sorted(unknown)[0]!r};"
            f" one of {', '.join(DEFAULT_FIELDS)}"
        )
    clean: dict[str, dict[int, bool]] = defaultdict(dict)
    errors: dict[str, int] = defaultdict(int)
    for path in paths:
        for where, row in _rows(path):
            task_ref = _field(row, layout["uid"], where)
            if not isinstance(task_ref, str) or not task_ref:
                raise ConfigError(f"{where}: {layout['uid']} must be a name, this is {task_ref!r}")
            if any(_field(row, name, where, False) for name in layout["error"].split("|")):
                errors[task_ref] += 1
                continue
            attempt = _attempt(row, layout["attempt"], where, len(clean[task_ref]))
            if attempt in clean[task_ref]:
                raise ConfigError(
                    f"{where}: second clean result of {task_ref} attempt {attempt};"
                    " keep one of them"
                )
            clean[task_ref][attempt] = _result(row, layout["result"], where)
    return {
        ref: Probes(ref, tuple(clean[ref][a] for a in sorted(clean[ref])), errors[ref])
        for ref in sorted(clean.keys() | errors.keys())
    }


def _rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    if not path.is_file():
        raise ConfigError(f"curation.probe_files: {path}: no such file; run stage=probe first")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            row = decode_line(line, where)
            if not isinstance(row, dict):
                raise ConfigError(f"{where}: a probe must be an object, not {type(row).__name__}")
            yield where, row


_ABSENT = object()


def _field(row: dict[str, Any], dotted: str, where: str, default: Any = _ABSENT) -> Any:
    """The value at a dotted name. A literal key with dots in it wins over the path."""
    if dotted in row:
        return row[dotted]
    value: Any = row
    for part in dotted.split("."):
        if not isinstance(value, dict) or part not in value:
            if default is not _ABSENT:
                return default
            raise ConfigError(f"{where}: field {dotted} is missing; name it in curation.fields")
        value = value[part]
    return value


def _result(row: dict[str, Any], dotted: str, where: str) -> bool:
    value = _field(row, dotted, where)
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ConfigError(f"{where}: {dotted} must be true/false or 1/0, this is {value!r}")


def _attempt(row: dict[str, Any], dotted: str, where: str, default: int) -> int:
    value = _field(row, dotted, where, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ConfigError(f"{where}: {dotted} must be a number, this is {value!r}")
