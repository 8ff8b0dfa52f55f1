"""A scenario's prepared database: schema and seed rows once, then one cheap clone per session.

A clone is `sqlite3.Connection.deserialize` of the prepared bytes (benchmarks/sandbox.py measures
it against the backup API and against running schema and seed again).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from tbrl.domains.base import Domain
from tbrl.errors import ConfigError
from tbrl.sandbox.patch import apply_patch
from tbrl.sandbox.schema import Table, quote, tables_of
from tbrl.types import JsonObject

PAGE_BYTES = 1024
"""Small pages: a table or index takes at least one, and a session should stay small."""


class Snapshot:
    """Prepared bytes of one domain and what is known about its tables. Read-only once built."""

    __slots__ = ("data", "domain", "tables")

    def __init__(self, domain: Domain) -> None:
        """Raises ConfigError when the schema or the seed rows do not load."""
        self.domain = domain
        conn = _connect()
        try:
            conn.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            conn.executescript(domain.schema_sql)
            self.tables: Mapping[str, Table] = {table.name: table for table in tables_of(conn)}
            _seed(conn, domain)
        except sqlite3.Error as error:
            raise ConfigError(f"domain {domain.name!r}: schema or seed: {error}") from error
        self._check_exclusions()
        conn.execute("VACUUM")
        self.data = conn.serialize()
        conn.close()

    def clone(self, patch: Mapping[str, Sequence[JsonObject]]) -> sqlite3.Connection:
        """A new in-memory database: seed rows and the patch, in autocommit mode, foreign keys on.
        Raises ConfigError for a bad patch (see apply_patch)."""
        conn = _connect()
        conn.deserialize(self.data)
        if patch:
            apply_patch(conn, self.tables, patch)
        return conn

    def _check_exclusions(self) -> None:
        for name, columns in self.domain.excluded_columns.items():
            table = self.tables.get(name)
            wrong = sorted(columns - set(table.columns)) if table else sorted(columns)
            keyed = sorted(columns & set(table.key)) if table else []
            if wrong or keyed:
                raise ConfigError(
                    f"domain {self.domain.name!r}: excluded_columns[{name!r}]: {wrong or keyed}"
                    f" {'not in the schema' if wrong else 'part of the primary key'}"
                )


def _connect() -> sqlite3.Connection:
    conn = sqlite3.connect(":memory:", isolation_level=None, cached_statements=64)
    conn.execute("PRAGMA foreign_keys = ON")
    return conn


def _seed(conn: sqlite3.Connection, domain: Domain) -> None:
    conn.execute("BEGIN")
    for name, rows in domain.seed.items():
        for row in rows:
            columns = ", ".join(map(quote, row))
            marks = ", ".join("?" * len(row))
            conn.execute(
                f"INSERT INTO {quote(name)} ({columns}) VALUES ({marks})", list(row.values())
            )
    conn.execute("COMMIT")
