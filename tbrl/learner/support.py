"""The sampler's support: which tokens could have been drawn, and the distribution on them.

The engine samples from processed logits: float32, divided by the temperature, then the k largest
(ties with the k-th kept), then within those the smallest set of likeliest tokens whose mass
reaches top_p, then renormalised. The learner's logprobs must live on the same support, or its
ratio to the sampler compares two different distributions. The learner's own logits differ a
little from the engine's, so a sampled token can fall just outside: it is then forced in, and
counted as an edge token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tbrl.errors import ConfigError
from tbrl.types import Sampling

_SPARE = 8
"""Candidates beyond top_k, for logits that tie with the k-th."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The support of n rows as at most m token ids a row, plus the sampled token.

    The last column is the sampled token: it carries its logit when it lies outside the support
    (an edge token), else -inf, so that each token counts once.
    """

    logits: Tensor
    """float [n, m + 1], already divided by the temperature; -inf where not in the support."""
    ids: Tensor
    """int64 [n, m + 1]"""
    edge: Tensor
    """bool [n]: the sampled token had to be forced in."""


def check_trainable(sampling: Sampling) -> None:
    """Raise ConfigError for sampling that the learner cannot describe."""
    if not sampling.temperature > 0:
        raise ConfigError(
            f"temperature={sampling.temperature}: greedy sampling has no logprobs to train on; "
            "use a temperature above 0"
        )
    if sampling.top_k < 0 or not 0 < sampling.top_p <= 1:
        raise ConfigError(
            f"top_k={sampling.top_k}, top_p={sampling.top_p}: use top_k >= 0 (0 = off) and "
            "0 < top_p <= 1"
        )


def find_candidates(logits: Tensor, sampled: Tensor, top_k: int, top_p: float) -> Candidates | None:
    """Support of top_k > 0 in sparse form, or None where ties make it larger than the spare room.

    Args: logits [n, V] divided by the temperature; sampled int64 [n].
    """
    vocabulary = logits.shape[1]
    width = min(vocabulary, top_k + _SPARE)
    values, ids = logits.topk(width, dim=1)
    kth = values[:, min(top_k, width) - 1 : min(top_k, width)]
    if width < vocabulary and bool((values[:, -1:] >= kth).any()):
        return None
    values = values.masked_fill(values < kth, -torch.inf)
    if top_p < 1.0:
        # Ascending cumulative mass, as the engine does it: drop while it is <= 1 - top_p.
        mass = values.softmax(dim=1).flip(1).cumsum(dim=1).flip(1)
        drop = mass <= 1.0 - top_p
        drop[:, 0] = False
        values = values.masked_fill(drop, -torch.inf)
    inside = ((ids == sampled[:, None]) & (values > -torch.inf)).any(dim=1)
    chosen = logits.gather(1, sampled[:, None])
    extra = chosen.masked_fill(inside[:, None], -torch.inf)
    return Candidates(
        torch.cat([values, extra], dim=1), torch.cat([ids, sampled[:, None]], dim=1), ~inside
    )


def restrict_(logits: Tensor, sampled: Tensor, top_k: int, top_p: float) -> Tensor:
    """Set logits outside the support to -inf, in place; returns edge, bool [n].

    Args: logits [n, V] divided by the temperature; sampled int64 [n]. The sampled token keeps its
    logit in every case.
    """
    chosen = logits.gather(1, sampled[:, None])
    if 0 < top_k < logits.shape[1]:
        kth = logits.topk(top_k, dim=1).values[:, -1:]
        logits.masked_fill_(logits < kth, -torch.inf)
    if top_p < 1.0:
        ascending, order = logits.sort(dim=1)
        drop = ascending.softmax(dim=1).cumsum(dim=1) <= 1.0 - top_p
        drop[:, -1] = False
        logits.masked_fill_(torch.zeros_like(drop).scatter_(1, order, drop), -torch.inf)
    edge = logits.gather(1, sampled[:, None]) == -torch.inf
    logits.scatter_(1, sampled[:, None], chosen)
    return edge[:, 0]
