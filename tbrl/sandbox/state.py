"""The canonical form of a database, and its hash.

Two databases of one scenario are the same state exactly when their canonical forms are equal.
The form, in full:

- **Tables.** Every ordinary table of the schema, empty ones too, by name. Virtual tables (full-text
  indexes), their shadow tables and `sqlite_*` tables are left out: they follow from documents.
- **Columns.** All but the domain's `excluded_columns` of that table (free text nobody can be
  expected to write twice in the same words). A primary key column cannot be excluded.
- **Row order.** None: the rows of a table are a multiset, written sorted by their canonical bytes.
  Insertion order, rowids and storage order do not show; the values of generated ids do.
- **Key order.** Members of a row and of JSON values are written sorted by name.
- **NULL and missing.** A NULL column is left out, so a row that never named the column is equal to
  one that set it to NULL. A `null` member of a JSON object is left out likewise. NULL is not equal
  to 0, to the empty string or to an empty list.
- **Numbers.** By value, not by storage: 33, 33.0 and (in a column with numeric affinity) '33.00'
  are one number; true is 1. An integral value below 2**53 is written as an integer; any other float
  with 12 significant digits, so that the order of additions of money does not show; -0.0 is 0;
  integers are exact. Text in a TEXT column stays text: '007' is not '7', '33' is not 33.
- **Timestamps.** Text that is wholly an ISO 8601 date and time (`T` or a space between, seconds and
  fraction optional, `Z` or an offset or none = UTC) is written in UTC as YYYY-MM-DDTHH:MM:SS[.f]Z
  without trailing zeros of the fraction. A date without a time stays a date.
- **Text.** Unicode normal form NFC; otherwise exact, case and white space included.
- **JSON.** Text that is wholly a JSON object or array, at most 64 levels deep, is compared by its
  value under the same rules (a list keeps its order), written as {"json": value}.
- **Blobs.** Exact bytes, written as {"blob": hex}. Infinities are written as {"float": "inf"}.

The hash is SHA-256, as hex, over the UTF-8 bytes of: the line `tbrl-state-1`, then per table its
name on a line and its rows one a line.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from tbrl.sandbox.schema import Table
from tbrl.types import JsonObject

_VERSION = b"tbrl-state-1\n"
_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|z|[+-]\d\d(:?\d\d)?)?", re.ASCII
)
_FRACTION = re.compile(r"\.(\d+)", re.ASCII)
_EXACT_INTEGERS = 2.0**53
_MAX_DEPTH = 64


class _TooDeep(Exception):
    """JSON nested deeper than the canonical form reads: the text is compared as text."""


def state_hash(
    conn: sqlite3.Connection,
    tables: Iterable[Table],
    excluded: Mapping[str, frozenset[str]],
) -> str:
    """Hex digest of the canonical form (see the module docstring)."""
    return _digest(
        (
            table.name,
            [
                canonical_row(table, row, excluded.get(table.name, frozenset()))
                for row in conn.execute(table.select)
            ],
        )
        for table in tables
    )


def json_state_hash(
    state: Mapping[str, Iterable[JsonObject]], excluded: Mapping[str, frozenset[str]]
) -> str:
    """The same for a state given as {table: rows}."""
    return _digest(
        (name, [canonical_members(row, excluded.get(name, frozenset())) for row in rows])
        for name, rows in state.items()
    )


def _digest(tables: Iterable[tuple[str, list[dict[str, Any]]]]) -> str:
    digest = hashlib.sha256(_VERSION)
    for name, rows in sorted(tables, key=lambda table: table[0]):
        digest.update(canonical_json(name) + b"\n")
        for line in sorted(map(canonical_json, rows)):
            digest.update(line + b"\n")
    return digest.hexdigest()


def canonical_members(row: JsonObject, hidden: frozenset[str]) -> dict[str, Any]:
    """{column: canonical value} without excluded and null columns."""
    return {
        column: canonical_value(value)
        for column, value in row.items()
        if value is not None and column not in hidden
    }


def canonical_row(table: Table, row: tuple[Any, ...], hidden: frozenset[str]) -> dict[str, Any]:
    """The same for a row as SQLite gives it."""
    return canonical_members(dict(zip(table.columns, row, strict=True)), hidden)


def canonical_value(value: Any, depth: int = 0) -> Any:
    """A SQLite or JSON value in canonical form: None, int, float, str, list or dict. Raises
    _TooDeep for JSON nested deeper than the form allows."""
    if isinstance(value, str):
        return _text(value, depth)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, list | dict):
        if depth >= _MAX_DEPTH:
            raise _TooDeep
        if isinstance(value, list):
            return [canonical_value(member, depth + 1) for member in value]
        return {
            unicodedata.normalize("NFC", name): canonical_value(member, depth + 1)
            for name, member in value.items()
            if member is not None
        }
    return value


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces. Integers of any size that SQLite holds."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _number(value: float) -> Any:
    if value.is_integer() and abs(value) < _EXACT_INTEGERS:
        return int(value)
    # orjson writes a non-finite float as null, which would be equal to a missing value
    return float(f"{value:.12g}") if abs(value) != float("inf") else {"float": repr(value)}


def _text(value: str, depth: int) -> Any:
    if len(value) >= 16 and value[4] == "-" and _TIMESTAMP.fullmatch(value):
        return _timestamp(value)
    if value[:1] in ("{", "["):
        try:
            return {"json": canonical_value(orjson.loads(value), depth)}
        except (orjson.JSONDecodeError, _TooDeep):
            pass  # ordinary text that happens to begin with a bracket
    return value if value.isascii() else unicodedata.normalize("NFC", value)


def _timestamp(value: str) -> str:
    body, fraction = value, ""
    match = _FRACTION.search(value)
    if match:  # datetime keeps six digits only
        body = value[: match.start()] + value[match.end() :]
        fraction = match.group(1).rstrip("0")
    try:
        moment = datetime.fromisoformat(body.upper())
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return value  # the 31st of February is text
    tail = f".{fraction}" if fraction else ""
    return moment.replace(tzinfo=None).isoformat(timespec="seconds") + tail + "Z"
