"""stage=sandbox: one embedded world over MCP streamable HTTP, for an agent of your own.

Prints the address, the session's bearer token and the user's first words; any MCP client may then
act. Ctrl-C ends the session, grades its terminal state and prints the verdict.
"""

from __future__ import annotations

import asyncio
import signal

from rich.console import Console

from tbrl.config import Config
from tbrl.domains.registry import all_domains
from tbrl.errors import ConfigError
from tbrl.rewards.build import build_grader
from tbrl.sandbox.embedded import EmbeddedSandbox
from tbrl.sandbox.http import HttpGateway
from tbrl.tasks.load import load_tasks
from tbrl.types import Failed, Task


def main(config: Config) -> None:
    """Serves `tasks.only`, or the first held-out task, on `sandbox.http_port` (0: a free one)."""
    asyncio.run(_serve(config, chosen_task(config)))


def chosen_task(config: Config) -> Task:
    """Raises ConfigError when `tasks.only` names no held-out task."""
    tasks = load_tasks(config.tasks, "heldout")
    for task in tasks:
        if config.tasks.only in ("", task.task_ref):
            return task
    raise ConfigError(
        f"tasks.only={config.tasks.only!r} is none of the {len(tasks)} held-out tasks, e.g. "
        f"{tasks[0].task_ref}"
    )


async def _serve(config: Config, task: Task) -> None:
    console = Console(highlight=False)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    sandbox = EmbeddedSandbox({domain.name: domain for domain in all_domains()}, config.sandbox)
    session = await sandbox.open(task.public)
    gateway = HttpGateway(port=config.sandbox.http_port)
    await gateway.start()
    token = await gateway.expose(session)
    console.print(f"task    {task.task_ref}\nurl     {gateway.url}\ntoken   {token}", markup=False)
    console.print(f"policy  {session.policy.strip()}\nuser    {task.public.query}", markup=False)
    console.print("Ctrl-C ends the session and grades it")
    await stopped.wait()
    terminal = await session.finish()
    await gateway.stop()
    grade = await build_grader([task], config.judge).grade(task.task_ref, terminal, "")
    outcome = grade.outcome
    if isinstance(outcome, Failed):
        console.print(f"not graded: {outcome.kind} in {outcome.where}: {outcome.detail}")
        return
    console.print(f"reward {outcome.reward:g} {outcome.attribution}".rstrip())
    for change in terminal.effects:
        console.print(f"  {change.kind} {change.table}{change.key} {change.column}", markup=False)
