"""stage=pipeline: the six stages in a row.

collect    candidates and held-out tasks, checked by golden replay        curation/candidates.jsonl
screen     the reference policy solves which candidates at all?           probes/reference.jsonl
probe      the base policy, n clean probes a candidate                    probes/base.jsonl
classify   posterior, bands, fixed pool                                   curation/
train      GRPO steps                                                     metrics, ledger, episodes
evaluate   held-out tasks k times, before and after                       evaluation/, report.html

Each part is durable: after an interruption `resume=true` goes on where it stopped.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from tbrl.actors.cluster import Cluster
from tbrl.actors.rollout_worker import sampling_of
from tbrl.config import Config
from tbrl.curation.curate import Curation, CurationRequest, curate
from tbrl.curation.selection import Rule, Screen
from tbrl.observability.view import RunView
from tbrl.policy.builtin import policy_folder
from tbrl.records.provenance import record_tasks
from tbrl.records.run_dir import RunDir
from tbrl.stages.campaigns import CampaignPlan, run_on_engines, start_of
from tbrl.stages.common import Stopped, check_secrets, open_run
from tbrl.stages.evaluate import evaluate
from tbrl.stages.gate import pass_gate
from tbrl.stages.report import write_report
from tbrl.stages.train import train
from tbrl.tasks.load import load_tasks
from tbrl.tasks.schema import save_tasks
from tbrl.types import Task


@dataclass(frozen=True, slots=True)
class Collected:
    candidates: list[Task]
    heldout: list[Task]


def main(config: Config) -> None:
    run = open_run(config)
    with RunView(f"tbrl {config.run}", config.logger.live) as view:
        asyncio.run(_run(config, run, view))
    write_report(config, run)
    check_secrets(config, run)


async def _run(config: Config, run: RunDir, view: RunView) -> None:
    collected = collect(config, run, view)
    extra = pass_gate(config, view)
    view.begin("start engines", config.topology.rollout_workers)
    tasks = collected.candidates + collected.heldout
    async with Cluster(config, tasks) as cluster:
        view.update("start engines", config.topology.rollout_workers)
        view.end("start engines", cluster.dashboard)
        pool = await select_pool(cluster, run, collected.candidates, view)
        base = policy_folder(config.model.path)
        await cluster.fleet.load_folder(base, 0)
        await evaluate(cluster, run, "before", collected.heldout, view)
        trained = await train(cluster, run, list(pool.train), view, config.resume, extra)
        if not trained.complete:
            raise Stopped(config, f"stopped after step {trained.next_step}")
        await evaluate(cluster, run, "after", collected.heldout, view)


def collect(config: Config, run: RunDir, view: RunView) -> Collected:
    """Load and check both sets; every golden replay runs here."""
    view.begin("collect", 2, "tasks, golden replays")
    candidates = load_tasks(config.tasks, "candidate")
    view.update("collect", 1)
    heldout = load_tasks(config.tasks, "heldout")
    save_tasks(run.curation / "candidates.jsonl", candidates)
    save_tasks(run.evaluation / "tasks.jsonl", heldout)
    record_tasks(run, "candidate", candidates)
    record_tasks(run, "heldout", heldout)
    view.update("collect", 2)
    view.end("collect", f"{len(candidates)} candidates, {len(heldout)} held out")
    return Collected(candidates, heldout)


async def select_pool(
    cluster: Cluster, run: RunDir, candidates: list[Task], view: RunView
) -> Curation:
    """Screen, probe, classify."""
    config = cluster.config
    probes, screens = await probe_candidates(cluster, run, candidates, view)
    request = curation_request(config, candidates, probes, screens)
    result = curate(request, run.curation)
    expected = result.expected
    view.line(
        f"classify: {len(result.train)} of {len(candidates)} candidates kept; expected "
        f"{expected.refills_per_step:.1f} refills a step"
    )
    return result


async def probe_candidates(
    cluster: Cluster, run: RunDir, candidates: list[Task], view: RunView
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Probe files of the base policy, and of the reference policy where one screens."""
    config = cluster.config
    screens: tuple[Path, ...] = ()
    if config.model.reference_path:
        await cluster.fleet.load_folder(policy_folder(config.model.reference_path), 1)
        screens = (run.probes / "reference.jsonl",)
        attempts = config.curation.screen_probes
        await probe(cluster, screens[0], "screen", candidates, attempts, view)
    await cluster.fleet.load_folder(policy_folder(config.model.path), 2)
    probes = (run.probes / "base.jsonl",)
    await probe(cluster, probes[0], "probe", candidates, config.curation.probes, view)
    return probes, screens


def curation_request(
    config: Config, candidates: list[Task], probes: tuple[Path, ...], screens: tuple[Path, ...]
) -> CurationRequest:
    """The curation that the configuration asks for."""
    c = config.curation
    return CurationRequest(
        tasks=candidates,
        probe_files=probes,
        rule=Rule(tuple(c.boundaries), tuple(c.keep), c.min_clean_probes),
        group_size=config.algorithm.group_size,
        groups_per_step=config.algorithm.groups_per_step,
        screen_files=screens,
        screen=Screen(min_successes=c.screen_min_successes),
        fields=dict(c.fields),
        exclusion_files=tuple(Path(name) for name in config.tasks.exclude),
        test_share=c.test_share,
        seed=c.seed,
    )


async def probe(
    cluster: Cluster, path: Path, stage: str, tasks: list[Task], attempts: int, view: RunView
) -> None:
    config = cluster.config
    plan = CampaignPlan(
        stage=stage,
        purpose="probe",
        path=path,
        tasks=tasks,
        attempts=attempts,
        seed=config.curation.seed,
        sampling=sampling_of(config.rollout),
        policy=stage,
    )
    await run_on_engines(cluster, plan, view, start_of(config))
