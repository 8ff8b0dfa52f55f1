"""The sandbox that the configuration asks for."""

from __future__ import annotations

from tbrl.config import SandboxConfig
from tbrl.domains.registry import all_domains
from tbrl.errors import ConfigError
from tbrl.sandbox.embedded import EmbeddedSandbox

KINDS = ("embedded",)


def build_sandbox(config: SandboxConfig) -> EmbeddedSandbox:
    """Raises ConfigError for an unknown `sandbox.kind`."""
    if config.kind != "embedded":
        raise ConfigError(f"sandbox.kind={config.kind!r} is unknown; choose one of {list(KINDS)}")
    return EmbeddedSandbox({domain.name: domain for domain in all_domains()}, config)
