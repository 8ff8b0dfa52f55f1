"""The policy as the learner sees it: a micro-batch in, logprobs of its action tokens out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tbrl.errors import ConfigError
from tbrl.learner.attention import plan_attention, register_attention
from tbrl.learner.head import TokenScores, score_tokens
from tbrl.learner.packing import PackedBatch, Sequence1D, pack_sequences
from tbrl.types import Sampling


class Policy(nn.Module):
    """What the engine trains."""

    def forward(
        self, batch: PackedBatch, samplings: tuple[Sampling, ...]
    ) -> tuple[TokenScores, ...]:
        """Scores of the batch's N action tokens, one TokenScores per entry of `samplings`."""
        raise NotImplementedError

    def shard_units(self) -> list[nn.Module]:
        """Modules that are sharded on their own, before the whole."""
        return []

    @staticmethod
    def public_name(name: str) -> str:
        """A parameter's name in the Hugging Face checkpoint."""
        return name


Scorer = Callable[[PackedBatch, tuple[Sampling, ...]], tuple[TokenScores, ...]]
"""A Policy's forward, or an engine's around it."""


class HuggingFacePolicy(Policy):
    """A Hugging Face causal LM whose forward scores the action tokens of a PackedBatch.

    The head runs inside `forward`, so that a sharded head is whole while it is used, and only on
    the rows that predict an action token.
    """

    def __init__(self, causal_lm: Any, head_chunk: int = 512) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.head_chunk = head_chunk

    def forward(
        self, batch: PackedBatch, samplings: tuple[Sampling, ...]
    ) -> tuple[TokenScores, ...]:
        output = self.causal_lm.base_model(
            input_ids=batch.input_ids[None],
            position_ids=batch.position_ids[None],
            use_cache=False,
            plan=plan_attention(batch.spans, batch.input_ids.device, batch.sequence),
        )
        hidden = output.last_hidden_state[0].index_select(0, batch.rows)
        weight = self.causal_lm.get_output_embeddings().weight
        return tuple(
            score_tokens(hidden, weight, batch.targets, sampling, self.head_chunk)
            for sampling in samplings
        )

    def shard_units(self) -> list[nn.Module]:
        return list(self.causal_lm.base_model.layers)

    @staticmethod
    def public_name(name: str) -> str:
        return name.removeprefix("causal_lm.")


def load_policy(
    path: str, head_chunk: int = 512, gradient_checkpointing: bool = False
) -> HuggingFacePolicy:
    """Load a Hugging Face folder with float32 master weights and the packed attention.

    Raises ConfigError when the folder or its config.json is missing.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    folder = _model_folder(path)
    # The checkpoint's own dtype (often bfloat16) would lose updates of 1e-6.
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=register_attention(), local_files_only=True
    )
    return prepare_policy(model, head_chunk, gradient_checkpointing)


def outline_policy(
    path: str, head_chunk: int = 512, gradient_checkpointing: bool = False
) -> HuggingFacePolicy:
    """What load_policy gives, on the meta device: names and shapes without storage."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(_model_folder(path), local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=register_attention()
        )
    return prepare_policy(model, head_chunk, gradient_checkpointing)


def _model_folder(path: str) -> Path:
    if not (Path(path) / "config.json").is_file():
        raise ConfigError(
            f"model.path={path}: no config.json there; give a local Hugging Face model folder"
        )
    return Path(path)


def prepare_policy(
    model: Any, head_chunk: int = 512, gradient_checkpointing: bool = False
) -> HuggingFacePolicy:
    """Wrap a causal LM that was made with the packed attention; checks its float32 weights."""
    wrong = {p.dtype for p in model.parameters() if p.dtype not in (torch.float32, torch.float64)}
    if wrong:
        raise ConfigError(f"master weights are {wrong}: load the model in float32")
    model.config.use_cache = False
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return HuggingFacePolicy(model, head_chunk)


def probe_sequences(vocabulary: int) -> list[Sequence1D]:
    """Three short sequences for the self-test: two share a prompt, one does not."""
    rng = np.random.default_rng(0)

    def draw(count: int) -> np.ndarray:
        return rng.integers(0, vocabulary, count)

    first, second = draw(7), draw(5)
    shapes = [(first, 6), (first, 9), (second, 4)]
    return [
        Sequence1D(prompt, draw(n), np.ones(n, bool), np.zeros(n, np.float32), 1.0, 1.0)
        for prompt, n in shapes
    ]


def check_packing(policy: Scorer, vocabulary: int, device: torch.device, tolerance: float) -> float:
    """Start-up self-test: packed logprobs equal unpacked ones. Returns the largest difference.

    Low precision rounds differently for every shape of a batch, more so in deep models and where
    rounding sends a token to another expert. How much is measured, by the same sequences with
    tokens behind them that nothing may see; four times that is allowed where it is above
    `tolerance`, up to 20 times that. Raises ConfigError beyond: the model mixes packed sequences
    (a recurrent layer, an attention of its own) and must not be trained packed.
    """
    sequences = probe_sequences(vocabulary)

    def score(batches: list[PackedBatch]) -> torch.Tensor:
        with torch.no_grad():
            scores = [policy(batch.to(device), (Sampling(),))[0].logprobs for batch in batches]
        return torch.cat(scores)

    def apart(given: list[Sequence1D]) -> torch.Tensor:
        return score([pack_sequences([s], 4096, share_prompt=False)[0] for s in given])

    packed, alone = score(pack_sequences(sequences, 4096)), apart(sequences)
    noise = float((apart([_with_tail(s, 19) for s in sequences]) - alone).abs().max())
    limit = min(max(tolerance, 4 * noise), 20 * tolerance)
    difference = float((packed - alone).abs().max())
    if not difference <= limit:
        raise ConfigError(
            f"model.attention: packed and unpacked logprobs differ by {difference:.3g} "
            f"(limit {limit:.3g}); use a model with plain causal attention in every layer"
        )
    return difference


def _with_tail(sequence: Sequence1D, tokens: int) -> Sequence1D:
    """The same, with further tokens that are not scored."""
    return replace(
        sequence,
        response=np.concatenate([sequence.response, np.resize(sequence.prompt, tokens)]),
        mask=np.concatenate([sequence.mask, np.zeros(tokens, bool)]),
        behaviour_logprobs=np.concatenate(
            [sequence.behaviour_logprobs, np.zeros(tokens, np.float32)]
        ),
    )
