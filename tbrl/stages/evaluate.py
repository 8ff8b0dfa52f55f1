"""stage=evaluate: held-out tasks, `evaluation.attempts` times each, by one of three policies.

engine    the policy's own engine, token in and token out: `model.path`, or a checkpoint of the run
chat      an OpenAI-compatible endpoint (evaluation.endpoint)
recorded  a results file (compare=[file]) played turn by turn and graded again
"""

from __future__ import annotations

import asyncio

from rich.console import Console

from tbrl.actors.cluster import Cluster
from tbrl.config import Config
from tbrl.observability.view import RunView
from tbrl.policy.builtin import policy_folder
from tbrl.records.run_dir import RunDir
from tbrl.stages.campaigns import CampaignPlan, run_on_engines, start_of
from tbrl.stages.common import check_secrets, open_run, results_of
from tbrl.stages.gate import pass_gate
from tbrl.stages.report import write_report
from tbrl.tasks.load import load_tasks
from tbrl.tasks.schema import save_tasks
from tbrl.types import Sampling, Task


def main(config: Config) -> None:
    """Results go to <run>/evaluation/<output or `evaluation`>.jsonl."""
    run = open_run(config)
    tasks = load_tasks(config.tasks, "heldout")
    save_tasks(run.evaluation / "tasks.jsonl", tasks)
    name = config.output or "evaluation"
    with RunView(f"tbrl evaluate {config.run}", config.logger.live) as view:
        asyncio.run(_run(config, run, name, tasks, view))
    results_of(run, name)
    write_report(config, run)
    check_secrets(config, run)
    Console(highlight=False).print(f"results: {run.evaluation / name}.jsonl")


async def _run(config: Config, run: RunDir, name: str, tasks: list[Task], view: RunView) -> None:
    if config.evaluation.policy != "engine":
        from tbrl.stages.chat_campaign import evaluate_chat

        await evaluate_chat(config, run, name, tasks, view)
        return
    pass_gate(config, view)
    view.begin("start engines", config.topology.rollout_workers)
    folder = policy_folder(config.model.path)
    async with Cluster(config, tasks, folder) as cluster:
        view.end("start engines", cluster.dashboard)
        await evaluate(cluster, run, name, tasks, view)


async def evaluate(
    cluster: Cluster, run: RunDir, name: str, tasks: list[Task], view: RunView
) -> None:
    """Every task `evaluation.attempts` times with the loaded weights, on seeds that depend on
    task and attempt alone: two policies meet the same random numbers."""
    config = cluster.config
    e = config.evaluation
    plan = CampaignPlan(
        stage=f"evaluate {name}",
        purpose="evaluate",
        path=run.evaluation / f"{name}.jsonl",
        tasks=tasks,
        attempts=e.attempts,
        seed=e.seed,
        sampling=Sampling(e.temperature, e.top_k, e.top_p),
        policy=name,
    )
    await run_on_engines(cluster, plan, view, start_of(config))
