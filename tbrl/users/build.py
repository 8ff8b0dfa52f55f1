"""The user simulator that the configuration asks for."""

from __future__ import annotations

from tbrl.config import UserConfig
from tbrl.errors import ConfigError
from tbrl.interfaces import UserSimulator
from tbrl.users.scripted import ScriptedUser

KINDS = ("scripted", "llm")


def build_user(config: UserConfig) -> UserSimulator:
    """Raises ConfigError for an unknown `user.kind`."""
    if config.kind == "scripted":
        return ScriptedUser()
    if config.kind == "llm":
        from tbrl.users.llm import LlmUser

        return LlmUser(config.endpoint)
    raise ConfigError(f"user.kind={config.kind!r} is unknown; choose one of {list(KINDS)}")
