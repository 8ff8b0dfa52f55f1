"""All rollout workers together: who runs which group, deadlines, and rebuilding the dead.

Which worker runs a group never chooses data: seeds belong to the group, not to the worker. A
worker that dies is built again with the weights of the current policy version, and its groups run
again with the same seeds, so that its death leaves no trace in what is trained on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError, RayTaskError

from tbrl.actors.actor import spawn
from tbrl.actors.rollout_worker import EngineLost, RolloutSettings, RolloutWorker
from tbrl.errors import BackendFailure, TbrlError
from tbrl.schedule import Assignment
from tbrl.types import Episode, GroupSummary, JsonObject, PublicTask, Sampling
from tbrl.usage import RoleUsage, unknown

T = TypeVar("T")
MAX_REBUILDS = 4
"""Per run: a worker that keeps dying is a fault to look at, not to hide."""


class WeightsLost(TbrlError):
    """A rebuilt engine is without weights that only the learner has: it must send them again."""


@dataclass(slots=True)
class _Worker:
    index: int
    actor: ActorHandle
    episodes: int = 0
    """In flight or queued here."""
    rebuilding: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights that all engines hold, and how a rebuilt one gets them."""

    version: int
    folder: str = ""
    info: dict[str, Any] | None = None


class RolloutFleet:
    """Implements controller.Rollouts."""

    def __init__(
        self,
        settings: RolloutSettings,
        sandboxes: list[ActorHandle],
        user: ActorHandle,
        grader: ActorHandle,
        tasks: dict[str, PublicTask],
        options: Callable[[int], JsonObject],
    ) -> None:
        """`options(i)` are the Ray actor options of worker i (placement, devices)."""
        self._settings = settings
        self._arguments = (sandboxes, user, grader)
        self._tasks = tasks
        self._options = options
        self._workers: list[_Worker] = []
        self.loaded = Loaded(0, folder=settings.model_path)
        self.rebuilds = 0
        self._lost: Loaded | None = None
        """Weights that a rebuilt engine is waiting for."""
        self.on_rebuild: Callable[[], None] = lambda: None

    @property
    def actors(self) -> list[ActorHandle]:
        return [worker.actor for worker in self._workers]

    async def start(self) -> None:
        """Start all workers side by side; returns when every engine serves version 0."""
        count = self._settings.topology.rollout_workers
        self._workers = [_Worker(index, self._spawn(index)) for index in range(count)]
        await asyncio.gather(*(self._started(w.actor) for w in self._workers))

    def _spawn(self, index: int) -> ActorHandle:
        options = self._options(index)
        return spawn(RolloutWorker, self._settings, *self._arguments, options=options)

    async def _started(self, actor: ActorHandle) -> None:
        await self._within(
            actor.start.remote(), self._settings.engine.start_timeout_s, "the engine did not start"
        )

    # ------------------------------------------------------------ work

    async def run_group(
        self, assignment: Assignment, policy_version: int
    ) -> tuple[GroupSummary, Any]:
        """Summary, and the reference of the payload in the object store."""
        task = self._tasks[assignment.task_ref]

        async def once(worker: _Worker) -> tuple[GroupSummary, Any]:
            summary: Any
            group: Any
            summary, group = worker.actor.run_group.options(num_returns=2).remote(
                assignment, task, policy_version
            )
            try:
                return await self._within(summary, self._deadline(worker), "a group hangs"), group
            except asyncio.CancelledError:
                # Gone, not only told to go: weights may change as soon as this returns.
                ray.cancel(summary)
                await asyncio.wait([asyncio.ensure_future(_ended(summary))], timeout=60)
                raise

        size = self._settings.group_size
        (summary, group), deaths = await self._on_worker(size, once)
        lost = RoleUsage(agent=unknown(deaths * size))
        return replace(summary, wasted_usage=summary.wasted_usage + lost), group

    async def run_attempt(
        self, task_ref: str, purpose: str, root: int, attempt: int, tries: int, sampling: Sampling
    ) -> Episode:
        """One probe or evaluation attempt with the loaded weights."""
        task, version = self._tasks[task_ref], self.loaded.version

        async def once(worker: _Worker) -> Episode:
            run: Any = worker.actor.run_attempt.remote(
                task, purpose, root, attempt, tries, sampling, version
            )
            return await self._within(run, self._deadline(worker), "an attempt hangs")

        episode, deaths = await self._on_worker(1, once)
        return replace(episode, usage=episode.usage + RoleUsage(agent=unknown(deaths)))

    async def _on_worker(
        self, episodes: int, work: Callable[[_Worker], Awaitable[T]]
    ) -> tuple[T, int]:
        """Run on the least loaded worker; after a death rebuild it and run again. Returns what
        came of it, and how many deaths took what was done by then (its tokens are unknown)."""
        deaths = 0
        while True:
            self._require_weights()
            worker = min(self._workers, key=lambda w: (w.episodes, w.index))
            actor = worker.actor
            worker.episodes += episodes
            try:
                return await work(worker), deaths
            except (RayActorError, RayTaskError) as error:
                cause = error.cause if isinstance(error, RayTaskError) else error
                if not isinstance(cause, RayActorError | EngineLost):
                    raise (cause if isinstance(cause, Exception) else error) from None
                deaths += 1
                await self._rebuild(worker, actor)
            finally:
                worker.episodes -= episodes

    def _deadline(self, worker: _Worker) -> float:
        """Seconds that work given to this worker may take, with all that waits before it."""
        rollout = self._settings.rollout
        waves = 1 + worker.episodes // rollout.concurrency
        return rollout.episode_deadline_s * rollout.max_tries * waves + 30.0

    async def _rebuild(self, worker: _Worker, dead: ActorHandle) -> None:
        async with worker.rebuilding:
            if worker.actor is not dead:
                return  # another group of the same worker was first
            self.rebuilds += 1
            if self.rebuilds > MAX_REBUILDS:
                raise BackendFailure(
                    "engine", "rollout worker", f"died {self.rebuilds} times in this run"
                )
            ray.kill(dead)
            actor = self._spawn(worker.index)
            await self._started(actor)
            if self.loaded.info is None and not self.loaded.folder:
                self._lost = self.loaded
            else:
                await self._reload(actor)
            worker.actor = actor
            self.on_rebuild()
            self._require_weights()

    async def _reload(self, actor: ActorHandle) -> None:
        loaded = self.loaded
        if loaded.info is not None:
            await self._within(actor.begin_update.remote(), 60, "weight update")
            await self._within(actor.receive_update.remote(loaded.info), 600, "weight update")
            await self._within(actor.end_update.remote(loaded.version), 60, "weight update")
        else:
            await self._within(
                actor.load_folder.remote(loaded.folder, loaded.version), 600, "weight update"
            )

    def _require_weights(self) -> None:
        if self._lost is not None and self._lost is self.loaded:
            raise WeightsLost("a rebuilt rollout worker has no weights: the learner sends them")

    async def _within(self, reference: Awaitable[T], seconds: float, what: str) -> T:
        """Await an actor call with a deadline of this side."""
        try:
            async with asyncio.timeout(seconds):
                return await reference
        except TimeoutError:
            raise BackendFailure(
                "deadline", "rollout worker", f"{what}: no answer in {seconds:g} s"
            ) from None

    # ------------------------------------------------------------ weights and phases

    async def load_folder(self, path: str, version: int) -> None:
        """Load a Hugging Face folder into every engine."""
        await asyncio.gather(
            *(
                self._within(actor.load_folder.remote(path, version), 600, "loading weights")
                for actor in self.actors
            )
        )
        self.loaded = Loaded(version, folder=path)

    async def sleep(self) -> None:
        await asyncio.gather(
            *(self._within(actor.sleep.remote(), 600, "sleep") for actor in self.actors)
        )

    async def wake(self, part: str) -> None:
        """`part` is `weights` or `kv_cache`."""
        await asyncio.gather(
            *(self._within(actor.wake.remote(part), 600, "wake-up") for actor in self.actors)
        )

    async def stop(self) -> None:
        """Shut the engines down; their processes must not outlive the run."""
        stops: list[Any] = [actor.stop.remote() for actor in self.actors]
        await asyncio.wait([asyncio.ensure_future(_quiet(s)) for s in stops], timeout=20)
        for actor in self.actors:
            ray.kill(actor)


async def _ended(reference: Awaitable[Any]) -> None:
    """Wait for an actor call, whatever becomes of it."""
    try:
        await reference
    except (RayError, asyncio.CancelledError):
        return


async def _quiet(reference: Awaitable[None]) -> None:
    """A worker that is already gone has stopped."""
    try:
        await reference
    except (RayActorError, RayTaskError):
        return
