"""stage=serve: vLLM's OpenAI-compatible server on a policy, behind tbrl's proxy, until stopped."""

from __future__ import annotations

from tbrl.config import Config
from tbrl.policy.builtin import policy_folder
from tbrl.records.run_dir import RunDir


def main(config: Config) -> None:
    """Serves `model.path`; its backend's log goes to <runs_dir>/serve-<run>.log."""
    from tbrl.serving.server import serve

    log = RunDir.log_path(config.runs_dir, f"serve-{config.run}")
    serve(config, policy_folder(config.model.path), log)
