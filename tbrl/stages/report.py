"""stage=report: one HTML page and a terminal summary of a run (or of several, side by side)."""

from __future__ import annotations

from rich.console import Console

from tbrl.config import Config
from tbrl.records.run_dir import RunDir


def main(config: Config) -> None:
    write_report(config, RunDir.existing(config.runs_dir, config.run))


def write_report(config: Config, run: RunDir) -> None:
    from tbrl.evaluation.report import report

    report(run, config, Console(highlight=False))
