"""stage=probe: the base policy on every candidate, `curation.probes` clean times each."""

from __future__ import annotations

import asyncio

from tbrl.actors.cluster import Cluster
from tbrl.config import Config
from tbrl.observability.view import RunView
from tbrl.records.run_dir import RunDir
from tbrl.stages.common import open_run
from tbrl.stages.gate import pass_gate
from tbrl.stages.pipeline import probe_candidates
from tbrl.tasks.load import load_tasks


def main(config: Config) -> None:
    run = open_run(config)
    with RunView(f"tbrl probe {config.run}", config.logger.live) as view:
        asyncio.run(_run(config, run, view))


async def _run(config: Config, run: RunDir, view: RunView) -> None:
    tasks = load_tasks(config.tasks, "candidate")
    pass_gate(config, view)
    async with Cluster(config, tasks) as cluster:
        await probe_candidates(cluster, run, tasks, view)
