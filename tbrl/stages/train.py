"""stage=train: GRPO on a fixed pool, on the running cluster."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from tbrl.actors.cluster import Cluster
from tbrl.actors.fleet import WeightsLost
from tbrl.actors.learner import LearnerLost, LearnerRanks
from tbrl.config import Config
from tbrl.controller import Controller, hand_over
from tbrl.errors import ConfigError
from tbrl.learner.checkpoint import latest_complete
from tbrl.observability.view import RunView
from tbrl.records.provenance import record_tasks
from tbrl.records.run_dir import RunDir
from tbrl.schedule import SlotSchedule, TaskStream
from tbrl.stages.common import Stopped, open_run
from tbrl.stages.gate import pass_gate
from tbrl.stages.recording import StepRecorder
from tbrl.tasks.load import load_tasks, read_refs
from tbrl.types import GroupSummary, JsonObject, Task

MAX_LOSSES = 3
"""Losses of weights, the learner's or an engine's, that one run repairs."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Where training ended."""

    next_step: int
    policy_version: int
    complete: bool
    """All configured steps are done."""


async def train(
    cluster: Cluster, run: RunDir, pool: list[str], view: RunView, resume: bool, extra: JsonObject
) -> Trained:
    """Train on `pool` until `algorithm.steps`; `extra` goes into every checkpoint's manifest.
    With `resume`, from the newest complete checkpoint (from the start if there is none). When a
    learner rank dies, or an engine whose weights only the learner has, all start again from there;
    a run in which they keep dying ends."""
    losses = 0
    while True:
        try:
            return await _train_from_checkpoint(cluster, run, pool, view, resume, extra)
        except (LearnerLost, WeightsLost) as lost:
            losses += 1
            if losses > MAX_LOSSES:
                raise
            view.line(f"{lost}; starting again from the last checkpoint")
            resume = True


async def _train_from_checkpoint(
    cluster: Cluster, run: RunDir, pool: list[str], view: RunView, resume: bool, extra: JsonObject
) -> Trained:
    config = cluster.config
    algorithm = config.algorithm
    stream = TaskStream(pool, algorithm.seed)
    schedule = SlotSchedule(
        stream, algorithm.groups_per_step, algorithm.max_attempts, algorithm.speculation
    )
    ranks = config.topology.learner_world
    view.begin("start learner", ranks)
    checkpoint = latest_complete(run.checkpoints) if resume else None
    learner, state, sync = await start_learner(cluster, run.checkpoints, checkpoint)
    first_step, version = state["step"], state["policy_version"]
    if checkpoint is not None:
        schedule.restore(state["schedule"])
    if resume:
        run.rewind(first_step)
    view.update("start learner", ranks)
    view.end("start learner", f"policy version {version}")
    recorder = StepRecorder(run, config, view, sync["digest"])

    def arrived(step: int, committed: int, summary: GroupSummary) -> None:
        view.group(step, committed, summary.verdict)

    controller = Controller(
        schedule,
        cluster.fleet,
        learner,
        algorithm,
        config.rollout,
        config.checkpoint,
        alternate=config.topology.shares_devices,
        policy_version=version,
        on_step=recorder.on_step,
        on_progress=arrived,
        checkpoint_extra=lambda: extra,
    )
    view.begin_steps(algorithm.steps, first_step, algorithm.groups_per_step)
    with StopOnSignal(controller, view):
        try:
            next_step = await controller.run(first_step, algorithm.steps)
        finally:
            recorder.close()
    view.end("train", f"{next_step - first_step} steps")
    return Trained(next_step, controller.policy_version, next_step >= algorithm.steps)


async def start_learner(
    cluster: Cluster, checkpoints: Path, checkpoint: Path | None
) -> tuple[LearnerRanks, JsonObject, JsonObject]:
    """Learner ranks whose weights, a checkpoint's if there is one, the engines hold as well.

    Returns them, the state to go on from (`step`, `policy_version`, ...), and the engines' echoes.
    """
    alternate = cluster.config.topology.shares_devices
    if alternate:
        # Awake, the engines' caches fill the devices on which the ranks load the policy.
        await cluster.fleet.sleep()
    learner = await cluster.start_learner(str(checkpoints))
    state: JsonObject = {"step": 0, "policy_version": 0}
    if checkpoint is not None:
        state = await learner.load(str(checkpoint))
    sync = await hand_over(cluster.fleet, learner, state["policy_version"], alternate)
    return learner, state, sync


class StopOnSignal:
    """First Ctrl-C (or SIGTERM): finish the step and write a checkpoint. Second: stop at once."""

    def __init__(self, controller: Controller, view: RunView) -> None:
        self._controller = controller
        self._view = view
        self._asked = False

    def __enter__(self) -> StopOnSignal:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def ask() -> None:
            if self._asked:
                task.cancel()
                return
            self._asked = True
            self._controller.request_stop()
            self._view.line("stopping after this step (Ctrl-C again: at once)")

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ask)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def main(config: Config) -> None:
    """Train on `tasks.pool`, or on the pool that curate wrote into this run."""
    run = open_run(config)
    if run.recorded_steps() and not config.resume:
        raise ConfigError(
            f"run={config.run}: it already holds trained steps; continue with resume=true or "
            "train under another run=<name> with tasks.pool=<selection file>"
        )
    pool_file = Path(config.tasks.pool) if config.tasks.pool else run.curation / "selection.yaml"
    pool = read_refs(pool_file)
    tasks = load_tasks(replace(config.tasks, pool=str(pool_file)), "candidate")
    record_tasks(run, "pool", tasks)
    with RunView(f"tbrl train {config.run}", config.logger.live) as view:
        trained = asyncio.run(_run(config, run, tasks, pool, view))
    if not trained.complete:
        raise Stopped(config, f"stopped before step {trained.next_step}")


async def _run(
    config: Config, run: RunDir, tasks: list[Task], pool: list[str], view: RunView
) -> Trained:
    extra = pass_gate(config, view)
    view.begin("start engines", config.topology.rollout_workers)
    async with Cluster(config, tasks) as cluster:
        view.end("start engines", cluster.dashboard)
        return await train(cluster, run, pool, view, config.resume, extra)
