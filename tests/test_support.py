"""The support against a per-row version in plain Python and against the engine's own function."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_toys import ToyPolicy

from tbrl.config import AlgorithmConfig, ModelConfig
from tbrl.errors import ConfigError
from tbrl.learner.learner import GrpoLearner
from tbrl.learner.support import check_trainable, find_candidates, restrict_
from tbrl.types import Sampling


def reference_support(row: list[float], top_k: int, top_p: float) -> set[int]:
    """Kept ids, from the description: top-k with ties, then top-p within."""
    kept = set(range(len(row)))
    if 0 < top_k < len(row):
        kth = sorted(row, reverse=True)[top_k - 1]
        kept = {i for i in kept if row[i] >= kth}
    if top_p < 1.0:
        top = max(row[i] for i in kept)
        mass = {i: math.exp(row[i] - top) for i in kept}
        total, below = sum(mass.values()), 0.0
        for i in sorted(kept, key=lambda i: row[i])[:-1]:
            below += mass[i] / total
            if below <= 1.0 - top_p:
                kept.discard(i)
    return kept


def dense(logits, sampled, top_k, top_p):
    masked = logits.clone()
    edge = restrict_(masked, sampled, top_k, top_p)
    return masked, edge


def sparse(logits, sampled, top_k, top_p):
    found = find_candidates(logits, sampled, top_k, top_p)
    if found is None:
        return None
    masked = torch.full_like(logits, -torch.inf)
    masked.scatter_reduce_(1, found.ids, found.logits, "amax")
    assert int((found.logits > -torch.inf).sum()) == int((masked > -torch.inf).sum())
    return masked, found.edge


@given(
    st.integers(0, 10_000), st.sampled_from([0, 1, 2, 5, 29, 30, 50]),
    st.sampled_from([1.0, 0.95, 0.5, 0.05]), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_support_is_top_k_with_ties_then_top_p(seed, top_k, top_p, ties):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(6, 30, generator=generator, dtype=torch.float64)
    if ties and top_p == 1.0:
        logits = logits.round()
    sampled = torch.randint(30, (6,), generator=generator)
    results = [dense(logits, sampled, top_k, top_p)]
    if top_k:
        results.append(sparse(logits, sampled, top_k, top_p) or results[0])
    for masked, edge in results:
        for row, values in enumerate(logits.tolist()):
            kept = reference_support(values, top_k, top_p)
            token = int(sampled[row])
            assert bool(edge[row]) == (token not in kept)
            found = {i for i, v in enumerate(masked[row].tolist()) if v > -math.inf}
            assert found == kept | {token}
            assert all(masked[row, i] == logits[row, i] for i in found)


def test_many_ties_with_the_kth_are_kept_by_falling_back():
    logits = torch.zeros(2, 40)
    assert find_candidates(logits, torch.tensor([0, 39]), 4, 1.0) is None
    masked, edge = dense(logits, torch.tensor([0, 39]), 4, 1.0)
    assert bool((masked == 0).all()) and not bool(edge.any())


@pytest.mark.parametrize("top_k", [0, 20])
@pytest.mark.parametrize("top_p", [1.0, 0.95])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_distribution_equals_the_engines_processed_logprobs(top_k, top_p, temperature):
    sampler = pytest.importorskip("vllm.v1.sample.ops.topk_topp_sampler")
    logits = 3 * torch.randn(256, 768, generator=torch.Generator().manual_seed(3))
    scaled = logits / temperature
    theirs = sampler.apply_top_k_top_p_pytorch(
        scaled.clone(),
        torch.full((256,), top_k, dtype=torch.int32) if top_k else None,
        torch.full((256,), top_p) if top_p < 1 else None,
        allow_cpu_sync=True,
    ).log_softmax(dim=-1, dtype=torch.float32)
    sampled = theirs.argmax(dim=1)
    ours, edge = dense(scaled, sampled, top_k, top_p)
    torch.testing.assert_close(ours.log_softmax(1), theirs, rtol=0, atol=1e-6)
    assert not bool(edge.any())
    if top_k:
        few = sparse(scaled, sampled, top_k, top_p)
        torch.testing.assert_close(few[0].log_softmax(1), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(top_p=0.0), Sampling(top_k=-1)]
)
def test_sampling_without_a_distribution_is_refused(sampling):
    with pytest.raises(ConfigError):
        check_trainable(sampling)
    with pytest.raises(ConfigError):
        GrpoLearner(AlgorithmConfig(), ModelConfig(), sampling, policy=ToyPolicy())
