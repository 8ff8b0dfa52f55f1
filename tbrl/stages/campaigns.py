"""Probes and evaluations on the running cluster: campaigns of attempts with the loaded weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tbrl.actors.cluster import Cluster
from tbrl.config import Config
from tbrl.domains.registry import all_domains
from tbrl.errors import BackendFailure
from tbrl.evaluation.campaign import Campaign, CampaignReport, Progress, Run, Start, run_campaign
from tbrl.evaluation.metrics import TaskLabels
from tbrl.observability.view import RunView
from tbrl.rewards.golden import GoldenReplay
from tbrl.stages.gate import parity_of
from tbrl.types import Episode, Sampling, Task
from tbrl.usage import unanswered


def labels_of(tasks: list[Task]) -> dict[str, TaskLabels]:
    """What reports group tasks by. Ordinary and ticket-only are known for embedded domains."""
    domains = {domain.name: domain for domain in all_domains()}
    replay = GoldenReplay(domains)
    labels = {}
    for task in tasks:
        public = task.public
        domain = domains.get(public.domain)
        ordinary, ticket_only = True, None
        if domain is not None:
            size = domain.sizes[public.scenario_id.partition("/")[2]]
            ordinary = all(t.ordinary for t in size.templates if t.name == public.template)
            effects = replay.golden(task).effects
            ticket_only = all(change.table in domain.ticket_tables for change in effects)
        labels[task.task_ref] = TaskLabels(
            public.domain,
            public.template,
            ordinary,
            ticket_only,
            transfer=domain is not None and not domain.training,
            eval_only=public.eval_only,
        )
    return labels


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """One campaign on the engines."""

    stage: str
    """Name in the view."""
    purpose: str
    """`probe` or `evaluate`: decides the seeds."""
    path: Path
    tasks: list[Task]
    attempts: int
    seed: int
    sampling: Sampling
    policy: str
    """Names the weights, e.g. `base` or `step-30`."""


def start_of(config: Config) -> Start:
    """`evaluation.repair` and `resume` decide what happens to results that exist."""
    if config.evaluation.repair:
        return "repair"
    return "resume" if config.resume else "fresh"


async def run_on_engines(
    cluster: Cluster, plan: CampaignPlan, view: RunView, start: Start = "fresh"
) -> CampaignReport:
    """Run a campaign with whatever weights the engines hold. Raises BackendFailure when keys were
    given up, naming one."""
    rollout = cluster.config.rollout
    campaign = Campaign(
        path=plan.path,
        tasks=labels_of(plan.tasks),
        attempts=plan.attempts,
        policy=f"{plan.policy} {plan.sampling} seed={plan.seed} parity={parity_of(cluster.config)}",
        concurrency=rollout.concurrency * cluster.config.topology.rollout_workers,
        max_tries=rollout.max_tries,
        lost_run=unanswered(user=cluster.config.user.kind, judge=cluster.config.judge.kind),
    )

    async def run(task_ref: str, attempt: int, try_: int) -> Episode:
        return await cluster.fleet.run_attempt(
            task_ref, plan.purpose, plan.seed, attempt, try_ + 1, plan.sampling
        )

    return await watched(campaign, run, plan.stage, view, start)


async def watched(
    campaign: Campaign, run: Run, stage: str, view: RunView, start: Start
) -> CampaignReport:
    """Run a campaign under the view."""

    def show(progress: Progress) -> None:
        rate = progress.passed / progress.done if progress.done else 0.0
        failures = f", {progress.failures} failures re-run" if progress.failures else ""
        view.update(stage, progress.done, f"passed {rate:.0%}{failures}")

    total = len(campaign.tasks) * campaign.attempts
    view.begin(stage, total, f"{len(campaign.tasks)} tasks")
    report = await run_campaign(campaign, run, start, show)
    done = report.progress
    view.end(stage, f"passed {done.passed / max(1, done.done):.1%}")
    if done.gave_up:
        task_ref, attempt = done.gave_up[0]
        raise BackendFailure(
            "backend",
            stage,
            f"{len(done.gave_up)} attempts failed {campaign.max_tries} times each, e.g. {task_ref} "
            f"attempt {attempt}; see {campaign.failures_path}, then run again with resume=true",
        )
    return report
