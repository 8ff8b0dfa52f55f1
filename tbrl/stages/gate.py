"""The parity gate at the start of training and evaluation: the loaded tokenizer and template must
render and read the same way in the loop and in the serving stack."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tbrl.config import Config
from tbrl.errors import ConfigError
from tbrl.observability.view import RunView
from tbrl.policy.builtin import policy_folder
from tbrl.types import JsonObject

EXPORT_RECORD = "tbrl.json"
"""In an exported folder: what the policy was trained under."""


def pass_gate(config: Config, view: RunView) -> JsonObject:
    """Run the gate before anything starts; returns what every checkpoint's manifest says of the
    policy's words. Raises ConfigError when the gate fails."""
    view.begin("parity gate", 1)
    parity = parity_of(config)
    view.update("parity gate", 1)
    view.end("parity gate", f"hash {parity[:12]}")
    return {"parity": parity}


def parity_of(config: Config) -> str:
    """The gate's hash for the configured model. Raises ConfigError when the gate fails, or when
    the policy was exported from training under another hash (template, tokenizer or parser
    differ) and `evaluation.allow_parity_mismatch` does not allow that."""
    m = config.model
    folder = policy_folder(m.path)
    found = parity_hash(folder, m.tool_format, m.strips_reasoning, config.topology.device)
    record = Path(folder) / EXPORT_RECORD
    trained = json.loads(record.read_text())["parity"] if record.is_file() else found
    if trained != found and not config.evaluation.allow_parity_mismatch:
        raise ConfigError(
            f"model.path={m.path}: trained under parity hash {trained}, here it is {found}: the "
            "policy's words would be read differently; use the tokenizer, template and tbrl "
            "version it was trained with, or set evaluation.allow_parity_mismatch=true"
        )
    return found


@cache
def parity_hash(folder: str, tool_format: str, strips_reasoning: str, device: str) -> str:
    """Run the gate (about 10 s: it imports the serving stack's parsers)."""
    from transformers import AutoTokenizer

    from tbrl.engine.environment import apply, engine_environment
    from tbrl.episode.interpretation import Interpreter
    from tbrl.episode.parity import check
    from tbrl.episode.rendering import Renderer

    apply(engine_environment(device, 1))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    renderer = Renderer(tokenizer, strips_reasoning=strips_reasoning)
    interpreter = Interpreter(tokenizer, (), tool_format, renderer.reasoning_preopened)
    report = check(tokenizer, renderer, interpreter)
    report.require()
    return report.hash
