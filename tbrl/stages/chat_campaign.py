"""Evaluation of policies that speak chat completions: an endpoint, or a recorded results file
played and graded again. Sandbox, user and grader run in this process; no engine, no Ray."""

from __future__ import annotations

from pathlib import Path

from tbrl.config import Config
from tbrl.episode.group import salt_of
from tbrl.episode.seeding import EpisodeSeeds, attempt_seeds
from tbrl.errors import ConfigError
from tbrl.evaluation.campaign import Campaign
from tbrl.evaluation.chat_episode import ChatRunner
from tbrl.evaluation.chat_models import EndpointModel, RecordedModel
from tbrl.observability.view import RunView
from tbrl.records.run_dir import RunDir
from tbrl.rewards.build import build_grader
from tbrl.sandbox.build import build_sandbox
from tbrl.stages.campaigns import labels_of, start_of, watched
from tbrl.types import Sampling, Task
from tbrl.usage import unanswered
from tbrl.users.build import build_user


async def evaluate_chat(
    config: Config, run: RunDir, name: str, tasks: list[Task], view: RunView
) -> None:
    """Every task `evaluation.attempts` times. Raises ConfigError for an incomplete endpoint, and
    for evaluation.policy=recorded without the one file in `compare`."""
    e = config.evaluation

    def seeds_of(task_ref: str, attempt: int, try_: int) -> EpisodeSeeds:
        return attempt_seeds("evaluate", e.seed, task_ref, attempt, salt_of(try_ + 1))

    runner = ChatRunner(
        model=_model(config),
        sandbox=build_sandbox(config.sandbox),
        user=build_user(config.user),
        grader=build_grader(tasks, config.judge, config.sandbox),
        tasks={task.task_ref: task.public for task in tasks},
        config=config.rollout,
        sampling=Sampling(e.endpoint.temperature),
        seeds_of=seeds_of,
        unanswered=unanswered(e.policy, config.user.kind, config.judge.kind),
    )
    campaign = Campaign(
        path=run.evaluation / f"{name}.jsonl",
        tasks=labels_of(tasks),
        attempts=e.attempts,
        policy=f"{e.policy} {e.endpoint.model or ', '.join(config.compare)} seed={e.seed}",
        concurrency=config.rollout.concurrency,
        max_tries=config.rollout.max_tries,
    )
    await watched(campaign, runner.run, f"evaluate {name}", view, start_of(config))


def _model(config: Config) -> EndpointModel | RecordedModel:
    if config.evaluation.policy == "chat":
        return EndpointModel.connect(config.evaluation.endpoint)
    if len(config.compare) != 1:
        raise ConfigError(
            f"compare={config.compare}: evaluation.policy=recorded plays one results file again; "
            "name it, compare=[file.jsonl]"
        )
    return RecordedModel(Path(config.compare[0]))
