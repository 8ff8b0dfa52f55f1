"""How many isolated business backends a machine serves, and what each costs.

    python benchmarks/sandbox.py [--quick] [--sessions 20000] [--domain rental]

A session is: open (database copy, patch, MCP server), the task's golden calls through MCP, effects,
canonical hash, close. Alternatives are measured in the same run on the same tasks: one process per
session (a stdio MCP server), one high-level MCPServer with all tools registered per session, other
ways to copy a database, and other paths through the SDK. One process, one event loop: what
concurrency costs, not what more cores would give.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import inspect
import itertools
import os
import sqlite3
import statistics
import sys
import time
import typing
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx2
import mcp.server.stdio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer, Server
from rich.console import Console
from rich.table import Table

import tbrl
from tbrl.config import SandboxConfig
from tbrl.domains.base import Domain, World
from tbrl.domains.names import names_of
from tbrl.domains.registry import all_domains, domain_of
from tbrl.sandbox.backend import Backend
from tbrl.sandbox.embedded import EmbeddedSandbox
from tbrl.sandbox.external import ExternalSandbox
from tbrl.sandbox.http import HttpGateway
from tbrl.sandbox.scenario import Scenario, compile_scenario
from tbrl.sandbox.session import EmbeddedSession
from tbrl.sandbox.snapshot import Snapshot, _connect, _seed
from tbrl.tasks.embedded import generate_tasks
from tbrl.types import Task

CONSOLE = Console(width=110)
CONCURRENCY = (1, 8, 32, 256)
GOALS = {
    "sessions/s": 75.0,
    "open p95 ms": 5.0,
    "call p95 ms in process": 2.0,
    "call p95 ms over HTTP": 10.0,
    "MB a session": 1.0,
}


class Samples:
    """Milliseconds by operation."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[float]] = {}

    async def timed(self, name: str, waiting: Awaitable[object]) -> object:
        started = time.perf_counter()
        result = await waiting
        self.by_name.setdefault(name, []).append((time.perf_counter() - started) * 1e3)
        return result

    def quantile(self, name: str, q: int) -> float:
        return statistics.quantiles(self.by_name[name], n=100, method="inclusive")[q - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--sessions", type=int, default=20_000, help="sessions of the growth run")
    parser.add_argument("--domain", default=all_domains()[0].name)
    parser.add_argument("--serve-stdio", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_stdio:
        asyncio.run(serve_stdio(domain_of(options.domain)))
        return
    share = 10 if options.quick else 1
    domain = domain_of(options.domain)
    drafted = generate_tasks([domain], "compact", 4, 0, "candidate", names_of("candidate"))
    tasks = [draft.task for draft in drafted]
    CONSOLE.print(
        f"domain {domain.name}/compact, {len(tasks)} tasks, load {os.getloadavg()[0]:.1f}"
    )
    asyncio.run(measure(domain, tasks, share, options.sessions // share))


async def measure(domain: Domain, tasks: Sequence[Task], share: int, growth: int) -> None:
    # memory first: later parts would leave room in the heap that new sessions would fill unseen
    megabytes = await memory(domain, tasks, 1000 // share)
    rate = await throughput(domain, tasks, 2000 // share)
    latencies = await latency(domain, tasks, 1000 // share)
    await grow(domain, tasks, growth)
    await protocol_paths(domain, tasks, 300 // share)
    copies(domain, 500 // share)
    await alternatives(domain, tasks, share, rate)
    goals = Table(title="goals (two quiet cores)")
    for column in ("what", "goal", "measured", ""):
        goals.add_column(column, justify="left" if column == "what" else "right")
    measured = dict(zip(GOALS, (rate, *latencies, megabytes), strict=True))
    for name, goal in GOALS.items():
        met = measured[name] >= goal if name == "sessions/s" else measured[name] <= goal
        goals.add_row(name, f"{goal:g}", f"{measured[name]:.3g}", "met" if met else "MISSED")
    CONSOLE.print(goals)


def sandbox_of(domain: Domain) -> EmbeddedSandbox:
    return EmbeddedSandbox({domain.name: domain}, SandboxConfig(max_sessions=4096))


async def play(sandbox: EmbeddedSandbox, task: Task, samples: Samples | None = None) -> None:
    """One whole session."""
    watch = samples or Samples()
    session = await watch.timed("open", sandbox.open(task.public))
    assert isinstance(session, EmbeddedSession)
    for call in task.grading.expected_tool_interactions:
        await watch.timed("call", session.call_tool(call.tool, call.arguments))
    await watch.timed("effects, hash, close", session.finish())


async def throughput(domain: Domain, tasks: Sequence[Task], sessions: int) -> float:
    """Sessions per second at each concurrency; returns the lowest."""
    table = Table(title=f"whole sessions with MCP in the path ({sessions} each)")
    for column in ("concurrency", "sessions/s", "CPU ms a session", "open p95 ms", "call p95 ms"):
        table.add_column(column, justify="right")
    rates = []
    for width in CONCURRENCY:
        sandbox, samples = sandbox_of(domain), Samples()
        waiting = itertools.islice(itertools.cycle(tasks), sessions)

        async def worker(
            sandbox: EmbeddedSandbox = sandbox, samples: Samples = samples, waiting=waiting
        ) -> None:
            for task in waiting:
                await play(sandbox, task, samples)

        await play(sandbox, tasks[0])
        started, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(width)))
        rates.append(sessions / (time.perf_counter() - started))
        table.add_row(
            str(width),
            f"{rates[-1]:.0f}",
            f"{(time.process_time() - cpu) / sessions * 1e3:.2f}",
            f"{samples.quantile('open', 95):.2f}",
            f"{samples.quantile('call', 95):.2f}",
        )
    CONSOLE.print(table)
    return min(rates)


async def latency(
    domain: Domain, tasks: Sequence[Task], sessions: int
) -> tuple[float, float, float]:
    """Open, call in process, call over HTTP: p95 of each, ms; concurrency 1. The HTTP client shares
    the loop with the server, so its own work is in the figures."""
    sandbox, samples = sandbox_of(domain), Samples()
    for task in itertools.islice(itertools.cycle(tasks), sessions):
        await play(sandbox, task, samples)
    gateway = HttpGateway()
    await gateway.start()
    for task in itertools.islice(itertools.cycle(tasks), max(10, sessions // 10)):
        session = await sandbox.open(task.public)
        token = await gateway.expose(session)
        async with AsyncExitStack() as stack:
            headers = {"Authorization": f"Bearer {token}"}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers))
            client = Client(streamable_http_client(gateway.url, http_client=http))
            await samples.timed("open over HTTP", stack.enter_async_context(client))
            for call in task.grading.expected_tool_interactions:
                waiting = client.call_tool(call.tool, call.arguments)
                await samples.timed("call over HTTP", waiting)
        await session.finish()
    await gateway.stop()
    table = Table(title="latency at concurrency 1, ms")
    for column in ("operation", "p50", "p95", "p99", "n"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    for name, values in samples.by_name.items():
        quantiles = [f"{samples.quantile(name, q):.3f}" for q in (50, 95, 99)]
        table.add_row(name, *quantiles, str(len(values)))
    CONSOLE.print(table)
    p95 = [samples.quantile(name, 95) for name in ("open", "call", "call over HTTP")]
    return p95[0], p95[1], p95[2]


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def memory(domain: Domain, tasks: Sequence[Task], sessions: int) -> float:
    """Resident MB of one live session that has made its calls."""
    sandbox = sandbox_of(domain)
    await play(sandbox, tasks[0])
    gc.collect()
    before = resident_mb()
    live = []
    for task in itertools.islice(itertools.cycle(tasks), sessions):
        session = await sandbox.open(task.public)
        for call in task.grading.expected_tool_interactions:
            await session.call_tool(call.tool, call.arguments)
        live.append(session)
    each = (resident_mb() - before) / sessions
    await sandbox.close_all()
    CONSOLE.print(f"memory: {each * 1e3:.0f} kB a live session ({sessions} live at once)")
    return each


async def grow(domain: Domain, tasks: Sequence[Task], sessions: int) -> None:
    """Resident MB while sessions come and go."""
    sandbox = sandbox_of(domain)
    marks = []
    for number, task in enumerate(itertools.islice(itertools.cycle(tasks), sessions)):
        if number % max(1, sessions // 8) == 0:
            gc.collect()
            marks.append(resident_mb())
        await play(sandbox, task)
    gc.collect()
    marks.append(resident_mb())
    shown = " ".join(f"{mark:.1f}" for mark in marks)
    CONSOLE.print(f"growth: resident MB over {sessions} sessions: {shown}")
    CONSOLE.print(f"        second half: {marks[-1] - marks[len(marks) // 2]:+.2f} MB")


async def per_call_ms(call: Callable[[], Awaitable[object]], times: int) -> float:
    await call()
    started = time.perf_counter()
    for _ in range(times):
        await call()
    return (time.perf_counter() - started) / times * 1e3


async def protocol_paths(domain: Domain, tasks: Sequence[Task], times: int) -> None:
    """One reading call by each in-process path through the official SDK, and without it."""
    sandbox = sandbox_of(domain)
    session = await sandbox.open(tasks[0].public)
    name, arguments = first_read(sandbox.scenario(tasks[0].public.scenario_id), tasks[0])
    backend = Backend(
        sandbox.scenario(tasks[0].public.scenario_id),
        tasks[0].public.initial_state_patch,
        SandboxConfig(),
    )

    async def bare() -> None:
        backend.execute(name, arguments)

    found = {
        "session (SDK dispatcher pair)": await per_call_ms(
            partial(session.call_tool, name, arguments), times
        ),
        "no protocol (backend alone)": await per_call_ms(bare, times),
    }
    for mode in ("auto", "legacy"):
        async with Client(session.server, mode=mode) as client:
            found[f"SDK client, {mode}"] = await per_call_ms(
                partial(client.call_tool, name, arguments), times
            )
    await session.close()
    ratios(f"one call of {name}, ms", found)


def first_read(scenario: Scenario, task: Task) -> tuple[str, dict[str, object]]:
    for call in task.grading.expected_tool_interactions:
        if not scenario.tools[call.tool].tool.writes:
            return call.tool, call.arguments
    raise SystemExit(f"{task.task_ref} reads nothing")


def copies(domain: Domain, times: int) -> None:
    """Ways to get a fresh database."""
    snapshot = Snapshot(domain)
    source = snapshot.clone({})

    def backed_up() -> sqlite3.Connection:
        conn = _connect()
        source.backup(conn)
        return conn

    def built() -> sqlite3.Connection:
        conn = _connect()
        conn.executescript(domain.schema_sql)
        _seed(conn, domain)
        return conn

    found = {}
    for name, make in {
        "deserialize (used)": lambda: snapshot.clone({}),
        "backup API": backed_up,
        "schema and seed again": built,
    }.items():
        started = time.perf_counter()
        for _ in range(times):
            make().close()
        found[name] = (time.perf_counter() - started) / times * 1e3
    ratios(f"a fresh database of {len(snapshot.data) // 1024} KiB, ms", found)


async def alternatives(domain: Domain, tasks: Sequence[Task], share: int, rate: float) -> None:
    """Sessions per second of other ways to isolate them, concurrency 1."""
    found = {"this sandbox (slowest of above)": rate}
    few = max(3, 40 // share)
    started = time.perf_counter()
    for task in itertools.islice(itertools.cycle(tasks), few):
        await play_high_level(domain, task)
    found["one high-level MCPServer a session"] = few / (time.perf_counter() - started)
    path = f"PYTHONPATH={Path(tbrl.__file__).parent.parent}"
    command = f"stdio:env {path} {sys.executable} {__file__} --serve-stdio --domain {domain.name}"
    external = ExternalSandbox(SandboxConfig(kind="mcp", url=command, call_deadline_s=60))
    few = max(2, 10 // share)
    started = time.perf_counter()
    for task in itertools.islice(itertools.cycle(tasks), few):
        session = await external.open(task.public)
        for call in task.grading.expected_tool_interactions:
            await session.call_tool(call.tool, call.arguments)
        await session.close()
    found["one process a session (stdio MCP)"] = few / (time.perf_counter() - started)
    ratios("whole sessions, per second", found, more_is_better=True)


async def play_high_level(domain: Domain, task: Task) -> None:
    """The usual way: decorate each tool on a new high-level server for each session."""
    conn = Snapshot(domain).clone(task.public.initial_state_patch)
    server = MCPServer(domain.name)
    for tool in domain.sizes["compact"].tools:
        server.add_tool(bound(tool.call, World(conn)), name=tool.spec.name)
    async with Client(server) as client:
        for call in task.grading.expected_tool_interactions:
            await client.call_tool(call.tool, call.arguments)
    conn.close()


def bound(function: Callable[..., object], world: World) -> Callable[..., object]:
    """The tool as an async function without its first parameter, as the SDK wants it."""

    async def call(**arguments: object) -> object:
        return function(world, **arguments)

    hints = typing.get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(annotation=hints[p.name]) for p in parameters]
    )
    call.__doc__ = function.__doc__ or function.__name__
    return call


async def serve_stdio(domain: Domain) -> None:
    """One session in its own process."""
    scenario = compile_scenario(f"{domain.name}/compact", {domain.name: domain})
    backend = Backend(scenario, {}, SandboxConfig())
    session = EmbeddedSession("stdio", backend, time.monotonic)
    server: Server = session.server
    async with mcp.server.stdio.stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def ratios(title: str, found: dict[str, float], more_is_better: bool = False) -> None:
    """A table; the first entry is ours, the last column says how much worse the others are."""
    table = Table(title=title)
    for column in ("", "measured", "ratio to the first"):
        table.add_column(column, justify="right" if column else "left")
    first = next(iter(found.values()))
    for name, value in found.items():
        ratio = first / value if more_is_better else value / first
        table.add_row(name, f"{value:.3g}", f"{ratio:.2f}x")
    CONSOLE.print(table)


if __name__ == "__main__":
    main()
