"""The grader that the configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence

from tbrl.config import JudgeConfig
from tbrl.domains.registry import all_domains
from tbrl.endpoint import ChatEndpoint
from tbrl.errors import ConfigError
from tbrl.rewards.golden import GoldenReplay
from tbrl.rewards.grader import StateGrader
from tbrl.rewards.judge import Judge, LlmJudge, LocalJudge
from tbrl.types import Task

KINDS = ("local", "llm")


def build_grader(tasks: Sequence[Task], config: JudgeConfig) -> StateGrader:
    """Raises ConfigError for an unknown `judge.kind`, an incomplete endpoint, or a rubric that the
    local judge cannot read."""
    replay = GoldenReplay({domain.name: domain for domain in all_domains()})
    return StateGrader(tasks, replay, build_judge(tasks, config))


def build_judge(tasks: Sequence[Task], config: JudgeConfig) -> Judge:
    """Raises ConfigError as build_grader does."""
    if config.kind == "llm":
        return LlmJudge(ChatEndpoint(config.endpoint, "judge"))
    if config.kind != "local":
        raise ConfigError(f"judge.kind={config.kind!r} is unknown; choose one of {list(KINDS)}")
    for task in tasks:
        for rubric in task.grading.rubrics:
            if not LocalJudge.reads(rubric):
                raise ConfigError(
                    f"judge.kind=local cannot read a rubric of {task.task_ref!r}: {rubric[:80]!r};"
                    " use judge.kind=llm"
                )
    return LocalJudge()
