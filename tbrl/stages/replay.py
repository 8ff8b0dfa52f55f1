"""stage=replay: recompute recorded steps and prove equality.

From the files alone: content digests, ledger, seeds, grades (golden replay), advantages, and the
update itself: a learner takes every recorded step again from the policy that the run began with,
so it holds the weights of each step. With `replay.sampling` these weights go to an engine, which
plays every recorded group again: same seeds, same tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import ray
import torch
from omegaconf import OmegaConf
from rich.console import Console

from tbrl.actors.cluster import Cluster
from tbrl.actors.learner import RayEngineControl
from tbrl.actors.rollout_worker import sampling_of
from tbrl.config import Config
from tbrl.engine.weights import ShmSender
from tbrl.episode.group import salt_of
from tbrl.errors import ConfigError, TbrlError
from tbrl.learner.learner import GrpoLearner
from tbrl.policy.builtin import policy_folder
from tbrl.records.run_dir import RunDir
from tbrl.replay.plugs import regrade_with, update_with
from tbrl.replay.step import ReplayReport, replay_step
from tbrl.rewards.build import build_grader
from tbrl.schedule import Assignment
from tbrl.tasks.schema import read_tasks
from tbrl.types import Episode, EpisodeKey, Task


class ReplayDiffers(TbrlError):
    """Something recorded is not what it is recomputed to be."""


def main(config: Config) -> None:
    """Replays steps 0 .. `step` (-1: all), since each needs the weights of the ones before it."""
    run = RunDir.existing(config.runs_dir, config.run)
    recorded = recorded_config(run, config)
    last = run.recorded_steps()[-1] if config.step < 0 else config.step
    tasks = read_tasks(run.curation / "candidates.jsonl")
    console = Console(highlight=False)
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        torch.set_num_threads(recorded.topology.threads_per_learner)
        model = replace(recorded.model, path=policy_folder(recorded.model.path))
        learner = GrpoLearner(
            recorded.algorithm,
            model,
            sampling_of(recorded.rollout),
            engine=recorded.topology.learner_engine,
        )
        engines = Engines(recorded, tasks, runner, stack) if config.replay.sampling else None
        reports = []
        for step in range(last + 1):
            if engines is not None:
                engines.load(learner, step)
            report = replay_step(
                run,
                step,
                regrade_with(build_grader(tasks, recorded.judge)),
                engines.resample if engines is not None else None,
                update_with(learner, getattr(torch, recorded.model.engine_dtype)),
                recorded.algorithm.advantage_std,
            )
            console.print("\n".join(report.lines()), markup=False)
            reports.append(report)
    _conclude(reports, console)


def recorded_config(run: RunDir, config: Config) -> Config:
    """The configuration that the run was started with. Raises ConfigError when the run recorded
    no steps, or not that many."""
    steps = run.recorded_steps()
    if not steps:
        raise ConfigError(f"run={run.name} recorded no steps; train first")
    if config.step > steps[-1]:
        raise ConfigError(f"step={config.step}: run {run.name!r} recorded steps 0 to {steps[-1]}")
    trained = run.config.with_suffix(".train.yaml")
    path = trained if trained.is_file() else run.config
    typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(path)))
    assert isinstance(typed, Config)
    return typed


def _conclude(reports: list[ReplayReport], console: Console) -> None:
    different = [report.step for report in reports if not report.equal]
    if different:
        raise ReplayDiffers(f"steps {different} differ from what was recorded; see above")
    console.print(f"{len(reports)} steps replayed: all equal")


class Engines:
    """A cluster that plays recorded groups again, driven from synchronous code."""

    def __init__(
        self, config: Config, tasks: list[Task], runner: asyncio.Runner, stack: ExitStack
    ) -> None:
        self._runner = runner
        self._dtype = getattr(torch, config.model.engine_dtype)
        self._cluster = Cluster(config, tasks)
        runner.run(self._cluster.__aenter__())
        stack.callback(lambda: runner.run(self._cluster.__aexit__(None, None, None)))
        topology = config.topology
        control = RayEngineControl(self._cluster.fleet.actors, topology.tensor_parallel)
        self._sender = ShmSender(control, 0, f"replay-{Path(config.runs_dir).name}-{config.run}")
        stack.callback(self._sender.close)
        self._version = 0

    def load(self, learner: GrpoLearner, version: int) -> None:
        """Engines hold the learner's present weights."""
        self._version = version
        self._sender.send(lambda: learner.weights(self._dtype), version)

    def resample(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The same keys again, in order. Re-salted members (a failure that had repeated) cannot be
        replayed without that failure: they are returned as recorded."""
        return self._runner.run(self._resample(episodes))

    async def _resample(self, episodes: Sequence[Episode]) -> list[Episode]:
        groups = {(e.key.step, e.key.slot, e.key.attempt): e.task_ref for e in episodes}
        played: dict[EpisodeKey, Episode] = {}
        runs = [
            self._cluster.fleet.run_group(
                Assignment(step, slot, attempt, position=-1, task_ref=task_ref), self._version
            )
            for (step, slot, attempt), task_ref in groups.items()
        ]
        for _, reference in await asyncio.gather(*runs):
            for episode in ray.get(reference).episodes:
                played[episode.key] = episode
        return [
            e if salt_of(e.tries) else replace(played[e.key], policy_version=e.policy_version)
            for e in episodes
        ]
