"""stage=report: one HTML page and a terminal summary of a run, or of several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from tbrl.config import Config
from tbrl.evaluation.report import write_report as write_page
from tbrl.evaluation.report_data import ReportOptions, load_report
from tbrl.evaluation.terminal import print_summary
from tbrl.records.run_dir import RunDir

PHASES = ("rollout", "reward", "learner", "weight_sync", "idle")


def main(config: Config) -> None:
    write_report(config, RunDir.existing(config.runs_dir, config.run))


def time_per_step(rows: Sequence[Mapping[str, float]]) -> str:
    """Mean wall seconds of a training step by phase, on one line."""
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    phases = ", ".join(f"{name.replace('_', ' ')} {mean[name]:.2f}" for name in PHASES)
    return (
        f"a step took {mean['total']:.1f} s on average: {phases}; while groups were decoding the "
        f"learner worked {mean['overlap']:.2f} s"
    )


def write_report(config: Config, run: RunDir) -> None:
    """<run>/report.html, and the headline on the terminal. `compare` adds results files or runs."""
    e = config.evaluation
    options = ReportOptions(prices=e.prices, resamples=e.bootstrap, show_golden=e.show_golden)
    report = load_report(run.root, options, [Path(name) for name in config.compare], run.name)
    write_page(report, run.report)
    console = Console(highlight=False)
    print_summary(report, console)
    if report.steps:
        console.print(time_per_step([row["seconds"] for row in report.steps]))
    console.print(f"report: {run.report}")
