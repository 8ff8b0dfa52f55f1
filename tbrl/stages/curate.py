"""stage=curate: probes -> posterior, bands, selection lists. Needs no engine."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from tbrl.config import Config
from tbrl.curation.curate import Curation, curate
from tbrl.errors import ConfigError
from tbrl.records.run_dir import RunDir
from tbrl.stages.pipeline import curation_request
from tbrl.tasks.load import load_tasks


def main(config: Config) -> None:
    """Reads the run's own probes, or `curation.probe_files`; writes curation/ of the run."""
    given = [Path(name) for name in config.curation.probe_files]
    run = RunDir.existing(config.runs_dir, config.run)
    files = tuple(given) or (run.probes / "base.jsonl",)
    for path in files:
        if not path.is_file():
            raise ConfigError(f"{path}: no such probe file; run stage=probe first")
    reference = run.probes / "reference.jsonl"
    screens = (reference,) if reference.is_file() and not given else ()
    tasks = load_tasks(config.tasks, "candidate")
    result = curate(curation_request(config, tasks, files, screens), run.curation)
    Console(highlight=False).print(summary_table(result))


def summary_table(result: Curation) -> Table:
    """Bands, reasons and the expected yield of the pool."""
    table = Table(title=f"curation -> {result.out}", title_justify="left")
    table.add_column("band")
    table.add_column("kept", justify="right")
    table.add_column("dropped", justify="right")
    bands = sorted({v.band for v in result.verdicts})
    for band in bands:
        here = [v for v in result.verdicts if v.band == band]
        kept = sum(v.kept for v in here)
        table.add_row(band, str(kept), str(len(here) - kept))
    expected = result.expected
    table.caption = (
        f"{len(result.train)} train, {len(result.test)} test; a group is mixed with probability "
        f"{expected.mixed:.2f}, {expected.refills_per_step:.1f} refills a step expected"
    )
    return table
