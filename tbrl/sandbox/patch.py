"""A task's initial-state patch: rows upserted by primary key on top of the scenario's seed rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from tbrl.errors import ConfigError
from tbrl.sandbox.schema import Table, quote
from tbrl.types import JsonObject


def apply_patch(
    conn: sqlite3.Connection,
    tables: Mapping[str, Table],
    patch: Mapping[str, Sequence[JsonObject]],
) -> None:
    """Upsert every row, in one transaction. A row that exists keeps the columns that the patch does
    not name; an empty list changes nothing. Foreign keys are checked when all rows are in.

    Raises ConfigError (one line) for an unknown table or column, a row without its primary key, a
    value that SQLite cannot hold, or a violated constraint; the database is then unchanged.
    """
    conn.execute("BEGIN")
    try:
        conn.execute("PRAGMA defer_foreign_keys = ON")
        for name, rows in patch.items():
            table = tables.get(name)
            if table is None:
                raise ConfigError(
                    f"initial_state_patch: no table {name!r}; tables: {', '.join(tables)}"
                )
            for row in rows:
                _upsert(conn, table, row)
        conn.execute("COMMIT")
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        conn.execute("ROLLBACK")
        raise ConfigError(f"initial_state_patch: {error}") from None
    except ConfigError:
        conn.execute("ROLLBACK")
        raise


def _upsert(conn: sqlite3.Connection, table: Table, row: JsonObject) -> None:
    unknown = sorted(set(row) - set(table.columns))
    if unknown:
        raise ConfigError(
            f"initial_state_patch: table {table.name!r} has no column {unknown[0]!r};"
            f" columns: {', '.join(table.columns)}"
        )
    missing = [column for column in table.key if row.get(column) is None]
    if missing or not table.key:
        raise ConfigError(
            f"initial_state_patch: a row of table {table.name!r} needs its primary key"
            f" ({', '.join(table.key) or 'the table has none'})"
        )
    where = " AND ".join(f"{quote(c)} = ?" for c in table.key)
    key = [row[c] for c in table.key]
    others = [c for c in row if c not in table.key]
    found = conn.execute(f"SELECT 1 FROM {quote(table.name)} WHERE {where}", key).fetchone()
    if found is None:
        names = ", ".join(map(quote, row))
        marks = ", ".join("?" * len(row))
        conn.execute(
            f"INSERT INTO {quote(table.name)} ({names}) VALUES ({marks})",
            [_storable(value) for value in row.values()],
        )
    elif others:
        assignments = ", ".join(f"{quote(c)} = ?" for c in others)
        conn.execute(
            f"UPDATE {quote(table.name)} SET {assignments} WHERE {where}",
            [*(_storable(row[c]) for c in others), *key],
        )


def _storable(value: Any) -> Any:
    """Lists and objects are stored as JSON text."""
    return orjson.dumps(value).decode() if isinstance(value, list | dict) else value
