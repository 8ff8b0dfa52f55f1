"""`-m`: every combination of the comma-separated overrides.

A sweep of stage=curate compares settings on the probes of one run, in parallel threads, and ends
in one table and one plot. A sweep of any other stage runs its points one after another (they would
share the same devices), each as a process of its own under run=<run>-<number>.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from rich import box
from rich.console import Console
from rich.table import Table

from tbrl.config import Config
from tbrl.curation.probes import read_probes
from tbrl.curation.sweep import SweepPoint, SweepResult
from tbrl.curation.sweep import sweep as sweep_points
from tbrl.curation.sweep_page import sweep_page
from tbrl.errors import ConfigError
from tbrl.records.run_dir import RunDir

Compose = Callable[[Sequence[str]], Config]


def sweep(overrides: list[str], compose: Compose) -> int:
    """Exit code of the sweep. Raises ConfigError for a bad override."""
    points = expand(overrides)
    configs = [compose(point) for point in points]
    if configs[0].stage == "curate" and not configs[0].dry_run:
        return sweep_curation(overrides, configs)
    return run_one_by_one(points, configs)


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """All combinations, first override slowest."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(f"override: {str(error).splitlines()[0]}") from None
    choices = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [str(o.input_line)]
        for o in parsed
    ]
    return [list(point) for point in product(*choices)]


def sweep_curation(overrides: Sequence[str], configs: list[Config]) -> int:
    """Compare curation settings on one run's probes."""
    first = configs[0]
    run = RunDir.existing(first.runs_dir, first.run)
    files = tuple(Path(name) for name in first.curation.probe_files) or (run.probes / "base.jsonl",)
    probes = read_probes(files, dict(first.curation.fields))
    given = {override.partition("=")[0] for override in overrides}
    points = [
        SweepPoint(
            tuple(c.curation.boundaries),
            c.algorithm.group_size,
            c.curation.probes if "curation.probes" in given else 0,
        )
        for c in configs
    ]
    results = sweep_points(
        probes,
        points,
        first.curation.keep,
        first.algorithm.groups_per_step,
        seed=first.curation.seed,
    )
    Console(highlight=False).print(sweep_table(results, first))
    page = run.curation / "sweep.html"
    page.write_text(sweep_page(results, f"curation sweep of {run.name}"), encoding="utf-8")
    print(f"plot: {page}")
    return 0


def sweep_table(results: Sequence[SweepResult], config: Config) -> Table:
    """One row a setting."""
    table = Table(
        title=f"curation sweep, {config.algorithm.groups_per_step} groups a step",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    table.add_column("boundaries", no_wrap=True)
    for name in ("g", "n", "pool", "diff", "int", "freq", "mixed", "a step", "stable", "firm"):
        table.add_column(name, justify="right", no_wrap=True)
    table.caption = (
        "g: group size; diff, int, freq: kept by band; mixed: P(mixed group); a step: mixed groups "
        "expected; stable: overlap with the pool of fresh probes"
    )
    for r in results:
        p = r.point
        table.add_row(
            "/".join(f"{b:g}" for b in p.boundaries),
            str(p.group_size),
            str(p.probes or "all"),
            str(r.pool),
            *(str(r.bands[b]) for b in ("difficult", "intermediate", "frequently_solved")),
            f"{r.mixed:.2f}",
            f"{r.mixed_per_step:.1f}",
            f"{r.stability:.2f}",
            f"{r.firm:.0%}",
        )
    return table


def run_one_by_one(points: list[list[str]], configs: list[Config]) -> int:
    """Each point as `python -m tbrl.launch`; exit code 1 when any failed."""
    worst = 0
    for number, (point, config) in enumerate(zip(points, configs, strict=True)):
        name = f"{config.run}-{number}"
        print(f"sweep {number + 1}/{len(points)}: {' '.join(point)} run={name}", flush=True)
        kept = [o for o in point if not o.startswith("run=")]
        code = subprocess.run(
            [sys.executable, "-m", "tbrl.launch", *kept, f"run={name}"], check=False
        ).returncode
        worst = max(worst, code)
    return worst
