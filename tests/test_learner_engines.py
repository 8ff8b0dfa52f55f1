"""The contract of a learner engine, kept by each: every test runs on all of them.

An engine is exercised once per number of ranks, in processes of its own; tests read what came of
it. Float32 sums are taken in another order on other ranks, so weights and gradients are compared
within TOLERANCE of the largest gradient; whatever is called bitwise is compared bitwise.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_toys import (
    ToyPolicy,
    groups,
    no_deepspeed,
    on_ranks,
    tiny_causal_lm,
    tiny_policy,
    train_on,
    whole,
)

from tbrl.config import AlgorithmConfig, ModelConfig
from tbrl.errors import InvariantError
from tbrl.learner.accumulate import PackingSettings, prepare_group
from tbrl.learner.checkpoint import consolidate, latest_complete
from tbrl.learner.distributed import Ranks
from tbrl.learner.engine import EngineSettings
from tbrl.learner.learner import ENGINES as ENGINE_TYPES
from tbrl.learner.learner import GrpoLearner
from tbrl.learner.loss import LossSettings
from tbrl.learner.model import prepare_policy
from tbrl.types import Sampling

DATA = groups(5)
FLAT = groups(2, rewards=(1, 1, 1, 1))
LR = 1e-3
TOLERANCE = 2e-6

pytestmark = pytest.mark.timeout(600)

ENGINES = ["fsdp2", pytest.param("zero3", marks=no_deepspeed)]
WORLDS = [1, 2]


def toy(seed=0):
    """Float32 parameters of odd sizes, which no two ranks share evenly."""
    return ToyPolicy(seed, width=7).float()


POLICIES = {
    "toy": toy,
    "hf": tiny_policy,
    "untied": lambda: tiny_policy(tied=False),
    "checkpointing": lambda: prepare_policy(tiny_causal_lm(), 32, gradient_checkpointing=True),
}


def learner(ranks, engine, policy=None, dtype="float32", offload=False, **keys):
    keys = {"learning_rate": LR, "micro_batch_tokens": 60, **keys}
    return GrpoLearner(
        AlgorithmConfig(**keys), ModelConfig(learner_dtype=dtype), Sampling(), ranks,
        policy or toy(), own_pace=False, engine=engine, offload=offload,
    )  # fmt: skip


def step(subject, data=DATA):
    return train_on(subject, data)


def snapshot(subject):
    """Everything a checkpoint would hold, as plain arrays."""
    state = subject.engine.state()
    return {
        (k, n): whole(t).numpy().reshape(-1) for k, named in state.items() for n, t in named.items()
    }


def same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in right)


def weights(subject):
    return {name: tensor.numpy().copy() for name, tensor in subject.weights()}


def two_steps(ranks, engine, kind, **keys):
    """(gradients from the first moments of step 1, weights after step 2, both steps' stats)."""
    data, options = (
        keys.pop("data", DATA),
        {k: keys.pop(k) for k in ("dtype", "offload") if k in keys},
    )
    subject = learner(ranks, engine, POLICIES[kind](), **options, **keys)
    first = step(subject, data)
    moments = {n: a / 0.1 for (k, n), a in snapshot(subject).items() if k == "exp_avg"}
    second = step(subject, data)
    return moments, weights(subject), (first, second)


CASES = {
    "toy": ("toy", {}),
    "hf": ("hf", {}),
    "untied": ("untied", {}),
    "clipped": ("hf", {"max_grad_norm": 0.1}),
    # One slot leaves all ranks but the first without any micro-batch.
    "one group": ("hf", {"data": DATA[:1]}),
    "two updates": ("toy", {"updates_per_step": 2, "clip_low": 0.05, "clip_high": 0.05}),
    "checkpointing": ("checkpointing", {}),
}


def no_op(ranks, engine):
    subject, plain = learner(ranks, engine), learner(ranks, engine)
    step(subject), step(plain)
    before = snapshot(subject)
    for data in (FLAT, []):
        stats = step(subject, data)
        assert stats.no_op and stats.updates == 1 and stats.digest_before == stats.digest_after
        assert same(snapshot(subject), before)
    return step(subject).digest_after == step(plain).digest_after, "nothing stays in the gradient"


def abort(ranks, engine):
    subject, plain = learner(ranks, engine), learner(ranks, engine)
    subject.begin_step()
    for slot, group in enumerate(DATA):
        if slot % ranks.world == ranks.rank:
            subject.add_group(group, slot)
    with pytest.raises(InvariantError, match="action tokens"):
        subject.finish(action_tokens=1)
    return step(subject).digest_after == step(plain).digest_after, "the next step is a first one"


def broken_gradient(ranks, engine):
    subject = learner(ranks, engine)
    before, batch = snapshot(subject), prepare_group(DATA[0], PackingSettings()).batches[0]
    bad = batch.advantages * (float("inf") if ranks.rank == 0 else 1.0)
    subject.begin_step()
    subject.engine.accumulate(replace(batch, advantages=bad))
    with pytest.raises(InvariantError, match="gradient norm"):
        subject.engine.finish_step(1.0, LR)
    return same(snapshot(subject), before) and not step(subject).no_op, "nothing was changed"


def resume(ranks, engine, root):
    """An asynchronous save after two steps, while a third runs; then the third again from it."""
    straight = learner(ranks, engine, tiny_policy())
    step(straight), step(straight)
    held = snapshot(straight)
    straight.save(Path(root), 2, {"cursor": ranks.world}, asynchronous=True)
    step(straight, DATA[:4])
    straight.wait_saved()
    resumed = learner(ranks, engine, tiny_policy(seed=9))
    step(resumed)  # momentum of another past
    extra = resumed.load(latest_complete(root))
    restored = same(snapshot(resumed), held) and extra == {"cursor": ranks.world}
    stats = step(resumed, DATA[:4])
    return restored and stats.updates == 3 and same(snapshot(resumed), snapshot(straight)), root


def export(ranks, engine):
    """What is sent to the engines are the master weights, under Hugging Face names, in shape."""
    subject = learner(ranks, engine, tiny_policy())
    step(subject)
    wanted = {n: p.shape for n, p in tiny_policy().causal_lm.named_parameters()}
    found = {n: t.clone() for n, t in subject.weights()}
    state = {n: whole(t) for n, t in subject.engine.state()["model"].items()}
    low = dict(subject.weights(torch.bfloat16))
    equal = all(torch.equal(found[n].reshape(-1), state[n].reshape(-1)) for n in wanted)
    rounded = all(torch.equal(low[n], found[n].bfloat16()) for n in wanted)
    return {n: t.shape for n, t in found.items()} == wanted and equal and rounded, "weights"


def low_precision(ranks, engine):
    """Computes in bfloat16; master weights are the float32 ones, and keep what bfloat16 loses."""
    high, low = (
        learner(ranks, engine, tiny_policy(), dtype, learning_rate=1e-6)
        for dtype in ("float32", "bfloat16")
    )
    start, name = weights(low), "model.norm.weight"  # ones, with a bfloat16 ulp of 2 ** -7
    exact, rough = step(high), step(low)
    assert exact.digest_before == rough.digest_before
    step(low)
    moved = np.abs(weights(low)[name] - start[name])
    assert np.all(moved < 3e-6) and np.median(moved) > 5e-7, moved
    return 1e-6 < abs(rough.loss - exact.loss) < 0.05 * abs(exact.loss), (rough.loss, exact.loss)


def kl_term(ranks, engine):
    """Gradients and divergence of a step with a frozen reference policy."""
    settings = EngineSettings(loss=LossSettings(kl_coefficient=0.1), own_pace=False)
    subject = learner(ranks, "fsdp2")
    subject.engine = ENGINE_TYPES[engine](toy(), ranks, settings, toy(seed=5))
    divergence = step(subject).reference_kl
    return {n: a / 0.1 for (k, n), a in snapshot(subject).items() if k == "exp_avg"}, divergence


def exercise(ranks, engine, root):
    """All of it on one rank; plain data."""
    facts = {name: two_steps(ranks, engine, kind, **keys) for name, (kind, keys) in CASES.items()}
    checks = (no_op, abort, broken_gradient, export, low_precision)
    facts |= {check.__name__: check(ranks, engine) for check in checks}
    facts["resume"] = resume(ranks, engine, f"{root}/{engine}-{ranks.world}")
    own_pace = learner(ranks, engine).engine.capabilities.own_pace
    return facts | {"own_pace": own_pace, "kl": kl_term(ranks, engine)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def exercised(root):
    """Facts by rank; every (engine, world) runs once."""
    done = {}

    def facts(engine, world):
        if (engine, world) not in done:
            done[engine, world] = None
            done[engine, world] = on_ranks(world, exercise, engine, str(root))
        assert done[engine, world], "the exercise failed in an earlier test"
        return done[engine, world]

    return facts


contract = [pytest.mark.parametrize("engine", ENGINES), pytest.mark.parametrize("world", WORLDS)]


def for_every_engine(test):
    return contract[0](contract[1](test))


@for_every_engine
@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_a_single_process(exercised, engine, world, case):
    kind, keys = CASES[case]
    gradients, after, stats = two_steps(Ranks(), "fsdp2", kind, **keys)
    scale = max(np.abs(g).max() for g in gradients.values())
    for facts in exercised(engine, world):
        found, weights_found, theirs = facts[case]
        assert weights_found.keys() == after.keys()
        for name, gradient in gradients.items():
            np.testing.assert_allclose(
                found[name] / scale, gradient / scale, rtol=0, atol=TOLERANCE, err_msg=name
            )
            # Adam's first steps are about one learning rate, whatever the gradient: where it is
            # nearly zero its rounding shows.
            np.testing.assert_allclose(weights_found[name], after[name], rtol=0, atol=0.02 * LR)
        for mine, other in zip(theirs, stats, strict=True):
            assert mine.action_tokens == other.action_tokens
            assert mine.grad_norm == pytest.approx(other.grad_norm, rel=1e-4)
            assert mine.loss == pytest.approx(other.loss, rel=1e-3, abs=1e-5)
        assert theirs[0].digest_before == stats[0].digest_before, "no matter which engine holds it"
        assert theirs[1].digest_after == exercised(engine, world)[0][case][2][1].digest_after


@for_every_engine
@pytest.mark.parametrize(
    "check", ["no_op", "abort", "broken_gradient", "export", "low_precision", "resume"]
)
def test_it_holds_on_every_rank(exercised, engine, world, check):
    for facts in exercised(engine, world):
        holds, what = facts[check]
        assert holds, what


@for_every_engine
def test_the_kl_term_is_that_of_a_single_process(exercised, engine, world):
    gradients, divergence = kl_term(Ranks(), "fsdp2")
    scale = max(np.abs(g).max() for g in gradients.values())
    for facts in exercised(engine, world):
        found, theirs = facts["kl"]
        assert theirs == pytest.approx(divergence, rel=1e-4) and theirs > 0
        for name, gradient in gradients.items():
            np.testing.assert_allclose(
                found[name] / scale, gradient / scale, rtol=0, atol=TOLERANCE
            )


@for_every_engine
def test_aligned_ranks_say_so(exercised, engine, world):
    assert {facts["own_pace"] for facts in exercised(engine, world)} == {world == 1}


@for_every_engine
def test_checkpoints_hold_hugging_face_parameters(exercised, root, engine, world):
    exercised(engine, world)
    found = consolidate(latest_complete(root / f"{engine}-{world}"))
    wanted = {n: p.shape for n, p in tiny_policy().causal_lm.named_parameters()}
    assert {n: t.shape for n, t in found.items()} == wanted


def load_from(ranks, engine, folder):
    subject = learner(ranks, engine, tiny_policy(seed=3))
    subject.load(folder)
    return subject.digest(), subject.updates


@for_every_engine
def test_checkpoints_load_onto_another_number_of_ranks(exercised, root, engine, world):
    exercised(engine, world)
    folder = latest_complete(root / f"{engine}-{world}")
    same_ranks = on_ranks(world, load_from, engine, str(folder))
    assert set(on_ranks(3 - world, load_from, engine, str(folder))) == set(same_ranks)
    assert same_ranks[0][1] == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_of_a_micro_batch_may_lie_on_several_ranks(engine):
    gradients, _, (stats, _) = two_steps(Ranks(), "fsdp2", "hf")
    scale = max(np.abs(g).max() for g in gradients.values())
    for found, _, (theirs, _) in on_ranks(2, two_steps, engine, "hf", sequence_parallel=2):
        assert theirs.action_tokens == stats.action_tokens
        for name, gradient in gradients.items():
            np.testing.assert_allclose(
                found[name] / scale, gradient / scale, rtol=0, atol=TOLERANCE
            )


def in_host_memory(ranks, dtype):
    """On the CPU all is host memory: DeepSpeed's offload path must come to the same bits."""
    plain, offloaded = (
        learner(ranks, "zero3", tiny_policy(), dtype, offload) for offload in (False, True)
    )
    assert offloaded.engine.capabilities.phase_offload
    for data in (DATA, FLAT, DATA[:1]):
        step(plain, data), step(offloaded, data)
    offloaded.offload(), offloaded.onload()
    return same(snapshot(offloaded), snapshot(plain))


def both_dtypes_in_host_memory(ranks):
    return [in_host_memory(ranks, dtype) for dtype in ("float32", "bfloat16")]


@no_deepspeed
def test_offloaded_steps_are_bitwise_the_others():
    assert on_ranks(2, both_dtypes_in_host_memory) == [[True, True]] * 2
