"""Sessions of a running ThinkingBox session proxy, over its plain HTTP interface.

The proxy runs any name it is sent, `__reserved__server_tool` before its own allowlist, and a call
that it gave up on still runs to its end. So: only advertised names leave this process; nothing with
a reserved name ever does; a call is sent once, and one without an answer ends the session. The
golden calls are never part of a session: the grader replays them in a session of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from tbrl.config import SandboxConfig
from tbrl.errors import BackendFailure, ConfigError, ModelError
from tbrl.sandbox.arguments import check_values
from tbrl.sandbox.backend import Clock
from tbrl.sandbox.effects import json_effects
from tbrl.sandbox.external import RESERVED
from tbrl.sandbox.leases import Leases
from tbrl.sandbox.thinkingbox_scenarios import UNSTABLE, ProxyScenario
from tbrl.types import JsonObject, PublicTask, TerminalState, ToolResult, ToolSpec

_OPEN_TIMEOUT_S = 270.0
"""The proxy starts a process per session; on a busy machine that takes its time."""
_ERROR_TEXTS = ("Error calling tool", "Unknown tool", "Input validation error")


class ThinkingBoxSandbox(Leases["ThinkingBoxSession"]):
    """Implements interfaces.Sandbox on `config.url`, the address of the proxy."""

    def __init__(
        self,
        config: SandboxConfig,
        scenarios: Mapping[str, ProxyScenario],
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Raises ConfigError for an address that is not http(s)."""
        if not config.url.startswith(("http://", "https://")):
            raise ConfigError(f"sandbox.url={config.url!r}: must be the proxy's http(s) address")
        super().__init__(config.max_sessions, config.session_lease_s, clock)
        self._config = config
        self._scenarios = scenarios
        self._transport = transport

    async def open(self, task: PublicTask) -> ThinkingBoxSession:
        """A session with the task's patch. Raises BackendFailure when the proxy does not give one,
        ConfigError for an unknown scenario."""
        scenario = self._scenarios.get(task.scenario_id)
        if scenario is None:
            raise ConfigError(
                f"{task.task_ref}: no scenario {task.scenario_id!r};"
                f" scenarios: {', '.join(self._scenarios) or 'none'}"
            )
        await self.place()
        session = ThinkingBoxSession(self._config, scenario, self._transport, self._clock)
        try:
            await session.start(task)
        except BaseException:
            self.give_back()
            await session.close()
            raise
        self.add(session)
        return session


class ThinkingBoxSession:
    """Implements interfaces.SandboxSession."""

    def __init__(
        self,
        config: SandboxConfig,
        scenario: ProxyScenario,
        transport: httpx.AsyncBaseTransport | None,
        clock: Clock,
    ) -> None:
        self.session_id = str(uuid.uuid4())
        self.tools: tuple[ToolSpec, ...] = scenario.builtin_tools
        self.policy = scenario.policy
        self.last_used = clock()
        self.on_close: list[Callable[[], None]] = []
        self._config = config
        self._scenario = scenario
        self._clock = clock
        self._advertised: frozenset[str] = frozenset()
        self._http = httpx.AsyncClient(base_url=config.url.rstrip("/") + "/", transport=transport)
        self._dead = ""
        self._closed = False

    async def start(self, task: PublicTask) -> None:
        """Create the session and read its tool list. Raises BackendFailure."""
        world = {**self._scenario.world, "data_patch": task.initial_state_patch}
        created = {
            "server_config": {
                self._scenario.server: {k: v for k, v in world.items() if v is not None}
            },
            "available_tools": list(self._scenario.tools),
            "timeout": self._config.call_deadline_s,
        }
        await self._post("session_create", created, _OPEN_TIMEOUT_S)
        listed = await self._post("list_tools", {}, self._config.call_deadline_s)
        specs = tuple(
            ToolSpec(name, tool.get("description") or "", _closed_schema(tool["inputSchema"]))
            for name, tool in listed["tools"].items()
            if name in self._scenario.tools and not name.startswith(RESERVED)
        )
        self._advertised = frozenset(spec.name for spec in specs)
        self.tools = self._scenario.builtin_tools + specs

    async def call_tool(self, name: str, arguments: JsonObject) -> ToolResult:
        """See interfaces. Sent at most once."""
        self.last_used = self._clock()
        if any(tool.name == name for tool in self._scenario.builtin_tools):
            return ToolResult("")
        if name not in self._advertised:
            shown = name[:60].encode(errors="replace").decode()
            return ToolResult(f"Error: function '{shown}' does not exist", is_error=True)
        if self._dead:
            raise BackendFailure("backend", name, f"the session is dead: {self._dead}")
        try:
            check_values(arguments)
        except ModelError as error:
            return ToolResult(str(error), is_error=True)
        call = {"tool_name": name, "arguments": arguments}
        text = str(await self._post("call_tool", call, self._config.call_deadline_s))
        if len(text.encode()) > self._config.max_result_bytes:
            return ToolResult("the result is too large; ask for less", is_error=True)
        return ToolResult(text, is_error=text.startswith(_ERROR_TEXTS))

    async def finish(self) -> TerminalState:
        """The proxy's own state hash and the changes of the whole state, then close. `writes` is 0:
        the proxy does not say which tools write."""
        try:
            if self._dead:
                raise BackendFailure("backend", "get_effects", f"the session is dead: {self._dead}")
            found = await self._post("get_effects", {}, self._config.call_deadline_s)
            try:
                state = found[self._scenario.server]
                changes = json_effects(
                    state["initial_db_state"], state["result_db_state"], UNSTABLE
                )
                return TerminalState(str(state["result_db_hash"]), changes, 0)
            except (KeyError, TypeError, AttributeError):
                raise BackendFailure("backend", "get_effects", "the state is missing") from None
        finally:
            await self.close()

    async def close(self) -> None:
        """Destroy the session over there. Idempotent; what cannot be reached is left to the proxy's
        own garbage collection."""
        if self._closed:
            return
        self._closed = True
        for hook in self.on_close:
            hook()
        self._dead = self._dead or "closed"
        with contextlib.suppress(BackendFailure):
            await self._post("session_destroy", {}, self._config.call_deadline_s)
        await self._http.aclose()

    async def _post(self, path: str, body: JsonObject, deadline_s: float) -> Any:
        """One request, never repeated. Anything but success ends the session."""
        where = str(body.get("tool_name", path))
        sent = {"session_id": self.session_id, **body}
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._http.post(path, json=sent, timeout=None)
            content = answer.json()
            value = content["content"]["value"]
        except TimeoutError:
            self._dead = f"{where} passed its deadline"
            raise BackendFailure("deadline", where, f"no answer within {deadline_s:g} s") from None
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            self._dead = f"{where}: {type(error).__name__}"
            raise BackendFailure("backend", where, self._dead) from None
        if not answer.is_success or content.get("success") is not True:
            self._dead = f"status {answer.status_code}: {str(value)[:200]}"
            raise BackendFailure("backend", where, self._dead)
        return value


def _closed_schema(schema: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {}, **schema, "additionalProperties": False}
