"""Golden states of every embedded domain: the same in every process, equal to nothing else, and
reached by nobody who does nothing."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fixture_domain import LIBRARY

from tbrl.config import SandboxConfig
from tbrl.domains.base import Domain
from tbrl.domains.names import names_of
from tbrl.domains.registry import all_domains
from tbrl.rewards.golden import GoldenReplay
from tbrl.rewards.grader import StateGrader
from tbrl.rewards.judge import Verdict
from tbrl.sandbox.backend import Backend
from tbrl.tasks.check import problems_of
from tbrl.tasks.embedded import generate_tasks
from tbrl.types import JsonObject, PublicTask, Scored, Task, TerminalState

DOMAINS = {domain.name: domain for domain in [LIBRARY, *all_domains()]}
SIZES = [
    (name, size)
    for name, domain in DOMAINS.items()
    for size, content in domain.sizes.items()
    if content.templates
]
REPLAY = GoldenReplay(DOMAINS)
Call = tuple[str, JsonObject]


def tasks_of(name: str, size: str, per_template: int = 2) -> list[Task]:
    names = names_of("candidate")
    drafted = generate_tasks([DOMAINS[name]], size, per_template, 0, "candidate", names)
    return [draft.task for draft in drafted]


def golden_calls(task: Task) -> list[Call]:
    return [(call.tool, call.arguments) for call in task.grading.expected_tool_interactions]


def played(public: PublicTask, calls: list[Call]) -> tuple[TerminalState, Any]:
    """Terminal state after the calls (refused ones change nothing), and the plain database."""
    backend = Backend(
        REPLAY.scenario(public.scenario_id), public.initial_state_patch, SandboxConfig()
    )
    for name, arguments in calls:
        backend.execute(name, arguments)
    plain = plain_state(backend._conn, DOMAINS[public.domain])
    terminal = backend.terminal()
    backend.close()
    return terminal, plain


def plain_state(conn: Any, domain: Domain) -> dict[str, Counter[Any]]:
    """An independent reading of a database: all rows of all tables, columns in order, excluded
    ones left out, numbers as decimals."""
    found = {}
    names = conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    virtual = [
        name
        for (name,) in conn.execute(
            "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL%'"
        )
    ]
    for (name,) in names:
        if name.startswith("sqlite_") or any(name.startswith(v) for v in virtual):
            continue
        cursor = conn.execute(f"SELECT * FROM {name}")
        hidden = domain.excluded_columns.get(name, frozenset())
        kept = [i for i, column in enumerate(cursor.description) if column[0] not in hidden]
        found[name] = Counter(tuple(plain_value(row[i]) for i in kept) for row in cursor)
    return found


def plain_value(value: Any) -> Any:
    return ("n", Decimal(str(value)).normalize()) if isinstance(value, int | float) else value


def altered(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return value[:-1]
    return value


def mutations(task: Task) -> Iterator[tuple[str, list[Call]]]:
    """The golden calls with one writing call dropped, doubled, moved or altered in one argument."""
    calls = golden_calls(task)
    scenario = REPLAY.scenario(task.public.scenario_id)
    for i, (name, arguments) in enumerate(calls):
        if not scenario.tools[name].tool.writes:
            continue
        yield f"dropped {i}", calls[:i] + calls[i + 1 :]
        yield f"doubled {i}", [*calls[: i + 1], calls[i], *calls[i + 1 :]]
        yield f"first {i}", [calls[i], *calls[:i], *calls[i + 1 :]]
        yield f"last {i}", [*calls[:i], *calls[i + 1 :], calls[i]]
        properties = scenario.tools[name].tool.spec.parameters["properties"]
        for argument, value in arguments.items():
            for other in properties[argument].get("enum", [altered(value)]):
                if other != value:
                    changed = (name, {**arguments, argument: other})
                    yield f"{argument} of {i} = {other!r}", [*calls[:i], changed, *calls[i + 1 :]]


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_every_generated_task_is_valid(name: str, size: str) -> None:
    problems = [p for task in tasks_of(name, size, 4) for p in problems_of(task, REPLAY)]
    assert problems == []


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_doing_nothing_passes_only_where_it_is_marked(name: str, size: str) -> None:
    for task in tasks_of(name, size, 4):
        golden = REPLAY.golden(task)
        untouched, _ = played(task.public, [])
        assert (untouched.state_hash == golden.state_hash) == task.grading.null_passes, (
            task.task_ref
        )


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_a_mutated_golden_is_graded_0_exactly_when_the_databases_differ(
    name: str, size: str
) -> None:
    seen = Counter[bool]()

    class Always:
        async def verdict(self, rubric: str, message: str) -> Verdict:
            return Verdict(True)

    for task in tasks_of(name, size):
        grader = StateGrader([task], REPLAY, Always())
        golden, right = played(task.public, golden_calls(task))
        assert golden.state_hash == REPLAY.golden(task).state_hash
        for what, calls in mutations(task):
            terminal, state = played(task.public, calls)
            outcome = asyncio.run(grader.grade(task.task_ref, terminal, "")).outcome
            assert isinstance(outcome, Scored)
            assert (outcome.reward == 1.0) == (state == right), f"{task.task_ref}: {what}"
            assert bool(outcome.differences) == (state != right), f"{task.task_ref}: {what}"
            seen[state == right] += 1
    assert seen[False] >= 2 * len(DOMAINS[name].sizes[size].templates)


def test_no_tool_reads_a_clock_or_draws_a_number() -> None:
    """The world's clock, ids and chance are in its database: the tools' source knows no others."""
    modules = {
        tool.call.__module__
        for domain in DOMAINS.values()
        for size in domain.sizes.values()
        for tool in size.tools
    }
    for module in modules:
        for node in ast.walk(ast.parse(Path(str(sys.modules[module].__file__)).read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom) and module != "fixture_domain":
                names = {alias.name for alias in node.names} | {getattr(node, "module", "")}
                assert not names & {"time", "random", "uuid", "secrets", "os"}, module
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("today", "utcnow", "time_ns", "monotonic"), module
                assert node.attr != "now" or getattr(node.value, "id", "") in ("w", "world"), module


PROGRAM = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
from test_golden import REPLAY, SIZES, tasks_of
digest = hashlib.sha256()
for name, size in SIZES:
    for task in tasks_of(name, size):
        golden = REPLAY.golden(task)
        digest.update(repr((task, golden)).encode())
print(digest.hexdigest())
"""


def test_golden_states_are_the_same_in_processes_with_other_hash_seeds() -> None:
    root = Path(__file__).parent.parent
    found = set()
    for seed in ("1", "4242"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "TZ": "UTC" if seed == "1" else "Asia/Tokyo",
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(root), str(root / "tests")],
            env=environment, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        found.add(done.stdout.strip())
    assert len(found) == 1 and len(found.pop()) == 64
