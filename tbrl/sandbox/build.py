"""The sandbox that the configuration asks for."""

from __future__ import annotations

import os
from pathlib import Path

from tbrl.config import SandboxConfig
from tbrl.domains.registry import all_domains
from tbrl.errors import ConfigError
from tbrl.sandbox.embedded import EmbeddedSandbox
from tbrl.sandbox.external import ExternalSandbox
from tbrl.sandbox.thinkingbox import ThinkingBoxSandbox
from tbrl.sandbox.thinkingbox_scenarios import read_scenarios

KINDS = ("embedded", "mcp", "thinkingbox")
AnySandbox = EmbeddedSandbox | ExternalSandbox | ThinkingBoxSandbox


def build_sandbox(config: SandboxConfig) -> AnySandbox:
    """Raises ConfigError for an unknown `sandbox.kind`, a bad address, an unset variable, or
    scenarios that cannot be read."""
    if config.kind == "embedded":
        return EmbeddedSandbox({domain.name: domain for domain in all_domains()}, config)
    if config.kind == "mcp":
        token = os.environ.get(config.api_key_env, "") if config.api_key_env else ""
        if config.api_key_env and not token:
            raise ConfigError(
                f"sandbox.api_key_env={config.api_key_env}: the variable is not set; export it"
            )
        return ExternalSandbox(config, config.setup_tool, config.state_tool, token)
    if config.kind == "thinkingbox":
        return ThinkingBoxSandbox(config, read_scenarios(Path(config.scenarios)))
    raise ConfigError(f"sandbox.kind={config.kind!r} is unknown; choose one of {', '.join(KINDS)}")
