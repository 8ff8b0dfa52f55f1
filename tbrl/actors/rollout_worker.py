"""RolloutWorker: one vLLM engine and the episodes that it plays.

Episodes are coroutines of this actor; the engine core is a process of its own. A group's payload
goes into the object store and only its summary to the controller.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from ray.actor import ActorHandle

from tbrl.actors.actor import actor
from tbrl.actors.remote import RemoteGrader, RemoteSandbox, RemoteUser
from tbrl.config import EngineConfig, ModelConfig, RolloutConfig, TopologyConfig
from tbrl.engine.environment import apply, engine_environment
from tbrl.engine.vllm_engine import VllmEngine, WeightEcho
from tbrl.episode.group import run_group, salt_of
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.loop import Parts, run_episode
from tbrl.episode.rendering import Renderer
from tbrl.episode.seeding import attempt_seeds, training_seeds
from tbrl.errors import InvariantError, TbrlError
from tbrl.interfaces import SandboxSession
from tbrl.schedule import Assignment
from tbrl.types import Episode, EpisodeGroup, EpisodeKey, GroupSummary, PublicTask, Sampling
from tbrl.usage import RoleUsage


class EngineLost(TbrlError):
    """The worker's engine is gone: the worker must be rebuilt and its work repeated."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """All that a rollout worker is told at its start."""

    model_path: str
    model: ModelConfig
    engine: EngineConfig
    topology: TopologyConfig
    rollout: RolloutConfig
    seed: int
    group_size: int
    unanswered: RoleUsage
    """What a call without an answer is booked as."""


@actor(concurrency=4096)
class RolloutWorker:
    def __init__(
        self,
        settings: RolloutSettings,
        sandboxes: list[ActorHandle],
        user: ActorHandle,
        grader: ActorHandle,
    ) -> None:
        apply(engine_environment(settings.topology.device, settings.topology.threads_per_engine))
        self._settings = settings
        self._remote = (RemoteSandbox(sandboxes), RemoteUser(user), RemoteGrader(grader))
        self._interpreters: dict[tuple[str, ...], Interpreter] = {}
        self._engine: VllmEngine
        self._parts: Parts

    async def start(self) -> None:
        """Start the engine and read the tokenizer. Takes seconds on GPU and about 15 s on CPU."""
        from transformers import AutoTokenizer

        settings = self._settings
        tokenizer = AutoTokenizer.from_pretrained(settings.model_path)
        renderer = Renderer(tokenizer, strips_reasoning=settings.model.strips_reasoning)
        self._engine = await VllmEngine.start(
            settings.model_path, settings.model, settings.engine, settings.topology
        )
        # Built here: an asyncio primitive belongs to the loop it first runs on.
        self._slots = asyncio.Semaphore(settings.rollout.concurrency)
        sandbox, user, grader = self._remote

        base = Interpreter(tokenizer, (), settings.model.tool_format, renderer.reasoning_preopened)

        def interpreter_for(session: SandboxSession) -> Interpreter:
            names = tuple(tool.name for tool in session.tools)
            if names not in self._interpreters:
                self._interpreters[names] = base.with_tools(session.tools)
            return self._interpreters[names]

        self._parts = Parts(
            self._engine, sandbox, user, grader, renderer, interpreter_for, settings.unanswered
        )

    # ------------------------------------------------------------ episodes

    async def run_group(
        self, assignment: Assignment, task: PublicTask, policy_version: int
    ) -> tuple[GroupSummary, EpisodeGroup]:
        """Two returns: the summary for the controller, the payload for learner and records."""
        self._require_version(policy_version)
        settings = self._settings

        async def member(key: EpisodeKey, tries: int, salt: int) -> Episode:
            seeds = training_seeds(settings.seed, key, salt)
            sampling = sampling_of(settings.rollout)
            async with self._slots:
                return await run_episode(
                    self._parts, task, key, settings.rollout, sampling, seeds, tries
                )

        result = await run_group(
            task.task_ref,
            assignment.step,
            assignment.slot,
            assignment.attempt,
            settings.group_size,
            settings.rollout.max_tries,
            member,
            settings.rollout.refill_unit,
        )
        self._require_engine()
        return result.summary, result.group

    async def run_attempt(
        self,
        task: PublicTask,
        purpose: str,
        root: int,
        attempt: int,
        tries: int,
        sampling: Sampling,
        policy_version: int,
    ) -> Episode:
        """One probe or evaluation attempt; its seeds do not depend on any training step."""
        self._require_version(policy_version)
        seeds = attempt_seeds(purpose, root, task.task_ref, attempt, salt_of(tries))
        key = EpisodeKey(-1, 0, attempt, 0)
        async with self._slots:
            episode = await run_episode(
                self._parts, task, key, self._settings.rollout, sampling, seeds, tries
            )
        self._require_engine()
        return episode

    def _require_engine(self) -> None:
        if self._engine.dead:
            raise EngineLost("the vLLM engine of this worker died")

    def _require_version(self, policy_version: int) -> None:
        if self._engine.policy_version != policy_version:
            raise InvariantError(
                f"asked to sample policy version {policy_version}, the engine echoes "
                f"{self._engine.policy_version}"
            )

    # ------------------------------------------------------------ weights

    async def init_transfer(self, info: dict[str, Any]) -> None:
        await self._engine.init_weight_transfer(info)

    async def begin_update(self) -> None:
        await self._engine.begin_update()

    async def receive_update(self, info: Any) -> None:
        await self._engine.receive_update(info)

    async def end_update(self, version: int) -> WeightEcho:
        return await self._engine.end_update(version)

    async def load_folder(self, path: str, version: int) -> WeightEcho:
        """Load a whole Hugging Face folder of the same architecture."""
        return await self._engine.load_folder(path, version)

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def wake(self, part: str) -> None:
        await self._engine.wake(part)

    async def policy_version(self) -> int:
        return self._engine.policy_version

    async def stop(self) -> None:
        await self._engine.shutdown()


def sampling_of(rollout: RolloutConfig) -> Sampling:
    return Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
