"""The engine: ranks, signal-free steps, master weights."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from learner_toys import (
    ToyPolicy,
    groups,
    on_ranks,
    parameters,
    tiny_policy,
    train_on,
    whole,
)

from tbrl.config import AlgorithmConfig, ModelConfig
from tbrl.errors import InvariantError
from tbrl.learner.accumulate import PackingSettings, prepare_group
from tbrl.learner.distributed import Ranks, join_ranks, leave_ranks
from tbrl.learner.fsdp2 import EngineSettings, Fsdp2Learner
from tbrl.learner.learner import GrpoLearner
from tbrl.learner.loss import LossSettings
from tbrl.types import Sampling

DATA = groups(5)
FLAT = groups(2, rewards=(1, 1, 1, 1))


def learner(ranks=None, policy=None, own_pace=True, dtype="float32", **keys):
    keys = {"learning_rate": 1e-3, "max_grad_norm": 0.0, **keys}
    return GrpoLearner(
        AlgorithmConfig(**keys),
        ModelConfig(learner_dtype=dtype),
        Sampling(),
        ranks or Ranks(),
        policy or ToyPolicy(),
        own_pace,
    )


def step(subject, data=DATA):
    return train_on(subject, data)


def moments(subject):
    return {n: whole(m) / 0.1 for n, m in subject.engine.state()["exp_avg"].items()}


KINDS = {"toy": ToyPolicy, "hf": tiny_policy}
CASES = [
    (kind, own_pace, data)
    for kind in KINDS
    for own_pace in (True, False)
    # Five slots are uneven on two and three ranks; one slot leaves the others without any.
    for data in ("five", "one")
]
SETS = {"five": DATA, "one": DATA[:1]}


def run_case(kind, own_pace, data, ranks=None, **keys):
    """Gradients of one step (numpy: plain data crosses processes), norm, digest equality."""
    subject = learner(ranks, KINDS[kind](), own_pace, micro_batch_tokens=30, **keys)
    stats = step(subject, SETS[data])
    return {n: m.numpy() for n, m in moments(subject).items()}, stats


def run_all(ranks):
    found = [run_case(*case, ranks) for case in CASES]
    kl = [run_kl(ranks, own_pace) for own_pace in (True, False)]
    idle = step(learner(ranks, micro_batch_tokens=30), FLAT).no_op
    return found, kl, idle, survives_abort(ranks)


def run_kl(ranks, own_pace):
    settings = EngineSettings(loss=LossSettings(kl_coefficient=0.1), own_pace=own_pace)
    subject = learner(ranks, ToyPolicy(), own_pace, micro_batch_tokens=30)
    subject.engine = Fsdp2Learner(ToyPolicy(), ranks, settings, ToyPolicy(seed=5))
    stats = step(subject)
    return {n: m.numpy() for n, m in moments(subject).items()}, stats.reference_kl


def survives_abort(ranks, dtype="float32"):
    """An aborted step leaves nothing behind: the next one is what it would have been."""
    subject = learner(ranks, ToyPolicy(), True, dtype)
    subject.begin_step()
    if ranks.rank == 0:
        subject.add_group(DATA[0], 0)
    subject.engine.abort_step()
    step(subject)
    return {n: m.numpy() for n, m in moments(subject).items()}


def difference(left, right):
    scale = max(abs(g).max() for g in right.values())
    return max(abs(left[n] - right[n]).max() / scale for n in right)


@pytest.mark.parametrize("world", [2, 3])
def test_gradients_do_not_depend_on_the_number_of_ranks(world):
    results = on_ranks(world, run_all)
    for index, case in enumerate(CASES):
        expected, stats = run_case(*case)
        tolerance = 1e-12 if case[0] == "toy" else 1e-6
        for rank in range(world):
            found, theirs = results[rank][0][index]
            assert difference(found, expected) < tolerance, case
            assert theirs.action_tokens == stats.action_tokens
            assert theirs.grad_norm == pytest.approx(stats.grad_norm, rel=1e-6)
            assert theirs.digest_before == stats.digest_before, "no matter how it is sharded"
            assert theirs.digest_after == results[0][0][index][1].digest_after
    expected, divergence = run_kl(Ranks(), True)
    for own_pace in (0, 1):
        found, theirs = results[0][1][own_pace]
        assert difference(found, expected) < 1e-12 and theirs == pytest.approx(divergence)
    assert all(r[2] for r in results)
    clean = learner()
    step(clean)
    expected = {n: m.numpy() for n, m in moments(clean).items()}
    assert difference(results[0][3], expected) < 1e-12


def test_kl_term_pulls_towards_the_reference():
    _, divergence = run_kl(Ranks(), True)
    assert divergence > 0
    same = EngineSettings(loss=LossSettings(kl_coefficient=0.1))
    subject = learner()
    subject.engine = Fsdp2Learner(ToyPolicy(), Ranks(), same, ToyPolicy())
    assert step(subject).reference_kl == 0


def test_the_kl_term_is_taken_on_the_full_vocabulary_at_the_samplers_temperature():
    sampling, full = Sampling(temperature=0.7, top_k=4, top_p=0.8), Sampling(temperature=0.7)
    settings = EngineSettings(sampling=sampling, loss=LossSettings(kl_coefficient=0.1))
    subject = learner()
    subject.engine = Fsdp2Learner(ToyPolicy(), Ranks(), settings, ToyPolicy(seed=5))
    total = tokens = 0.0
    for group in DATA:
        for batch in prepare_group(group, PackingSettings()).batches:
            new, reference = (ToyPolicy(seed)(batch, (full,))[0].logprobs for seed in (0, 5))
            gap = (reference - new).detach()
            total, tokens = total + float((gap.exp() - gap - 1).sum()), tokens + len(gap)
    assert step(subject).reference_kl == pytest.approx(total / tokens, rel=1e-12)


@pytest.mark.parametrize("data", [FLAT, []])
def test_a_step_without_signal_is_a_bitwise_no_op_after_momentum_is_filled(data):
    policy = ToyPolicy()
    subject = learner(policy=policy)
    step(subject)
    before = {k: {n: t.clone() for n, t in v.items()} for k, v in subject.engine.state().items()}
    rates = [group["lr"] for group in subject.engine.optimizer.param_groups]
    stats = step(subject, data)
    assert stats.no_op and stats.updates == 1 and stats.digest_before == stats.digest_after
    for kind, tensors in subject.engine.state().items():
        assert all(torch.equal(before[kind][n], t) for n, t in tensors.items()), kind
    assert rates == [group["lr"] for group in subject.engine.optimizer.param_groups]
    assert all(p.grad is None for p in policy.parameters())


def test_float32_master_weights_accumulate_updates_below_a_bfloat16_ulp():
    policy = tiny_policy()
    subject = learner(policy=policy, learning_rate=1e-6)
    start = parameters(policy)
    for _ in range(1000):
        subject.engine.begin_step()
        for p in policy.parameters():
            p.grad = torch.ones_like(p)
        subject.engine.sums = [type(subject.engine._total_sums())(tokens=1.0, signal_tokens=1.0)]
        subject.engine.finish_step(1.0, 1e-6)
    for name, p in policy.named_parameters():
        moved = start[name] - p.detach()
        # Adam with a constant gradient moves lr a step: 1e-3 in all.
        torch.testing.assert_close(moved, torch.full_like(moved, 1e-3), rtol=0.05, atol=0)
        assert p.dtype == torch.float32
    ulp = 2.0**-8 * start["causal_lm.model.norm.weight"].abs()
    assert bool((ulp / 2 > 1e-6).all()), "each single update would be lost in bfloat16"


def test_clipping_uses_the_global_norm():
    free, tight = learner(), learner(max_grad_norm=0.01)
    stats = step(free)
    assert step(tight).grad_norm == stats.grad_norm > 0.01
    wanted = {n: m * (0.01 / stats.grad_norm) for n, m in moments(free).items()}
    for name, found in moments(tight).items():
        torch.testing.assert_close(found, wanted[name], rtol=1e-3, atol=0)


def test_a_gradient_that_is_not_finite_stops_and_changes_nothing():
    policy = ToyPolicy()
    subject = learner(policy=policy)
    before = parameters(policy)
    subject.begin_step()
    subject.add_group(DATA[0], 0)
    policy.head.grad[0, 0] = float("nan")
    with pytest.raises(InvariantError, match="gradient norm"):
        subject.finish()
    assert all(torch.equal(before[n], p) for n, p in policy.named_parameters())
    assert not step(subject).no_op


def test_a_group_of_one_rank_computes_in_bfloat16_and_keeps_float32():
    ranks = join_ranks(0, 1, dist.HashStore(), always_group=True)
    try:
        low = learner(ranks, tiny_policy(), dtype="bfloat16")
        step(low)
        assert all(p.dtype == torch.float32 for p in low.engine.model.parameters())
        high = learner(policy=tiny_policy())
        step(high)
        left, right = moments(low), moments(high)
        scale = max(float(g.abs().max()) for g in right.values())
        worst = max(float((left[n] - right[n]).abs().max()) / scale for n in right)
        assert 1e-5 < worst < 0.1
        same = learner(ranks, tiny_policy())
        step(same)
        for name, grad in moments(same).items():
            torch.testing.assert_close(grad, right[name], rtol=0, atol=1e-6 * scale)
    finally:
        leave_ranks(ranks)


def test_gradients_computed_in_bfloat16_add_up_in_float32():
    """64 equal groups have the gradient of one; in bfloat16 the sum would lose a percent."""
    ranks = join_ranks(0, 1, dist.HashStore(), always_group=True)
    try:
        one, many = (learner(ranks, tiny_policy(), dtype="bfloat16") for _ in range(2))
        step(one, DATA[:1])
        step(many, DATA[:1] * 64)
        right = moments(one)
        scale = max(float(g.abs().max()) for g in right.values())
        for name, grad in moments(many).items():
            torch.testing.assert_close(grad, right[name], rtol=0, atol=1e-5 * scale)
    finally:
        leave_ranks(ranks)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_have_hugging_face_names_once(tied):
    policy = tiny_policy(tied=tied)
    names = [name for name, _ in learner(policy=policy).weights()]
    assert len(names) == len(set(names)) and "model.embed_tokens.weight" in names
    assert ("lm_head.weight" in names) == (not tied)
    low = dict(learner(policy=policy).weights(torch.bfloat16))
    assert all(t.dtype == torch.bfloat16 for t in low.values())


def test_digest_changes_with_a_single_bit():
    policy = ToyPolicy()
    subject = learner(policy=policy)
    before = subject.digest()
    with torch.no_grad():
        policy.mix[0, 0] = torch.nextafter(policy.mix[0, 0], torch.tensor(9.0, dtype=torch.float64))
    assert subject.digest() != before


def test_phases_change_nothing_on_cpu():
    moved, still = learner(), learner()
    step(moved)
    moved.offload()
    moved.onload()
    step(still)
    assert step(moved).digest_after == step(still).digest_after
