"""The OpenEnv server in this process, on a free port, and an agent that plays golden calls."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("openenv", reason="openenv-core is not installed: pip install 'tbrl[openenv]'")

from tbrl.config import Config, TasksConfig
from tbrl.sandbox.build import build_sandbox
from tbrl.serving.openenv.client import BusinessEnv
from tbrl.serving.openenv.episode import EpisodeHost
from tbrl.serving.openenv.models import TaskObservation, ToolObservation
from tbrl.serving.openenv.server import build_app, server_for
from tbrl.tasks.load import load_tasks
from tbrl.types import PublicTask, Task
from tbrl.users.scripted import ScriptedUser

CONFIG = Config(stage="openenv", tasks=TasksConfig(domains=["rental"], per_template=1))
TASKS = {task.task_ref: task for task in load_tasks(CONFIG.tasks, "candidate")}
WRITING = [ref for ref, task in TASKS.items() if not task.grading.null_passes]
PUBLIC = [task.public for task in TASKS.values()]


@asynccontextmanager
async def served(
    grader: Any, config: Config = CONFIG, token: str = "", tasks: Sequence[PublicTask] = PUBLIC
) -> AsyncIterator[tuple[str, EpisodeHost]]:
    """The server on a free port of this machine; at the end no world is left."""
    sandbox = build_sandbox(config.sandbox)
    host = EpisodeHost(tasks, sandbox, ScriptedUser(), grader, config)
    server = server_for(build_app(host, token))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server._serve(sockets=[listener]))
    async with asyncio.timeout(20):
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", host
        await until(lambda: not sandbox.sessions)
        server.should_exit = True
        await serving


async def until(holds: Any) -> None:
    """Wait for what another task is about to do."""
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.01)


async def play(env: BusinessEnv, task: Task) -> Any:
    """The task's golden calls, then the end."""
    opening = (await env.reset(task_ref=task.task_ref)).observation
    assert isinstance(opening, TaskObservation) and opening.task_ref == task.task_ref
    ends = {tool.name for tool in opening.tools if "end" in tool.description.lower()}
    step = None
    for call in task.grading.expected_tool_interactions:
        step = await env.call(call.tool, call.arguments)
        assert isinstance(step.observation, ToolObservation) and step.observation.error is None
        assert step.reward is None or call.tool in ends
    return step if step is not None and step.done else await env.say("All done. <DONE>")
