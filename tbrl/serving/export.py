"""A checkpoint as a Hugging Face folder that any engine can serve.

Written aside, loaded back, compared in log probabilities with the weights it was made from, and
only then given its name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tbrl.errors import ConfigError, InvariantError
from tbrl.types import JsonObject

RECORD = "tbrl_export.json"
"""Marks a folder as written here: such a folder may be replaced, no other."""

PROBE_TOKENS = 48
TOLERANCE = 1e-4
"""Largest |difference| of two float32 log probabilities of the same weights."""


def export(
    weights: str | Path | Mapping[str, Tensor],
    source: str | Path,
    out: str | Path,
    *,
    dtype: str = "float32",
    chat_template: str | None = None,
    max_shard_size: str = "5GB",
) -> float:
    """Write `out`: safetensors shards with their index, config, generation config, tokenizer, chat
    template. Returns the largest log probability difference of the check.

    `weights` is a complete checkpoint folder, or whole tensors by Hugging Face name; `source` the
    model folder that training began with; `dtype` what the weights are rounded to (the engine's,
    to export what was served); `chat_template` replaces the source's (Renderer.chat_template).
    Raises ConfigError on an incomplete checkpoint, on weights that do not fit the source's
    architecture, and on a target that something else lies in.
    """
    out, source = Path(out), Path(source)
    _refuse_foreign(out)
    tensors, record = _whole(weights)
    rounded = {name: t.to(getattr(torch, dtype)) for name, t in tensors.items()}
    aside = out.with_name(out.name + ".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    expected = _write_model(rounded, source, aside, max_shard_size)
    _write_tokenizer(source, aside, chat_template)
    difference = float((_probe(_load(aside)) - expected).abs().max())
    if not difference <= TOLERANCE:
        raise InvariantError(f"{aside}: loaded back, log probabilities differ by {difference:g}")
    record = {**record, "source": source.name, "dtype": dtype, "logprob_difference": difference}
    (aside / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True))
    shutil.rmtree(out, ignore_errors=True)
    aside.rename(out)
    return difference


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not (out / RECORD).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"output={out}: something else lies there; name another folder")


def _whole(
    weights: str | Path | Mapping[str, Tensor],
) -> tuple[Mapping[str, Tensor], JsonObject]:
    """Whole tensors, and what is known of where they come from."""
    if isinstance(weights, Mapping):
        return weights, {}
    from tbrl.learner.checkpoint import broken_file, consolidate, read_manifest

    manifest = read_manifest(weights)
    broken = broken_file(weights)
    if broken:
        raise ConfigError(
            f"{weights}: {broken} is missing or damaged; export a complete checkpoint"
        )
    return consolidate(weights), {"step": manifest.step, "checkpoint": manifest.extra}


def _write_model(
    tensors: Mapping[str, Tensor], source: Path, target: Path, max_shard_size: str
) -> Tensor:
    """Save the model; returns its probe log probabilities, computed before it touched the disk."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(source, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    _check_names(model, tensors, source)
    # Parameters only: buffers (rotary frequencies) are not in a checkpoint, so they are made anew.
    model = AutoModelForCausalLM.from_config(config, dtype=next(iter(tensors.values())).dtype)
    model.load_state_dict(dict(tensors), strict=False)
    model.tie_weights()
    if (source / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(source, local_files_only=True)
    model.save_pretrained(target, max_shard_size=max_shard_size)
    return _probe(model.float())


def _check_names(model: Any, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Raises ConfigError unless the tensors are exactly the model's parameters (a tied head may be
    left out)."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    missing = sorted(shapes.keys() - tensors.keys())
    unknown = sorted(tensors.keys() - model.state_dict().keys())
    wrong = sorted(n for n in shapes.keys() & tensors.keys() if tensors[n].shape != shapes[n])
    for what, names in (("lack", missing), ("hold unknown", unknown), ("misshape", wrong)):
        if names:
            raise ConfigError(
                f"model.path={source}: the weights {what} {names[0]} ({len(names)} in all); "
                "export with the model folder that training began with"
            )


def _write_tokenizer(source: Path, target: Path, chat_template: str | None) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(target)


def _load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)


@torch.no_grad()
def _probe(model: Any) -> Tensor:
    """Log probabilities [T, V] of a fixed token sequence, float32."""
    ids = torch.arange(PROBE_TOKENS) * 7919 % model.config.vocab_size
    return torch.log_softmax(model.eval()(ids[None]).logits[0].float(), dim=-1)
