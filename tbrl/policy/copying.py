"""Copy exercises: a small model must learn to copy before conversations make sense to it.

    zu R 4 1 2 fee K 7 7 0 ok ... K 7 7 0 R 4 1 2

Keys followed by three digits among filler tokens, then the keys again: the digits behind a
repeated key can be predicted, and nothing else. Without these exercises, copying record ids
emerges late or not at all in a short training.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

DIGITS = 3
ENTRIES = 4
FILLER = 6
"""Most filler tokens before an entry."""
ROWS = 32


def copy_loss(model: Qwen3ForCausalLM, exercise: tuple[Tensor, Tensor]) -> Tensor:
    """Mean negative log-likelihood of the copied digits."""
    ids, mask = exercise
    hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[mask[:, 1:]])
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][mask[:, 1:]])


def copy_exercise(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> tuple[Tensor, Tensor]:
    """Ids [ROWS, T] and the mask of the copied digits; rows are cut to a common length."""
    vocabulary = tokenizer.get_vocab()
    digits = [vocabulary[str(d)] for d in range(10)]
    others = [i for i in range(len(tokenizer)) if i not in digits]
    rows = [_row(digits, others, rng) for _ in range(ROWS)]
    length = min(len(ids) for ids, _ in rows)
    return (
        torch.tensor([ids[:length] for ids, _ in rows]),
        torch.tensor([mask[:length] for _, mask in rows]),
    )


def _row(digits: list[int], others: list[int], rng: random.Random) -> tuple[list[int], list[bool]]:
    keys = rng.sample(others, ENTRIES)
    entries = [(key, [rng.choice(digits) for _ in range(DIGITS)]) for key in keys]
    ids: list[int] = []
    mask: list[bool] = []
    for repeated in (False, True, True):
        for key, number in rng.sample(entries, len(entries)):
            filler = [rng.choice(others) for _ in range(rng.randint(0, FILLER))]
            filler = [token for token in filler if token not in keys]
            ids += [*filler, key, *number]
            mask += [False] * (len(filler) + 1) + [repeated] * DIGITS
    return ids, mask
