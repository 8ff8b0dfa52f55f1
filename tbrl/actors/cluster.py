"""All actors of a run: started together, stopped together."""

from __future__ import annotations

import os
from dataclasses import replace
from types import TracebackType

from tbrl.actors.actor import spawn
from tbrl.actors.fleet import Loaded, RolloutFleet
from tbrl.actors.learner import LearnerRanks, LearnerSettings
from tbrl.actors.placement import Placement
from tbrl.actors.reward_grader import RewardGrader
from tbrl.actors.rollout_worker import RolloutSettings, sampling_of
from tbrl.actors.runtime import start_ray, stop_ray
from tbrl.actors.sandbox_pool import SandboxPool
from tbrl.actors.user_simulator import UserSimulator
from tbrl.config import Config
from tbrl.engine.weights import SentWeights
from tbrl.policy.builtin import policy_folder
from tbrl.types import Task
from tbrl.usage import unanswered


class Cluster:
    """Use as `async with Cluster(config, tasks)`. Golden data goes to the grader only."""

    def __init__(self, config: Config, tasks: list[Task], policy: str = "") -> None:
        """`policy` is the folder that the engines start with; default: `model.path`."""
        self.config = config
        self.tasks = tasks
        self.policy = policy or policy_folder(config.model.path)
        self.fleet: RolloutFleet
        self.learner: LearnerRanks | None = None
        self._placement = Placement(config.topology)
        self.dashboard = ""
        """Where to watch, when there is a dashboard."""

    async def __aenter__(self) -> Cluster:
        context = start_ray(self.config.topology)
        if context.dashboard_url:
            self.dashboard = f"http://{context.dashboard_url} (token: ray get-auth-token)"
        try:
            await self._start()
        except BaseException:
            stop_ray()
            raise
        return self

    async def _start(self) -> None:
        config = self.config
        self._placement.reserve()
        pools = [spawn(SandboxPool, config.sandbox) for _ in range(config.topology.sandbox_pools)]
        user = spawn(UserSimulator, config.user)
        grader = spawn(RewardGrader, self.tasks, config.judge, config.sandbox)
        settings = RolloutSettings(
            model_path=self.policy,
            model=config.model,
            engine=config.engine,
            topology=config.topology,
            rollout=config.rollout,
            seed=config.algorithm.seed,
            group_size=config.algorithm.group_size,
            unanswered=unanswered(user=config.user.kind, judge=config.judge.kind),
        )
        public = {task.task_ref: task.public for task in self.tasks}
        self.fleet = RolloutFleet(settings, pools, user, grader, public, self._placement.engine)
        await self.fleet.start()

    async def start_learner(self, checkpoints: str, policy: str = "") -> LearnerRanks:
        """Learner ranks on the policy in folder `policy` (default: the cluster's)."""
        config = self.config
        if self.learner is not None:
            await self.learner.stop(gently=False)
        settings = LearnerSettings(
            algorithm=config.algorithm,
            model=replace(config.model, path=policy or self.policy),
            topology=config.topology,
            sampling=sampling_of(config.rollout),
            checkpoint=config.checkpoint,
            checkpoints=checkpoints,
            run_id=f"{os.getpid()}-{config.run.replace('/', '-')}",
        )
        self.learner = LearnerRanks(settings, self._placement.learner, self._note_weights)
        await self.learner.start(lambda: self.fleet.actors)
        self.fleet.on_rebuild = self.learner.reconnect_later
        return self.learner

    def _note_weights(self, sent: SentWeights) -> None:
        self.fleet.loaded = Loaded(sent.policy_version, info=sent.info)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self.learner is not None:
                await self.learner.stop(gently=kind is None)
            await self.fleet.stop()
        finally:
            stop_ray()
