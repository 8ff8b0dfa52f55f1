"""stage=report: one HTML page and a terminal summary of a run, or of several side by side."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tbrl.config import Config
from tbrl.evaluation.report import write_report as write_page
from tbrl.evaluation.report_data import ReportOptions, load_report
from tbrl.evaluation.terminal import print_summary
from tbrl.records.run_dir import RunDir


def main(config: Config) -> None:
    write_report(config, RunDir.existing(config.runs_dir, config.run))


def write_report(config: Config, run: RunDir) -> None:
    """<run>/report.html, and the headline on the terminal. `compare` adds results files or runs."""
    e = config.evaluation
    options = ReportOptions(prices=e.prices, resamples=e.bootstrap, show_golden=e.show_golden)
    report = load_report(run.root, options, [Path(name) for name in config.compare], run.name)
    write_page(report, run.report)
    console = Console(highlight=False)
    print_summary(report, console)
    console.print(f"report: {run.report}")
