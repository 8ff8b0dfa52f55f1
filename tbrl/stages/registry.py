"""Every stage by name. A stage's module is imported only when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from tbrl.errors import ConfigError

if TYPE_CHECKING:
    from tbrl.config import Config

STAGES: dict[str, str] = {
    "pipeline": "collect, screen, probe, classify, train, evaluate, report, in one go",
    "warmstart": "rebuild the tiny policies by supervised fine-tuning on demonstrations",
    "probe": "run the base policy n times on every candidate task",
    "curate": "classify probed candidates by difficulty and fix the training pool",
    "train": "GRPO on the fixed pool",
    "evaluate": "run held-out tasks k times each",
    "report": "one HTML page and a terminal summary of a run",
    "export": "write a checkpoint as a Hugging Face folder",
    "serve": "OpenAI-compatible server of an exported policy",
    "sandbox": "one embedded world over MCP streamable HTTP, for an agent of your own",
    "openenv": "the tasks as an OpenEnv environment, for other trainers",
    "verify": "replay recorded outputs through the interpreter and the serving parsers",
    "replay": "recompute recorded steps and prove equality",
    "plan": "memory per device and phase; refuses what cannot fit",
}


def stage_main(name: str) -> Callable[[Config], None]:
    """The stage's `main(config)`. Raises ConfigError naming the stages that exist."""
    if name not in STAGES:
        raise ConfigError(f"stage={name!r} is unknown; stages: {', '.join(STAGES)}")
    main: Callable[[Config], None] = importlib.import_module(f"tbrl.stages.{name}").main
    return main
