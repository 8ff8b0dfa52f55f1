"""What a prepared database looks like: its business tables, their columns and primary keys."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """One ordinary table. Virtual tables (full-text indexes) and their shadows are not business
    state and have no Table."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """Primary key columns in key order; empty where the table declares none."""
    select: str
    """Reads all columns in the order of `columns`, rows in any order."""


def quote(identifier: str) -> str:
    """An SQL identifier, quoted."""
    return '"' + identifier.replace('"', '""') + '"'


def tables_of(conn: sqlite3.Connection) -> tuple[Table, ...]:
    """Ordinary tables of the main database, by name."""
    listed = conn.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
        " AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
    ).fetchall()
    return tuple(_table(conn, name) for (name,) in listed)


def _table(conn: sqlite3.Connection, name: str) -> Table:
    info = conn.execute(
        "SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (name,)
    ).fetchall()
    columns = tuple(column for column, _ in info)
    key = tuple(column for column, pk in sorted(info, key=lambda row: row[1]) if pk)
    select = f"SELECT {', '.join(map(quote, columns))} FROM {quote(name)}"
    return Table(name, columns, key, select)
