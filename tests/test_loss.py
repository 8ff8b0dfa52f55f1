"""The loss against a scalar float64 version written from the formulas' papers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tbrl.learner.loss import LossInput, LossSettings, TokenSums, grpo_loss, merge_sums


def reference_token_loss(new, old, behaviour, advantage, weight, reference, s: LossSettings):
    """PPO clip (arXiv 1707.06347 eq. 7), truncated importance weight, k3 (arXiv 2402.03300)."""
    ratio = math.exp(new - old)
    clipped = min(max(ratio, 1 - s.clip_low), 1 + s.clip_high)
    objective = min(ratio * advantage, clipped * advantage)
    if s.importance_cap > 0:
        objective *= min(math.exp(old - behaviour), s.importance_cap)
    loss = -weight * objective
    if s.kl_coefficient > 0:
        d = reference - new
        loss += weight * s.kl_coefficient * (math.exp(d) - d - 1)
    return loss


def loss_input(new, old, behaviour, advantages, weights, reference=None, mask=None):
    n = len(new)
    return LossInput(
        logprobs=new,
        behaviour_logprobs=behaviour,
        advantages=advantages,
        weights=weights,
        mask=torch.ones(n, dtype=torch.bool) if mask is None else mask,
        entropy=torch.zeros(n, dtype=new.dtype),
        edge=torch.zeros(n, dtype=torch.bool),
        old_logprobs=old,
        full_logprobs=None if reference is None else new,
        reference_logprobs=reference,
    )


def randoms(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(n, generator=generator, dtype=torch.float64)  # noqa: E731
    base = -draw().abs()
    return base, base + 0.3 * draw(), base + 0.3 * draw(), draw(), draw().abs(), base + draw()


@pytest.mark.parametrize("cap", [0.0, 1.1, 2.0])
@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_loss_and_gradient_equal_the_formulas(cap, kl):
    s = LossSettings(clip_low=0.1, clip_high=0.25, importance_cap=cap, kl_coefficient=kl)
    new, old, behaviour, advantages, weights, reference = randoms(64)
    new.requires_grad_()
    out = grpo_loss(loss_input(new, old, behaviour, advantages, weights, reference), s)

    def scalar(values):
        return sum(
            reference_token_loss(*row, s)
            for row in zip(
                values, *(t.tolist() for t in (old, behaviour, advantages, weights, reference)),
                strict=True,
            )
        )  # fmt: skip

    assert out.total.item() == pytest.approx(scalar(new.tolist()), abs=1e-12)
    out.total.backward()
    for i in range(0, 64, 7):
        step = 1e-6
        up, down = new.tolist(), new.tolist()
        up[i], down[i] = up[i] + step, down[i] - step
        assert new.grad[i].item() == pytest.approx(
            (scalar(up) - scalar(down)) / (2 * step), abs=1e-7
        )


def test_without_old_logprobs_the_ratio_is_one_with_the_policy_gradient():
    new, _, behaviour, advantages, weights, _ = randoms(32)
    new.requires_grad_()
    out = grpo_loss(
        loss_input(new, None, behaviour, advantages, weights), LossSettings(importance_cap=0)
    )
    out.total.backward()
    torch.testing.assert_close(new.grad, -weights * advantages, rtol=0, atol=1e-15)
    assert out.sums.clipped == 0


def test_importance_weight_has_no_gradient_and_is_not_clipped_by_the_ratio_range():
    """Learner and sampler far apart, learner unchanged since: only the cap bounds the weight."""
    new = torch.full((1,), -1.0, dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, dtype=torch.float64)
    for behaviour, weight in ((-1.6, math.exp(0.6)), (-3.0, 2.0), (0.0, math.exp(-1.0))):
        new.grad = None
        batch = loss_input(new, new.detach(), behaviour * one, one, one)
        grpo_loss(batch, LossSettings(0.2, 0.2, 2.0)).total.backward()
        assert new.grad.item() == pytest.approx(-weight, abs=1e-12)


def test_clipped_tokens_carry_no_gradient_and_are_counted():
    old = torch.zeros(4, dtype=torch.float64)
    new = torch.tensor([0.5, 0.5, -0.5, -0.5], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    out = grpo_loss(
        loss_input(new, old, old, advantages, torch.ones(4, dtype=torch.float64)),
        LossSettings(0.2, 0.2, 0.0),
    )
    out.total.backward()
    assert (new.grad == 0).tolist() == [True, False, False, True]
    assert out.sums.clipped == 2


EXTREMES = [math.nan, math.inf, -math.inf, 1e30, -1e30]


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("updates", [1, 2])
def test_masked_positions_may_hold_anything(extreme, updates):
    new, old, behaviour, advantages, weights, reference = randoms(8)
    s = LossSettings(kl_coefficient=0.1)
    mask = torch.tensor([True] * 4 + [False] * 4)
    wild = [torch.where(mask, t, extreme) for t in (new, old, behaviour, advantages, weights)]
    leaf = wild[0].clone().requires_grad_()
    wild_old = wild[1] if updates > 1 else None
    out = grpo_loss(
        loss_input(leaf, wild_old, *wild[2:], torch.where(mask, reference, extreme), mask), s
    )
    out.total.backward()
    small = new[:4].clone().requires_grad_()
    few = [t[:4] for t in (old, behaviour, advantages, weights, reference)]
    expected = grpo_loss(loss_input(small, few[0] if updates > 1 else None, *few[1:]), s)
    expected.total.backward()
    assert out.total.item() == expected.total.item()
    assert out.sums == expected.sums
    assert torch.equal(leaf.grad[:4], small.grad)
    assert torch.equal(leaf.grad[4:], torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("n", [0, 3])
def test_empty_mask_is_a_connected_zero_and_counted(n):
    new = torch.full((n,), math.nan, dtype=torch.float64, requires_grad=True)
    blank = torch.full((n,), math.nan, dtype=torch.float64)
    out = grpo_loss(
        loss_input(new, None, blank, blank, blank, mask=torch.zeros(n, dtype=torch.bool)),
        LossSettings(),
    )
    out.total.backward()
    assert out.total.item() == 0.0
    assert torch.equal(new.grad, torch.zeros(n, dtype=torch.float64))
    assert out.sums == TokenSums(empty_batches=1.0)


def test_metrics_are_those_of_the_definitions():
    behaviour = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    new = torch.tensor([-1.5, -1.0, -3.0], dtype=torch.float64)
    one = torch.ones(3, dtype=torch.float64)
    batch = LossInput(
        logprobs=new,
        behaviour_logprobs=behaviour,
        advantages=torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64),
        weights=one,
        mask=torch.ones(3, dtype=torch.bool),
        entropy=torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),
        edge=torch.tensor([False, True, False]),
    )
    sums = grpo_loss(batch, LossSettings(importance_cap=2.0)).sums
    assert sums.entropy == pytest.approx(0.6)
    assert sums.mismatch_kl == pytest.approx(math.exp(-0.5) + 0.5 - 1 + math.exp(1.0) - 1.0 - 1)
    assert sums.max_ratio == pytest.approx(math.e)
    assert (sums.tokens, sums.edge, sums.capped, sums.signal_tokens) == (3, 1, 1, 2)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_sums_do_not_depend_on_how_tokens_are_split(sizes, seed):
    tensors = randoms(sum(sizes), seed)[:5]
    whole = grpo_loss(loss_input(*tensors), LossSettings())
    pieces = [
        grpo_loss(loss_input(*part), LossSettings())
        for part in zip(*(t.split(sizes) for t in tensors), strict=True)
    ]
    assert sum(p.total.item() for p in pieces) == pytest.approx(whole.total.item(), abs=1e-12)
    merged = merge_sums(p.sums for p in pieces)
    for name in TokenSums.__dataclass_fields__:
        assert getattr(merged, name) == pytest.approx(getattr(whole.sums, name), abs=1e-12)


def test_mismatch_of_nearly_equal_policies_is_not_lost_in_rounding():
    behaviour = torch.full((100,), -1.0)
    new = behaviour + torch.linspace(-1e-5, 1e-5, 100)
    one = torch.ones(100)
    sums = grpo_loss(loss_input(new, None, behaviour, one, one), LossSettings()).sums
    gap = new.double() - behaviour.double()
    assert sums.mismatch_kl == pytest.approx(float(gap.square().sum() / 2), rel=1e-4)
