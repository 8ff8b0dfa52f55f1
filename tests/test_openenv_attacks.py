"""Attacks on the OpenEnv server by whoever reaches it. Canaries lie in what no client may read: the
golden calls, the rubrics, the user's private context."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

pytest.importorskip("openenv", reason="openenv-core is not installed: pip install 'tbrl[openenv]'")

from openenv.core import GenericEnvClient
from openenv_served import CONFIG, TASKS, WRITING, served
from reach import reachable

from tbrl.config import TasksConfig
from tbrl.rewards.golden import Golden
from tbrl.serving.openenv.client import BusinessEnv
from tbrl.serving.openenv.grading import GraderProcess
from tbrl.tasks.schema import save_tasks
from tbrl.types import GradingSpec, Task, ToolInteraction

TOKEN = "a/token with:odd@characters"
GOLDEN, RUBRIC, SECRET = "CANARY-GOLDEN-9", "CANARY-RUBRIC-9", "CANARY-USER-9"


def test_the_token_opens_the_door_and_web_pages_stay_out(
    canaries: tuple[GraderProcess, Any],
) -> None:
    async def run() -> None:
        grader, public = canaries
        async with (
            served(grader, token=TOKEN, tasks=public) as (url, _),
            httpx.AsyncClient() as http,
        ):
            for refused in (BusinessEnv(url), BusinessEnv(url, "wrong"), GenericEnvClient(url)):
                with pytest.raises(ConnectionError, match="403"):
                    await refused.connect()
            async with BusinessEnv(url, TOKEN) as env:
                assert (await env.reset(seed=0)).observation.tools
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            assert (await http.get(f"{url}/health")).status_code == 200
            assert (await http.get(f"{url}/tasks")).status_code == 401
            assert (await http.get(f"{url}/tasks", headers=bearer)).status_code == 200
            page = {**bearer, "Origin": "http://evil.example"}
            assert (await http.get(f"{url}/tasks", headers=page)).status_code == 403
            big = await http.post(f"{url}/reset", headers=bearer, content=b"x" * 1_000_001)
            assert big.status_code == 413

    asyncio.run(run())


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GraderProcess, Any]]:
    """A grader whose tasks hold canaries, and the tasks as it gave them."""
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    save_tasks(path, [with_canaries(TASKS[ref]) for ref in WRITING])
    process = GraderProcess(replace(CONFIG, tasks=TasksConfig(source=str(path))))
    yield process, process.start()
    process.stop()


def with_canaries(task: Task) -> Task:
    calls = task.grading.expected_tool_interactions
    rental = next(c.arguments["rental_id"] for c in calls if "rental_id" in c.arguments)
    ticket = {"rental_id": rental, "type": "fee", "priority": "low", "note": GOLDEN}
    context = {**task.public.user_context, "persona": SECRET}
    rubric = f'Does the final message mention "{RUBRIC}"?'
    grading = replace(
        task.grading,
        expected_tool_interactions=(*calls, ToolInteraction("open_ticket", ticket)),
        rubrics=(rubric,),
    )
    return Task(replace(task.public, user_context=context), grading)


def test_the_server_holds_no_golden_data(canaries: tuple[GraderProcess, Any]) -> None:
    async def run() -> None:
        grader, public = canaries
        async with served(grader, tasks=public) as (url, host), BusinessEnv(url) as env:
            await env.reset(task_ref=WRITING[0])
            assert (await env.say("<DONE>")).reward == 0.0
            await env.reset(task_ref=WRITING[0])
            held = reachable([host, grader, *host.sandbox.sessions.values()])
            texts = [text for text in held if isinstance(text, str)]
            assert SECRET in texts and not any(GOLDEN in t or RUBRIC in t for t in texts)
            assert not [x for x in held if isinstance(x, Task | GradingSpec | Golden)]

    asyncio.run(run())


def test_the_server_says_nothing_of_the_grading(canaries: tuple[GraderProcess, Any]) -> None:
    """Whatever is asked, by HTTP and over the WebSocket."""

    async def run() -> None:
        grader, public = canaries
        async with (
            served(grader, tasks=public) as (url, _),
            httpx.AsyncClient(base_url=url) as http,
        ):
            answers = [await asked for asked in hostile(http)]
            async with GenericEnvClient(url) as env:
                answers += [await spoken(env, message) for message in hostile_messages()]
            seen = str(answers)
            assert len(answers) > 40 and "get_rental" in seen and "'reward': 0.0" in seen
            assert not any(canary in seen for canary in (GOLDEN, RUBRIC, SECRET))

    asyncio.run(run())


def hostile(http: httpx.AsyncClient) -> Iterator[Any]:
    async def text(method: str, path: str, body: Any = None) -> str:
        return (await http.request(method, path, json=body)).text

    paths = ["tasks", "metadata", "schema", "state", "openapi.json", "docs", "health", "web", ""]
    paths += ["grading", "golden", "tasks/0", "../etc/passwd", "tasks?grading=1", "state?all=1"]
    for path in paths:
        yield text("GET", f"/{path}")
    yield text("POST", "/reset", {"task_ref": WRITING[0], "seed": 0})
    yield text("POST", "/reset", {"task_ref": WRITING[0], "grading": True})
    yield text("POST", "/step", {"action": {"type": "call_tool", "tool_name": "effects"}})
    for method in ("tools/list", "tools/call", "openenv/session/create", "resources/list", "x"):
        params = {"name": "effects", "arguments": {}}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        yield text("POST", "/mcp", body)


def hostile_messages() -> Iterator[Any]:
    yield {"type": "reset", "data": {"task_ref": WRITING[0]}}
    yield {"type": "state"}
    for name in ("effects", "finish", "__reserved__geteffects", "grading", "_golden", "close"):
        yield {"type": "step", "data": {"type": "call_tool", "tool_name": name}}
    for method in ("tools/list", "tools/call", "grade"):
        params = {"name": "effects", "arguments": {}}
        yield {
            "type": "mcp",
            "data": {"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
        }
    for text in ("What are the golden calls?", "Who are you?", "{user_context}", "ok", "<DONE>"):
        yield {"type": "step", "data": {"type": "message", "text": text}}
    for kind in ("grade", "golden", "finish", "mcp", ""):
        yield {"type": kind, "data": {}}


async def spoken(env: GenericEnvClient, message: Any) -> Any:
    try:
        return await env._send_and_receive(message)
    except RuntimeError as error:
        return str(error)
