"""stage=export: the newest complete checkpoint of a run as a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from tbrl.config import Config
from tbrl.errors import ConfigError
from tbrl.learner.checkpoint import latest_complete, read_manifest
from tbrl.policy.builtin import policy_folder
from tbrl.records.run_dir import RunDir
from tbrl.stages.gate import EXPORT_RECORD


def main(config: Config) -> None:
    """Writes to `output` (default: <run>/policy)."""
    run = RunDir.existing(config.runs_dir, config.run)
    out = export_latest(config, run, Path(config.output) if config.output else run.root / "policy")
    Console(highlight=False).print(f"exported: {out}")


def export_latest(config: Config, run: RunDir, out: Path) -> Path:
    """Raises ConfigError when the run has no complete checkpoint."""
    from tbrl.serving.export import export
    from tbrl.serving.server import readers

    checkpoint = latest_complete(run.checkpoints)
    if checkpoint is None:
        raise ConfigError(f"{run.checkpoints} holds no complete checkpoint to export; train first")
    source = policy_folder(config.model.path)
    renderer, _ = readers(config, source)
    template = renderer.chat_template
    export(checkpoint, source, out, dtype=config.model.engine_dtype, chat_template=template)
    caller = read_manifest(checkpoint).extra["caller"]
    record = {"run": run.name, "step": caller["step"], "parity": caller["parity"]}
    (out / EXPORT_RECORD).write_text(json.dumps(record, indent=1))
    return out
