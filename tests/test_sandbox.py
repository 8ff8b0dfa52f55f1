"""Sessions of the embedded sandbox: isolation, transactions, limits, deadlines, leases."""

from __future__ import annotations

import asyncio
import datetime
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fixture_domain import DOMAINS, HOSTILE_CALLS, LIBRARY, library_task

from tbrl.config import SandboxConfig
from tbrl.domains.base import FROZEN_NOW
from tbrl.errors import BackendFailure, ConfigError
from tbrl.sandbox import guard
from tbrl.sandbox.embedded import EmbeddedSandbox
from tbrl.sandbox.session import EmbeddedSession
from tbrl.types import TerminalState


class Clock:
    """Moves only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def with_session(
    use: Callable[[EmbeddedSession], Awaitable[Any]],
    size: str = "compact",
    config: SandboxConfig | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Any:
    async def run() -> Any:
        sandbox = EmbeddedSandbox(DOMAINS, config, clock)
        session = await sandbox.open(library_task(size))
        try:
            return await use(session)
        finally:
            await session.close()
            assert not sandbox.sessions

    return asyncio.run(run())


def untouched() -> TerminalState:
    return with_session(lambda s: s.finish())


def test_two_sessions_of_one_task_share_nothing() -> None:
    async def run() -> tuple[TerminalState, TerminalState]:
        sandbox = EmbeddedSandbox(DOMAINS)
        one, other = await sandbox.open(library_task()), await sandbox.open(library_task())
        assert one.session_id != other.session_id
        await one.call_tool("lend", {"member_id": 1, "code": "B1"})
        return await one.finish(), await other.finish()

    one, other = asyncio.run(run())
    assert one.effects and one.writes == 1
    assert other == untouched() and other.effects == ()


def test_the_same_calls_give_the_same_replies_and_the_same_state() -> None:
    calls = [
        ("get_member", {"member_id": 1}),
        ("lend", {"member_id": 1, "code": "B1"}),
        ("lend", {"member_id": 1, "code": "B2"}),
        ("open_ticket", {"subject": "none left", "priority": "low"}),
    ]

    async def play(session: EmbeddedSession) -> Any:
        return [await session.call_tool(*c) for c in calls], await session.finish()

    assert with_session(play) == with_session(play)


@pytest.mark.parametrize("date", [datetime.date(2025, 1, 1), datetime.date(2031, 12, 31)])
def test_the_world_clock_is_frozen_on_any_date(
    monkeypatch: pytest.MonkeyPatch, date: datetime.date
) -> None:
    moment = datetime.datetime(date.year, date.month, date.day).timestamp()
    monkeypatch.setattr(time, "time", lambda: moment)
    reply = with_session(lambda s: s.call_tool("lend", {"member_id": 1, "code": "B1"}))
    assert reply.text == f'{{"loan":1,"at":"{FROZEN_NOW}"}}'


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT CURRENT_TIMESTAMP", "SELECT date('now')", "SELECT strftime('%s')",
        "SELECT julianday('now')", "SELECT unixepoch()", "SELECT random()", "SELECT randomblob(4)",
    ],
)  # fmt: skip
def test_sql_has_no_wall_clock_and_no_chance(sql: str) -> None:
    with pytest.raises(BackendFailure, match="not authorized"):
        with_session(lambda s: s.call_tool("run_sql", {"sql": sql}), "hostile")


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH DATABASE '/tmp/tbrl_escape.db' AS x",
        "ATTACH DATABASE ':memory:' AS x",
        "DETACH DATABASE main",
        "PRAGMA foreign_keys = OFF",
        "PRAGMA writable_schema = 1",
        "PRAGMA temp_store_directory = '/tmp'",
        "PRAGMA max_page_count = 100000000",
        "SELECT load_extension('x')",
        "VACUUM",
        "VACUUM INTO '/tmp/tbrl_escape.db'",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t (x)",
        "CREATE TRIGGER t AFTER INSERT ON log BEGIN DELETE FROM books; END",
        "CREATE VIRTUAL TABLE t USING fts5(x)",
        "CREATE VIEW v AS SELECT 1",
        "DROP TABLE loans",
        "ALTER TABLE loans RENAME TO x",
        "REINDEX",
        "ANALYZE",
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT x",
        "SELECT 1; SELECT 2",
        "UPDATE sqlite_master SET sql = ''",
        "SELECT * FROM pragma_foreign_key_list('loans')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/tbrl_escape', 'x')",
        "SELECT fts3_tokenizer('x')",
    ],
)
def test_sql_that_is_not_about_rows_is_refused_and_ends_the_session(sql: str) -> None:
    async def use(session: EmbeddedSession) -> None:
        with pytest.raises(BackendFailure):
            await session.call_tool("run_sql", {"sql": sql})
        with pytest.raises(BackendFailure, match="dead"):
            await session.finish()

    with_session(use, "hostile")


@pytest.mark.parametrize("how", ["model", "constraint"])
def test_a_call_that_is_refused_halfway_leaves_nothing(how: str) -> None:
    async def use(session: EmbeddedSession) -> TerminalState:
        reply = await session.call_tool("write_then_break", {"how": how})
        assert reply.is_error and reply.text
        return await session.finish()

    assert with_session(use, "hostile") == untouched()


def test_a_tool_cannot_commit_by_itself() -> None:
    async def use(session: EmbeddedSession) -> None:
        with pytest.raises(BackendFailure, match="not authorized"):
            await session.call_tool("write_then_break", {"how": "commit"})

    with_session(use, "hostile")


def test_a_broken_tool_is_a_backend_failure_and_never_a_reply() -> None:
    async def use(session: EmbeddedSession) -> None:
        with pytest.raises(BackendFailure) as caught:
            await session.call_tool("write_then_break", {"how": "bug"})
        assert (caught.value.kind, caught.value.where) == ("backend", "write_then_break")
        assert "ZeroDivisionError" in caught.value.detail
        with pytest.raises(BackendFailure):
            await session.call_tool("get_member", {"member_id": 1})

    with_session(use, "hostile")


def test_a_call_past_its_deadline_runs_once_and_ends_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    HOSTILE_CALLS.clear()

    class Late(list[str]):
        def append(self, value: str) -> None:
            super().append(value)
            clock.now += 11.0

    executed = Late()
    monkeypatch.setattr("fixture_domain.HOSTILE_CALLS", executed)

    async def use(session: EmbeddedSession) -> None:
        for _ in range(3):
            with pytest.raises(BackendFailure) as caught:
                await session.call_tool("slow", {})
        assert caught.value.where == "slow"
        with pytest.raises(BackendFailure):
            await session.finish()

    with_session(use, "hostile", SandboxConfig(call_deadline_s=10.0), clock)
    assert executed == ["slow"]


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c"


def test_too_much_work_is_answered_by_count_not_by_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_STEPS", 50_000)

    async def use(session: EmbeddedSession) -> TerminalState:
        reply = await session.call_tool("run_sql", {"sql": ENDLESS})
        assert reply.is_error and "too much work" in reply.text
        assert not (await session.call_tool("get_member", {"member_id": 1})).is_error
        return await session.finish()

    assert with_session(use, "hostile", clock=Clock()) == untouched()


def test_a_statement_past_its_time_is_a_deadline_failure() -> None:
    ticks = iter(range(1000))

    async def use(session: EmbeddedSession) -> None:
        with pytest.raises(BackendFailure) as caught:
            await session.call_tool("run_sql", {"sql": ENDLESS})
        assert caught.value.kind == "deadline"

    with_session(use, "hostile", SandboxConfig(statement_ms=5000), lambda: float(next(ticks)))


def test_the_limits_of_a_call_end_with_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_STEPS", 50_000)
    rows = [{"id": n, "name": f"member {n}"} for n in range(10, 4000)]

    async def run() -> TerminalState:
        clock = Clock()
        sandbox = EmbeddedSandbox(DOMAINS, clock=clock)
        session = await sandbox.open(library_task(patch={"members": rows}))
        await session.call_tool("lend", {"member_id": 1, "code": "B1"})
        clock.now += 30
        return await session.finish()

    assert asyncio.run(run()).writes == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("big", {"size": 65537}, "larger than 65536 bytes"),
        ("run_sql", {"sql": "SELECT zeroblob(2000000)"}, "no room for so much data"),
        (
            "run_sql",
            {
                "sql": "INSERT INTO log SELECT printf('%.*c', 9000, 'x'), 1 FROM (WITH RECURSIVE"
                " c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 4000) SELECT x FROM c)"
            },
            "no room for so much data",
        ),
    ],
)
def test_a_flood_is_answered_and_leaves_nothing(
    tool: str, arguments: dict[str, Any], words: str
) -> None:
    async def use(session: EmbeddedSession) -> TerminalState:
        reply = await session.call_tool(tool, arguments)
        assert reply.is_error and words in reply.text
        return await session.finish()

    assert with_session(use, "hostile") == untouched()


def test_an_ending_tool_is_recorded_and_not_executed() -> None:
    async def use(session: EmbeddedSession) -> TerminalState:
        assert not (await session.call_tool("report_injection", {"reason": "odd text"})).is_error
        return await session.finish()

    assert with_session(use) == untouched()


def test_nothing_works_after_the_end_and_closing_twice_is_one_closing() -> None:
    async def use(session: EmbeddedSession) -> None:
        await session.finish()
        await session.close()
        await session.close()
        with pytest.raises(BackendFailure, match="closed"):
            await session.call_tool("get_member", {"member_id": 1})
        with pytest.raises(BackendFailure, match="closed"):
            await session.finish()

    with_session(use)


def test_opening_waits_for_a_place() -> None:
    async def run() -> list[str]:
        sandbox = EmbeddedSandbox(DOMAINS, SandboxConfig(max_sessions=2))
        live = [await sandbox.open(library_task()) for _ in range(2)]
        order = []

        async def third() -> None:
            session = await sandbox.open(library_task())
            order.append("opened")
            await session.close()

        waiting = asyncio.create_task(third())
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(sandbox.sessions) == 2
        order.append("closing")
        await live[0].close()
        await waiting
        await sandbox.close_all()
        assert sandbox.opened == 3 and not sandbox.sessions
        return order

    assert asyncio.run(run()) == ["closing", "opened"]


def test_never_more_sessions_than_places_and_every_opening_comes_up() -> None:
    async def run() -> int:
        sandbox = EmbeddedSandbox(DOMAINS, SandboxConfig(max_sessions=3))
        most = 0

        async def one() -> None:
            nonlocal most
            session = await sandbox.open(library_task())
            most = max(most, len(sandbox.sessions))
            await session.call_tool("get_member", {"member_id": 1})
            await session.finish()

        await asyncio.gather(*(one() for _ in range(25)))
        assert sandbox.opened == 25 and not sandbox.sessions
        return most

    assert asyncio.run(run()) == 3


def test_a_session_of_a_dead_client_is_closed_by_its_lease() -> None:
    async def run() -> None:
        clock = Clock()
        sandbox = EmbeddedSandbox(DOMAINS, SandboxConfig(session_lease_s=60, max_sessions=2), clock)
        dead, used = await sandbox.open(library_task()), await sandbox.open(library_task())
        clock.now += 50
        await used.call_tool("get_member", {"member_id": 1})
        clock.now += 50
        new = await sandbox.open(library_task())
        assert set(sandbox.sessions) == {used.session_id, new.session_id}
        assert sandbox.expired == 1
        with pytest.raises(BackendFailure):
            await dead.call_tool("get_member", {"member_id": 1})
        await sandbox.close_all()

    asyncio.run(run())


def test_a_bad_patch_or_scenario_gives_its_place_back() -> None:
    async def run() -> None:
        sandbox = EmbeddedSandbox(DOMAINS, SandboxConfig(max_sessions=1))
        for task in (library_task(patch={"nope": [{}]}), library_task("huge")):
            with pytest.raises(ConfigError):
                await sandbox.open(task)
        await (await sandbox.open(library_task())).close()

    asyncio.run(run())


def test_closed_sessions_leave_nothing_behind() -> None:
    async def run() -> tuple[int, int]:
        sandbox = EmbeddedSandbox(DOMAINS)

        async def some() -> int:
            for _ in range(20):
                session = await sandbox.open(library_task())
                await session.call_tool("lend", {"member_id": 1, "code": "B1"})
                await session.finish()
            del session
            gc.collect()
            return len(gc.get_objects())

        await some()
        first = await some()
        await some()
        return first, await some()

    first, last = asyncio.run(run())
    assert last - first < 20


def test_the_policy_text_and_tools_are_those_of_the_size() -> None:
    async def use(session: EmbeddedSession) -> Any:
        return session.policy, [tool.name for tool in session.tools]

    policy, names = with_session(use)
    assert policy == LIBRARY.sizes["compact"].policy
    assert names == [tool.spec.name for tool in LIBRARY.sizes["compact"].tools]
