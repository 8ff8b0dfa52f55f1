"""The chunked head against log_softmax over all logits."""

import pytest
import torch

from tbrl.learner import head
from tbrl.learner.head import score_tokens
from tbrl.learner.support import restrict_
from tbrl.types import Sampling

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.7),
    Sampling(top_k=5),
    Sampling(temperature=1.3, top_k=7, top_p=0.9),
    Sampling(top_p=0.8),
    Sampling(top_k=500),
]


def naive(hidden, weight, targets, sampling):
    logits = (hidden @ weight.T) / sampling.temperature
    keep = logits.detach().clone()
    restrict_(keep, targets, sampling.top_k, sampling.top_p)
    logprobs = torch.where(keep > -torch.inf, logits, -torch.inf).log_softmax(1)
    entropy = -torch.where(keep > -torch.inf, logprobs.exp() * logprobs, 0.0).sum(1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy.detach()


def inputs(rows=23, vocabulary=40, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(rows, 6, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(vocabulary, 6, generator=generator, dtype=dtype).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (rows,), generator=generator)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("sparse", [False, True])
def test_chunked_scores_and_gradients_equal_the_naive_ones(sampling, chunk, sparse, monkeypatch):
    monkeypatch.setattr(head, "_DENSE_VOCABULARY", 0 if sparse else 10**9)
    hidden, weight, targets = inputs()
    upstream = torch.linspace(-1, 2, len(targets), dtype=torch.float64)
    expected, entropy = naive(hidden, weight, targets, sampling)
    (expected * upstream).sum().backward()
    grads = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    scores = score_tokens(hidden, weight, targets, sampling, chunk)
    (scores.logprobs * upstream).sum().backward()
    torch.testing.assert_close(scores.logprobs, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(scores.entropy, entropy, rtol=0, atol=1e-12)
    torch.testing.assert_close(hidden.grad, grads[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(weight.grad, grads[1], rtol=0, atol=1e-12)


def test_rows_with_many_ties_use_the_whole_support():
    hidden, weight, targets = inputs()
    with torch.no_grad():
        weight[:30] = weight[0]
    scores = score_tokens(hidden, weight, targets, Sampling(top_k=4), 8)
    expected, _ = naive(hidden, weight, targets, Sampling(top_k=4))
    torch.testing.assert_close(scores.logprobs, expected, rtol=0, atol=1e-12)


def test_bfloat16_weights_give_float32_scores():
    hidden, weight, targets = inputs(dtype=torch.bfloat16)
    scores = score_tokens(hidden, weight, targets, Sampling(), 8)
    assert scores.logprobs.dtype == scores.entropy.dtype == torch.float32
    scores.logprobs.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_token_outside_the_support_is_forced_in_and_counted():
    hidden, weight, _ = inputs()
    worst = (hidden @ weight.T).argmin(1)
    scores = score_tokens(hidden, weight, worst, Sampling(top_k=3), 8)
    assert bool(scores.edge.all()) and bool(torch.isfinite(scores.logprobs).all())


def test_no_rows_are_no_scores():
    hidden, weight, targets = inputs()
    scores = score_tokens(hidden[:0], weight, targets[:0], Sampling(top_k=3), 8)
    scores.logprobs.sum().backward()
    assert scores.logprobs.shape == (0,) and bool((weight.grad == 0).all())


def test_nothing_of_rows_times_vocabulary_size_is_kept_for_backward():
    rows, vocabulary = 64, 5000
    hidden, weight, targets = inputs(rows, vocabulary)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        scores = score_tokens(hidden, weight, targets, Sampling(top_k=20), 16)
    extra = sum(t.numel() for pair in scores.logprobs.grad_fn.kept for t in pair)
    assert max(kept) <= weight.numel() and extra <= 2 * rows * 29


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=5), Sampling(top_p=0.8)])
def test_second_backward_pass_gives_the_same_gradient(sampling):
    hidden, weight, targets = inputs()
    total = score_tokens(hidden, weight, targets, sampling, 8).logprobs.sum()
    first = torch.autograd.grad(total, [hidden, weight], retain_graph=True)
    for once, again in zip(first, torch.autograd.grad(total, [hidden, weight]), strict=True):
        torch.testing.assert_close(again, once, rtol=0, atol=1e-12)


def test_without_top_k_one_chunk_of_probabilities_is_kept():
    hidden, weight, targets = inputs(rows=64, vocabulary=500)
    scores = score_tokens(hidden, weight, targets, Sampling(), 16)
    kept = scores.logprobs.grad_fn.kept
    assert sum(t.numel() for pair in kept for t in pair if t is not None) == 16 * 500


@pytest.mark.parametrize("sparse", [False, True])
def test_a_16_bit_weight_gradient_is_rounded_once_and_not_with_every_chunk(sparse, monkeypatch):
    monkeypatch.setattr(head, "_DENSE_VOCABULARY", 0 if sparse else 10**9)
    sampling = Sampling(top_k=5) if sparse else Sampling()
    hidden, weight, targets = inputs(rows=4096, dtype=torch.bfloat16)
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    score_tokens(*exact, targets, sampling, 8).logprobs.sum().backward()
    score_tokens(hidden, weight, targets, sampling, 8).logprobs.sum().backward()
    error = (weight.grad.double() - exact[1].grad).abs().max() / exact[1].grad.abs().max()
    assert error < 2**-8
