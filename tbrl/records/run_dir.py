"""The folder of one run.

runs/<name>/
    config.yaml             resolved configuration (names of environment variables, no values)
    provenance.json         one entry per start: versions, hashes, topology
    metrics.jsonl           one line per step and per event
    ledger.jsonl            one line per step (ledger.LedgerRow)
    receipts.jsonl          one line per step (receipts.StepReceipt)
    episodes/step-000001.parquet
    checkpoints/  probes/  curation/  evaluation/
    report.html
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tbrl.errors import ConfigError
from tbrl.records.jsonl import read_jsonl, rewrite_jsonl

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FOLDERS = ("episodes", "checkpoints", "probes", "curation", "evaluation")


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of a run. Made by `create` or `existing`, which decide whether it may be written."""

    root: Path

    @classmethod
    def create(cls, runs_dir: str | Path, name: str) -> RunDir:
        """A new run. Raises ConfigError where one of this name already lies."""
        run = cls(_root(runs_dir, name))
        if run.root.exists() and any(run.root.iterdir()):
            raise ConfigError(
                f"run={name}: {run.root} already exists; continue it with resume=true, "
                "give another run=<name>, or delete the folder"
            )
        for folder in _FOLDERS:
            (run.root / folder).mkdir(parents=True, exist_ok=True)
        return run

    @classmethod
    def existing(cls, runs_dir: str | Path, name: str) -> RunDir:
        """A run to resume, evaluate, replay or report on. Raises ConfigError where none lies."""
        run = cls(_root(runs_dir, name))
        if not run.config.is_file():
            raise ConfigError(
                f"run={name}: {run.root} holds no run; start one without resume=true, or list "
                f"the runs that exist with: ls {runs_dir}"
            )
        for folder in _FOLDERS:
            (run.root / folder).mkdir(exist_ok=True)
        return run

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def provenance(self) -> Path:
        return self.root / "provenance.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.jsonl"

    @property
    def receipts(self) -> Path:
        return self.root / "receipts.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def probes(self) -> Path:
        return self.root / "probes"

    @property
    def curation(self) -> Path:
        return self.root / "curation"

    @property
    def evaluation(self) -> Path:
        return self.root / "evaluation"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    def episodes(self, step: int) -> Path:
        return self.root / "episodes" / f"step-{step:06d}.parquet"

    def recorded_steps(self) -> list[int]:
        """Steps whose episodes are on disk, ascending."""
        return sorted(int(p.stem[5:]) for p in (self.root / "episodes").glob("step-*.parquet"))

    def rewind(self, step: int) -> None:
        """Forget `step` and all after it: a resumed run repeats them, and each is then recorded
        once. Rows without a step are kept."""
        for path in (self.metrics, self.ledger, self.receipts):
            if path.exists():
                rewrite_jsonl(path, [r for r in read_jsonl(path) if r.get("step", -1) < step])
        for recorded in self.recorded_steps():
            if recorded >= step:
                self.episodes(recorded).unlink()


def write_text(path: Path, text: str) -> None:
    """Write aside, then rename: readers see the old file or the new one, never half of it."""
    aside = path.with_name(path.name + ".tmp")
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def _root(runs_dir: str | Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"run={name!r}: a run's name is a folder name of letters, digits, '.', '_' and '-'"
        )
    return Path(runs_dir) / name
