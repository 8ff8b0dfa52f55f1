"""stage=serve: vLLM's OpenAI-compatible server on a policy, behind tbrl's proxy, until stopped."""

from __future__ import annotations

from pathlib import Path

from tbrl.config import Config
from tbrl.policy.builtin import policy_folder


def main(config: Config) -> None:
    """Serves `model.path`; its backend's log goes to <runs_dir>/serve-<run>.log."""
    from tbrl.serving.server import serve

    log = Path(config.runs_dir) / f"serve-{config.run}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    serve(config, policy_folder(config.model.path), log)
