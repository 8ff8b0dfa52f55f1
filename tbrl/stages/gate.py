"""The parity gate at the start of training and evaluation: the loaded tokenizer and template must
render and read the same way in the loop and in the serving stack."""

from __future__ import annotations

from functools import cache

from tbrl.config import Config
from tbrl.policy.builtin import policy_folder
from tbrl.types import JsonObject


def manifest_extra(config: Config) -> JsonObject:
    """What every checkpoint's manifest says of the policy's words. Raises ConfigError when the
    gate fails."""
    m = config.model
    return {"parity": parity_hash(policy_folder(m.path), m.tool_format, m.strips_reasoning)}


@cache
def parity_hash(folder: str, tool_format: str, strips_reasoning: str) -> str:
    """Run the gate (about 10 s: it imports the serving stack's parsers)."""
    from transformers import AutoTokenizer

    from tbrl.engine.environment import apply, engine_environment
    from tbrl.episode.interpretation import Interpreter
    from tbrl.episode.parity import check
    from tbrl.episode.rendering import Renderer

    apply(engine_environment("cpu", 1))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    renderer = Renderer(tokenizer, strips_reasoning=strips_reasoning)
    report = check(tokenizer, renderer, Interpreter(tokenizer, (), tool_format))
    report.require()
    return report.hash
