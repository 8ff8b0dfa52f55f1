"""Tiny random Qwen3 policies on disk, for tests that need a real engine or a real learner."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 512


_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
}


def _dense() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**_SHAPE, tie_word_embeddings=True))


def _mixture() -> PreTrainedModel:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**_SHAPE, **experts, norm_topk_prob=True, tie_word_embeddings=False)
    )


def write_policy(folder: Path, seed: int, experts: bool = False) -> Path:
    """A random policy with a byte tokenizer. Peaky: a stale weight shows in the logprobs."""
    torch.manual_seed(seed)
    model = _mixture() if experts else _dense()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(folder)
    return folder
