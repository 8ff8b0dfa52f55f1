"""Runs of the real system in processes of their own, as a user starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl

SMALL = [
    "experiment=quick",
    "tasks.domains=[rental,clinic]",
    "tasks.per_template=2",
    "tasks.heldout_per_template=1",
    "tasks.heldout_domain_per_template=1",
    "model.reference_path=",
    "curation.probes=4",
    "evaluation.attempts=2",
    "algorithm.groups_per_step=2",
    "algorithm.group_size=4",
    "algorithm.max_attempts=40",
    "algorithm.steps=4",
    "checkpoint.every=2",
    "checkpoint.asynchronous=false",
    "topology.threads_per_learner=1",
    "logger.live=false",
]
"""The smallest run that does everything."""


def launch(*overrides: str, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
    """`python -m tbrl.launch ...`, waited for."""
    return subprocess.run(
        [sys.executable, "-m", "tbrl.launch", *overrides],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def kill_when(condition, *overrides: str, timeout_s: float = 280) -> None:  # type: ignore[no-untyped-def]
    """Start a run, kill -9 its driver as soon as `condition()` holds, then clean up as a user
    would."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "tbrl.launch", *overrides],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert driver.poll() is None, f"the run ended by itself: {driver.stderr.read()!r}"  # type: ignore[union-attr]
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.2)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    cleanup()


def processes(title: str) -> list[int]:
    """Ids of live processes whose command line begins with `title`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            continue
        if command.startswith(title):
            found.append(int(folder.name))
    return found


def cleanup() -> None:
    script = Path(__file__).parent.parent / "launch" / "cleanup.sh"
    subprocess.run([str(script)], check=True, capture_output=True, timeout=60)


def tokens(run: Path, step: int) -> list[tuple[object, ...]]:
    """Everything of a step's trained episodes that must not depend on how the run went."""
    frame = pl.read_parquet(run / "episodes" / f"step-{step:06d}.parquet")
    trained = frame.filter(pl.col("fate") == "trained")
    columns = [c for c in trained.columns if c in _IDENTITY]
    assert len(columns) == len(_IDENTITY), sorted(trained.columns)
    return trained.select(columns).sort("slot", "rollout").rows()


_IDENTITY = (
    "slot",
    "attempt",
    "rollout",
    "task_ref",
    "prompt_ids",
    "response_ids",
    "action_mask",
    "behaviour_logprobs",
    "outcome",
)
