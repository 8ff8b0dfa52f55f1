"""What SQL a tool may run: an authorizer that knows only rows, and limits on work and size.

The limits are of two kinds. Work that the policy asked for is bounded by counts (virtual machine
steps, bytes), so the same call is refused on any machine: a tool error. The wall clock is bounded
too, but a slow machine is nobody's mistake: a backend failure.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from tbrl.errors import BackendFailure, ModelError

_STEP = 4096
"""Virtual machine instructions between two looks at the limits."""
MAX_STEPS = 20_000_000
"""Instructions of one call: about a quarter of a second, a thousand times a usual call."""
_MAX_PAGES = 16_384
"""Of 1 KiB: how far a session's database can grow."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
}
_ROWS = {
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE,
    # the schema table is safe without `PRAGMA writable_schema`, which is refused
    sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE,
}  # fmt: skip
_FUNCTIONS_REFUSED = {
    "load_extension", "fts3_tokenizer",
    # not part of the world's state: a frozen world has no chance and no wall clock
    "random", "randomblob", "date", "time", "datetime", "julianday", "unixepoch", "strftime",
    "current_date", "current_time", "current_timestamp",
}  # fmt: skip


class Guard:
    """Attached to one session's connection. `begin` and `end` bracket a call: between them only
    rows can be read and written; the transaction itself is the guard's."""

    __slots__ = (
        "_clock",
        "_conn",
        "_deadline",
        "_open",
        "_seconds",
        "_steps",
        "_stopped",
        "_where",
    )

    def __init__(
        self, conn: sqlite3.Connection, statement_ms: int, clock: Callable[[], float]
    ) -> None:
        self._conn = conn
        self._seconds = statement_ms / 1000
        self._clock = clock
        self._steps = 0
        self._deadline = 0.0
        self._stopped = ""
        self._where = ""
        self._open = False
        conn.execute(f"PRAGMA max_page_count = {_MAX_PAGES}")
        for limit, value in _LIMITS.items():
            conn.setlimit(limit, value)
        conn.set_authorizer(self._authorize)
        conn.set_progress_handler(self._progress, _STEP)

    def begin(self, where: str) -> None:
        """Start the call's transaction and its limits."""
        self._steps = 0
        self._stopped = ""
        self._where = where
        self._deadline = self._clock() + self._seconds
        self._conn.execute("BEGIN")
        self._open = True

    def end(self, commit: bool) -> None:
        """Commit or roll back. A commit can raise sqlite3.IntegrityError (deferred constraints);
        nothing is then kept."""
        self._open = False
        if not self._conn.in_transaction:
            return  # SQLite rolled back by itself (interrupt, disk full)
        if not commit:
            self._conn.execute("ROLLBACK")
            return
        try:
            self._conn.execute("COMMIT")
        except sqlite3.Error:
            self._conn.execute("ROLLBACK")
            raise

    def explain(self) -> None:
        """After an interrupted statement: raises what it means. Returns when none was."""
        if self._stopped == "steps":
            raise ModelError("the request asks for too much work; narrow it down")
        if self._stopped == "time":
            raise BackendFailure(
                "deadline", self._where, f"statement ran longer than {self._seconds:g} s"
            )

    def _progress(self) -> int:
        if not self._open:
            return 0  # reading the terminal state is nobody's call
        self._steps += _STEP
        if self._steps > MAX_STEPS:
            self._stopped = "steps"
        elif self._clock() > self._deadline:
            self._stopped = "time"
        return bool(self._stopped)

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, *_: object
    ) -> int:
        if action in _ROWS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            refused = (second or "").lower() in _FUNCTIONS_REFUSED
            return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_TRANSACTION and not self._open:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and first == "data_version" and second is None:
            return sqlite3.SQLITE_OK  # full-text search asks it of its own tables
        return sqlite3.SQLITE_DENY
