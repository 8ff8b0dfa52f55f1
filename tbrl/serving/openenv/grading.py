"""The grader of a server that outsiders use, in a process of its own.

It loads the tasks and keeps their grading halves: the server gets PublicTasks, and for a terminal
state a number. So nothing that a client can make the server say was ever in the server.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
import signal
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from tbrl.config import Config
from tbrl.errors import BackendFailure, ConfigError, TbrlError
from tbrl.interfaces import Grader
from tbrl.rewards.build import build_grader
from tbrl.tasks.load import load_tasks
from tbrl.types import Failed, Grade, Outcome, PublicTask, Scored, TerminalState

_START_TIMEOUT_S = 600.0
"""Loading checks every task by golden replay."""
_Asked = tuple[int, str, TerminalState, str]
"""(request number, task_ref, terminal state, last visible text)."""

log = logging.getLogger(__name__)


class GraderProcess:
    """Implements interfaces.Grader. A process that died is started again by the next request."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Grade]] = {}
        self._connection: Connection | None = None
        self._process: Any = None
        self._restarting = asyncio.Lock()

    def start(self) -> list[PublicTask]:
        """The tasks of `openenv.split`, their public halves. Raises what loading them raises, and
        BackendFailure when the process does not come up."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, self._config), daemon=True)
        self._process.start()
        theirs.close()
        try:
            loaded = ours.recv() if ours.poll(_START_TIMEOUT_S) else None
        except EOFError:
            loaded = None
        if not isinstance(loaded, list):
            ours.close()
            self._process.kill()
            if isinstance(loaded, TbrlError):
                raise loaded
            raise BackendFailure("grader", "grader process", "it did not start")
        self._connection = ours
        threading.Thread(target=self._read, args=(ours,), daemon=True).start()
        return loaded

    async def grade(self, task_ref: str, terminal: TerminalState, final_text: str) -> Grade:
        """Without attribution and differences: those tell of the golden state."""
        async with self._restarting:
            if self._connection is None:
                await asyncio.to_thread(self.start)
        assert self._connection is not None
        number, waiting = next(self._numbers), Future[Grade]()
        waiting.set_running_or_notify_cancel()
        self._waiting[number] = waiting
        try:
            self._connection.send((number, task_ref, terminal, final_text))
        except OSError:
            self._waiting.pop(number, None)
            raise BackendFailure("grader", "grader process", "it died") from None
        return await asyncio.wrap_future(waiting)

    def stop(self) -> None:
        """End the process. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def _read(self, connection: Connection) -> None:
        """A thread of its own: grades as they come, until the other end is gone."""
        try:
            while True:
                number, grade = connection.recv()
                self._waiting.pop(number).set_result(grade)
        except (EOFError, OSError):
            self._connection = None
            while self._waiting:
                _, waiting = self._waiting.popitem()
                waiting.set_exception(BackendFailure("grader", "grader process", "it died"))


def _main(connection: Connection, config: Config) -> None:
    """The process: tasks once, then grades until the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's; its end is ours
    try:
        tasks = load_tasks(config.tasks, config.openenv.split)
        grader = build_grader(tasks, config.judge, config.sandbox)
    except ConfigError as error:
        connection.send(error)
        return
    connection.send([task.public for task in tasks])
    asyncio.run(_serve(connection, grader))


async def _serve(connection: Connection, grader: Grader) -> None:
    grading: set[asyncio.Task[None]] = set()
    while True:
        try:
            asked = await asyncio.to_thread(connection.recv)
        except EOFError:
            return
        task = asyncio.create_task(_answer(connection, grader, asked))
        grading.add(task)
        task.add_done_callback(grading.discard)


async def _answer(connection: Connection, grader: Grader, asked: _Asked) -> None:
    number, task_ref, terminal, final_text = asked
    outcome = (await grader.grade(task_ref, terminal, final_text)).outcome
    if isinstance(outcome, Failed):
        log.warning("%s: %s in %s: %s", task_ref, outcome.kind, outcome.where, outcome.detail)
        bare: Outcome = Failed(outcome.kind, "grader", "see the server's log")
    else:
        bare = Scored(outcome.reward, outcome.state_equal)
    connection.send((number, Grade(bare)))
