"""One business backend: a scenario's database copy with its tools. No protocol, no clock of its own
but the world's; the grader replays golden interactions on it, sessions put MCP around it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

import orjson

from tbrl.config import SandboxConfig
from tbrl.domains.base import Tool, World
from tbrl.errors import BackendFailure, ModelError
from tbrl.sandbox.effects import effects
from tbrl.sandbox.guard import Guard
from tbrl.sandbox.scenario import Scenario
from tbrl.sandbox.state import state_hash
from tbrl.types import JsonObject, TerminalState, ToolResult

_TOO_LARGE = "refused: a number is too large"
Clock = Callable[[], float]
"""Monotonic seconds."""


class Backend:
    """Lives on the thread that made it (SQLite refuses another)."""

    def __init__(
        self,
        scenario: Scenario,
        patch: Mapping[str, Sequence[JsonObject]],
        config: SandboxConfig,
        clock: Clock = time.monotonic,
    ) -> None:
        """Raises ConfigError for a bad patch."""
        self.scenario = scenario
        self.writes = 0
        self._patch = patch
        self._config = config
        self._clock = clock
        self._conn = scenario.snapshot.clone(patch)
        self._guard = Guard(self._conn, config.statement_ms, clock)
        self._world = World(self._conn)
        self._dead = ""

    def execute(self, name: str, arguments: JsonObject) -> ToolResult:
        """Run one tool as one transaction: kept when it succeeds, rolled back otherwise.

        The policy's mistakes are answered with is_error. Raises BackendFailure when the tool broke
        or took longer than the deadline; the backend is then dead, and the call is never tried
        again.
        """
        compiled = self.scenario.tools.get(name)
        if compiled is None:
            return ToolResult(self._unknown(name), is_error=True)
        if self._dead:
            raise BackendFailure("backend", name, f"the session is dead: {self._dead}")
        try:
            checked = compiled.check(arguments)
        except ModelError as error:
            return ToolResult(str(error), is_error=True)
        if compiled.tool.spec.ends_turn:
            return ToolResult("")
        try:
            return self._run(compiled.tool, checked)
        except BackendFailure as failure:
            self._dead = failure.detail
            raise

    def terminal(self) -> TerminalState:
        """Canonical hash and effects of the present state; changes nothing. Raises BackendFailure
        when the database cannot be read."""
        excluded = self.scenario.domain.excluded_columns
        tables = self.scenario.snapshot.tables.values()
        # the initial state is made anew instead of kept: a clone is cheaper than its memory
        initial = self.scenario.snapshot.clone(self._patch)
        try:
            return TerminalState(
                state_hash(self._conn, tables, excluded),
                effects(initial, self._conn, tables, excluded),
                self.writes,
            )
        except sqlite3.Error as error:
            raise BackendFailure("backend", "terminal state", str(error)) from error
        finally:
            initial.close()

    def close(self) -> None:
        """Drop the database. Idempotent."""
        self._dead = self._dead or "closed"
        self._conn.close()

    def _run(self, tool: Tool, arguments: JsonObject) -> ToolResult:
        name = tool.spec.name
        started = self._clock()
        self._guard.begin(name)
        committed = False
        try:
            text = self._text(tool.call(self._world, **arguments))
            if self._clock() - started > self._config.call_deadline_s:
                raise BackendFailure(
                    "deadline", name, f"ran longer than {self._config.call_deadline_s:g} s"
                )
            self._guard.end(commit=True)
            committed = True
        except ModelError as error:
            return ToolResult(str(error), is_error=True)
        except sqlite3.IntegrityError as error:
            return ToolResult(f"refused by the database: {error}", is_error=True)
        except sqlite3.Error as error:
            return ToolResult(self._explained(error, name), is_error=True)
        except OverflowError:
            return ToolResult(_TOO_LARGE, is_error=True)
        except BackendFailure:
            raise
        except Exception as error:
            raise BackendFailure("backend", name, f"{type(error).__name__}: {error}") from error
        finally:
            if not committed:
                self._guard.end(commit=False)
        self.writes += tool.writes
        return ToolResult(text)

    def _text(self, result: object) -> str:
        text = result if isinstance(result, str) else orjson.dumps(result).decode()
        limit = self._config.max_result_bytes
        if len(text) > limit or len(text.encode()) > limit:
            raise ModelError(f"the result is larger than {limit} bytes; ask for less")
        return text

    def _explained(self, error: sqlite3.Error, name: str) -> str:
        """Words for a limit that the policy ran into; raises BackendFailure for anything else."""
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_INTERRUPT:
            try:
                self._guard.explain()
            except ModelError as limit:
                return str(limit)
        if str(error) == "integer overflow":
            return _TOO_LARGE
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG):
            return "refused by the database: no room for so much data"
        raise BackendFailure("backend", name, f"{type(error).__name__}: {error}") from error

    def _unknown(self, name: str) -> str:
        shown = name[:60].encode(errors="replace").decode()
        near = get_close_matches(shown, self.scenario.tools, n=1)
        # a long list would cost the policy its context
        hint = f"did you mean {near[0]!r}?" if near else f"tools: {', '.join(self.scenario.tools)}"
        return f"there is no tool {shown!r}; {hint}"
