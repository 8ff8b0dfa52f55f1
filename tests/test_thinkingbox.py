"""Sessions of a ThinkingBox proxy; a fake one that notes every request stands for the real one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
import yaml
from fixture_domain import library_task

from tbrl.config import SandboxConfig
from tbrl.errors import BackendFailure, ConfigError
from tbrl.rewards.grader import StateGrader
from tbrl.rewards.judge import LocalJudge
from tbrl.rewards.session_golden import SessionGolden
from tbrl.sandbox.build import build_sandbox
from tbrl.sandbox.thinkingbox import ThinkingBoxSandbox
from tbrl.sandbox.thinkingbox_scenarios import TICKET_TABLES, read_scenarios
from tbrl.types import Failed, GradingSpec, Scored, Task, TerminalState, ToolInteraction

AGENT = {
    "system_instructions": "Be careful.",
    "builtin_tools": [
        {
            "name": "Report",
            "is_end_turn": True,
            "input_schema": {"type": "object", "properties": {}},
        }
    ],
}
SCENARIO = {
    "world_state": {"shop": {"sources": [], "data_patch": None, "golden_test_case": None}},
    "tools": [{"name": "pay"}, {"name": "note"}, {"name": "__reserved__geteffects"}],
    "bot_instructions": "Never refund.",
}
ALL_TOOLS = ("pay", "note", "hidden", "__reserved__geteffects", "__reserved__server_tool")


@pytest.fixture
def scenarios(tmp_path: Path) -> Any:
    for folder, name, content in (("agent", "think", AGENT), ("scenario", "shop", SCENARIO)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return read_scenarios(tmp_path)


class Proxy:
    """Answers like the proxy; `broken` = {path or tool: how it fails}."""

    def __init__(self, **broken: Any) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.worlds: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.broken = broken

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path.strip("/"), json.loads(request.content)
        self.requests.append((path, body))
        failure = self.broken.get(body.get("tool_name", path))
        if failure == "hang":
            await asyncio.Event().wait()
        if isinstance(failure, httpx.Response):
            return failure
        if isinstance(failure, Exception):
            raise failure
        return self.answer(path, body)

    def answer(self, path: str, body: dict[str, Any]) -> httpx.Response:
        world = self.worlds.setdefault(body["session_id"], {"orders": [], "zendesk_tickets": []})
        if path == "session_create":
            return said({"shop": {}})
        if path == "list_tools":
            return said({"tools": {n: {"description": n, "inputSchema": {}} for n in ALL_TOOLS}})
        if path == "call_tool":
            if body["arguments"].get("id") == "none":
                return said("Error calling tool 'pay': no such order")
            table = "orders" if body["tool_name"] == "pay" else "zendesk_tickets"
            world[table].append({"id": str(len(world[table]) + 1), **body["arguments"]})
            return said("done")
        if path == "get_effects":
            empty: dict[str, list[Any]] = {"orders": [], "zendesk_tickets": []}
            state = {"initial_db_state": empty, "result_db_state": world}
            return said({"shop": {**state, "result_db_hash": json.dumps(world, sort_keys=True)}})
        return said("destroyed")

    def sent(self, path: str) -> list[dict[str, Any]]:
        return [body for name, body in self.requests if name == path]


def said(value: Any) -> httpx.Response:
    return httpx.Response(200, json={"success": True, "content": {"type": "x", "value": value}})


def play(proxy: Proxy, scenarios: Any, use: Any, deadline_s: float = 5.0) -> Any:
    async def run() -> Any:
        config = SandboxConfig(url="http://proxy.test", call_deadline_s=deadline_s)
        sandbox = ThinkingBoxSandbox(config, scenarios, httpx.MockTransport(proxy))
        session = await sandbox.open(TASK.public)
        try:
            return await use(session)
        finally:
            await session.close()
            assert not sandbox.sessions

    return asyncio.run(run())


PUBLIC = replace(library_task(), scenario_id="shop", initial_state_patch={"orders": []})
TASK = Task(
    PUBLIC,
    GradingSpec(PUBLIC.task_ref, (ToolInteraction("pay", {"id": "CANARY"}),), ()),
)


def test_a_session_is_created_with_the_patch_and_without_the_golden_half(scenarios: Any) -> None:
    proxy = Proxy()

    async def use(session: Any) -> Any:
        return session.policy, [(tool.name, tool.ends_turn) for tool in session.tools]

    policy, tools = play(proxy, scenarios, use)
    assert policy == "Be careful.\n\nNever refund."
    assert tools == [("Report", True), ("pay", False), ("note", False)]
    (created,) = proxy.sent("session_create")
    assert created["server_config"] == {"shop": {"sources": [], "data_patch": {"orders": []}}}
    assert "CANARY" not in json.dumps(proxy.requests)
    assert len(proxy.sent("session_destroy")) == 1


@pytest.mark.parametrize(
    "name",
    ["__reserved__geteffects", "__reserved__server_tool", "__reserved__init", "hidden", "PAY", ""],
)
def test_only_advertised_names_are_forwarded(scenarios: Any, name: str) -> None:
    proxy = Proxy()
    call = {"server_name": "shop", "tool_name": "__reserved__geteffects", "arguments": {}}
    assert play(proxy, scenarios, lambda s: s.call_tool(name, call)).is_error
    assert proxy.sent("call_tool") == []


def test_the_agents_own_tool_is_recorded_and_not_forwarded(scenarios: Any) -> None:
    proxy = Proxy()
    assert not play(proxy, scenarios, lambda s: s.call_tool("Report", {})).is_error
    assert proxy.sent("call_tool") == []


def test_a_tool_error_is_the_policys_to_see(scenarios: Any) -> None:
    reply = play(Proxy(), scenarios, lambda s: s.call_tool("pay", {"id": "none"}))
    assert reply.is_error and "no such order" in reply.text


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ("hang", "deadline"),
        (httpx.Response(504, json={"success": False, "content": {"value": "timeout"}}), "backend"),
        (httpx.Response(400, json={"success": False, "content": {"value": ""}}), "backend"),
        (httpx.Response(500, text="boom"), "backend"),
        (httpx.ConnectError("refused"), "backend"),
    ],
)
def test_a_call_without_an_answer_is_sent_once_and_ends_the_session(
    scenarios: Any, failure: Any, kind: str
) -> None:
    proxy = Proxy(pay=failure)

    async def use(session: Any) -> None:
        with pytest.raises(BackendFailure) as caught:
            await session.call_tool("pay", {"id": "1"})
        assert caught.value.kind == kind
        for attempt in (session.call_tool("pay", {"id": "1"}), session.finish()):
            with pytest.raises(BackendFailure):
                await attempt

    play(proxy, scenarios, use, deadline_s=0.2)
    assert len(proxy.sent("call_tool")) == 1 and len(proxy.sent("session_destroy")) == 1


@pytest.mark.parametrize("path", ["session_create", "list_tools"])
def test_a_session_that_does_not_come_up_gives_its_place_back(scenarios: Any, path: str) -> None:
    async def run() -> None:
        proxy = Proxy(**{path: httpx.Response(400, json={"success": False})})
        config = SandboxConfig(url="http://proxy.test", max_sessions=1)
        sandbox = ThinkingBoxSandbox(config, scenarios, httpx.MockTransport(proxy))
        for _ in range(2):
            with pytest.raises(BackendFailure):
                await sandbox.open(PUBLIC)
        proxy.broken.clear()
        await (await sandbox.open(PUBLIC)).close()

    asyncio.run(run())


def test_state_is_graded_against_a_replay_in_a_session_of_the_graders_own(scenarios: Any) -> None:
    async def run() -> None:
        proxy = Proxy()
        config = SandboxConfig(url="http://proxy.test")
        sandbox = ThinkingBoxSandbox(config, scenarios, httpx.MockTransport(proxy))

        async def state(*calls: tuple[str, dict[str, str]]) -> TerminalState:
            session = await sandbox.open(PUBLIC)
            for call in calls:
                await session.call_tool(*call)
            return await session.finish()

        source = SessionGolden(sandbox, TICKET_TABLES)
        grader = StateGrader([TASK], source, LocalJudge())
        ref = TASK.task_ref
        pay, note = ("pay", {"id": "CANARY"}), ("note", {"text": "hi"})
        assert (await grader.grade(ref, await state(pay), "")).outcome == Scored(1.0, True)
        for calls, cause in (
            ([], "nothing_done"),
            ([pay, note], "ticket_only"),
            ([pay, pay], "business_write_wrong"),
        ):
            outcome = (await grader.grade(ref, await state(*calls), "")).outcome
            assert isinstance(outcome, Scored)
            assert (outcome.reward, outcome.attribution) == (0.0, cause)
        sessions = [body["session_id"] for body in proxy.sent("session_create")]
        assert len(set(sessions)) == len(sessions) == 6
        broken = Proxy(get_effects=httpx.Response(500))
        sandbox = ThinkingBoxSandbox(config, scenarios, httpx.MockTransport(broken))
        grader = StateGrader([TASK], SessionGolden(sandbox, TICKET_TABLES), LocalJudge())
        grade = await grader.grade(ref, TerminalState("", (), 0), "")
        assert isinstance(grade.outcome, Failed)

    asyncio.run(run())


def test_scenarios_are_the_same_from_a_folder_and_from_parquet(
    tmp_path: Path, scenarios: Any
) -> None:
    row = {
        "scenario_id": "shop",
        "world_state_json": json.dumps(SCENARIO["world_state"]),
        "tools_json": json.dumps(SCENARIO["tools"]),
        "bot_instructions": SCENARIO["bot_instructions"],
    }
    agent = {
        "agent_id": "think",
        "system_instructions": AGENT["system_instructions"],
        "builtin_tools_json": json.dumps(AGENT["builtin_tools"]),
    }
    pl.DataFrame([row]).write_parquet(tmp_path / "scenarios.parquet")
    pl.DataFrame([agent]).write_parquet(tmp_path / "agents.parquet")
    assert read_scenarios(tmp_path / "scenarios.parquet") == scenarios


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (SandboxConfig(kind="cloud"), "sandbox.kind='cloud'"),
        (SandboxConfig(kind="mcp", url="shop:1"), "sandbox.url='shop:1'"),
        (SandboxConfig(kind="mcp", url="http://x", api_key_env="TBRL_NO_SUCH"), "TBRL_NO_SUCH"),
        (SandboxConfig(kind="thinkingbox", scenarios="/no/such"), "sandbox.scenarios=/no/such"),
    ],
)
def test_a_bad_sandbox_is_one_clear_line(config: SandboxConfig, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_sandbox(config)
    assert words in str(caught.value) and "\n" not in str(caught.value)
