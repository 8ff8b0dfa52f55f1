"""Effects: what an episode changed, as exact typed row changes between two databases.

    table orders, key 17: status "open" -> "cancelled"          one `updated` change
    a new row of refunds                                        one `inserted` change per column

Values and excluded columns follow the canonical form (state.py), so the effects are empty exactly
when the two states are equal, and two runs from one initial state have equal effects exactly when
they end in equal states.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tbrl.sandbox.schema import Table
from tbrl.sandbox.state import canonical_json, canonical_members, canonical_row
from tbrl.types import JsonObject, RowChange

Row = dict[str, Any]
"""Canonical row: no excluded and no NULL columns."""


def effects(
    initial: sqlite3.Connection,
    terminal: sqlite3.Connection,
    tables: Iterable[Table],
    excluded: Mapping[str, frozenset[str]],
) -> tuple[RowChange, ...]:
    """All changes, sorted: they depend on the two states, not on the order of the writes."""
    changes: list[RowChange] = []
    for table in tables:
        hidden = excluded.get(table.name, frozenset())
        # equal raw rows (by far the most) need no canonical form
        before = Counter(initial.execute(table.select))
        after = Counter(terminal.execute(table.select))
        gone, new = before - after, after - before
        if not gone and not new:
            continue
        changes += _differences(
            table.name,
            _keyed(table.key, _canonical(table, gone, hidden)),
            _keyed(table.key, _canonical(table, new, hidden)),
        )
    return tuple(sorted(changes))


def json_effects(
    initial: Mapping[str, Iterable[JsonObject]],
    terminal: Mapping[str, Iterable[JsonObject]],
    excluded: Mapping[str, frozenset[str]],
) -> tuple[RowChange, ...]:
    """The same for states given as {table: rows}, from servers that keep no SQLite. A table's key
    is `id` where all its rows have one."""
    changes: list[RowChange] = []
    for name in initial.keys() | terminal.keys():
        hidden = excluded.get(name, frozenset())
        before, after = (
            [canonical_members(row, hidden) for row in state.get(name, ())]
            for state in (initial, terminal)
        )
        key = ("id",) if all("id" in row for row in [*before, *after]) else ()
        changes += _differences(name, _keyed(key, before), _keyed(key, after))
    return tuple(sorted(changes))


def _canonical(table: Table, rows: Counter[tuple[Any, ...]], hidden: frozenset[str]) -> list[Row]:
    return [canonical_row(table, row, hidden) for row in rows.elements()]


def _keyed(columns: Sequence[str], rows: Iterable[Row]) -> dict[str, Row]:
    """{key: row}. Where the table has no primary key, or two keys have one canonical form, rows
    are numbered."""
    found: dict[str, Row] = {}
    for row in sorted(rows, key=canonical_json):
        identity = [row.get(column) for column in columns] if columns else row
        key = name = canonical_json(identity).decode()
        number = 1
        while key in found:
            number += 1
            key = f"{name}#{number}"
        found[key] = row
    return found


def _differences(table: str, before: dict[str, Row], after: dict[str, Row]) -> Iterable[RowChange]:
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            row = new if old is None else old
            for column in row or {"": None}:
                text = _spelled(row, column) if row else ""
                yield (
                    RowChange(table, key, "inserted", column, "", text)
                    if old is None
                    else RowChange(table, key, "deleted", column, text, "")
                )
        else:
            for column in old.keys() | new.keys():
                left, right = _spelled(old, column), _spelled(new, column)
                if left != right:
                    yield RowChange(table, key, "updated", column, left, right)


def _spelled(row: Row, column: str) -> str:
    return canonical_json(row.get(column)).decode()
