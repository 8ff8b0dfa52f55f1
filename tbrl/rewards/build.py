"""The grader that the configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence

from tbrl.config import JudgeConfig, SandboxConfig
from tbrl.domains.registry import all_domains
from tbrl.endpoint import ChatEndpoint
from tbrl.errors import ConfigError
from tbrl.rewards.golden import GoldenReplay, GoldenSource
from tbrl.rewards.grader import StateGrader
from tbrl.rewards.judge import Judge, LlmJudge, LocalJudge
from tbrl.rewards.session_golden import SessionGolden
from tbrl.sandbox.build import build_sandbox
from tbrl.sandbox.thinkingbox_scenarios import TICKET_TABLES
from tbrl.types import Task

KINDS = ("local", "llm")


def build_grader(
    tasks: Sequence[Task], config: JudgeConfig, sandbox: SandboxConfig | None = None
) -> StateGrader:
    """`sandbox` says where golden calls are replayed; without it, on embedded backends here.
    Raises ConfigError for an unknown kind, an incomplete endpoint, or a rubric that the local judge
    cannot read."""
    return StateGrader(tasks, _golden_source(sandbox), build_judge(tasks, config))


def _golden_source(sandbox: SandboxConfig | None) -> GoldenSource:
    if sandbox is None or sandbox.kind == "embedded":
        return GoldenReplay({domain.name: domain for domain in all_domains()}, sandbox)
    helpdesk = TICKET_TABLES if sandbox.kind == "thinkingbox" else frozenset[str]()
    return SessionGolden(build_sandbox(sandbox), helpdesk)


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
