"""One step's gradient does not depend on order, micro-batching or the way groups arrive."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_toys import ToyPolicy, groups, parameters, tiny_policy

from tbrl.config import AlgorithmConfig, ModelConfig
from tbrl.errors import InvariantError
from tbrl.learner.advantages import episode_advantages
from tbrl.learner.fsdp2 import EngineSettings
from tbrl.learner.learner import GrpoLearner, engine_settings
from tbrl.learner.loss import LossSettings
from tbrl.learner.packing import Sequence1D, pack_sequences
from tbrl.types import Sampling, Scored


def learner(policy=None, sampling=Sampling(), **keys):
    keys = {"learning_rate": 1e-3, "max_grad_norm": 0.0, **keys}
    return GrpoLearner(
        AlgorithmConfig(**keys), ModelConfig(), sampling, policy=policy or ToyPolicy()
    )


def gradient(policy, data, order=None, **keys):
    """First-step gradient, read from the first moment (0.1 * gradient)."""
    subject = learner(policy, **keys)
    subject.begin_step()
    for slot in order or range(len(data)):
        subject.add_group(data[slot], slot)
    stats = subject.finish()
    return {n: m / 0.1 for n, m in subject.engine.state()["exp_avg"].items()}, stats


def one_batch_gradient(
    policy, data, aggregation="token-mean", constant=7, cap=2.0, sampling=Sampling()
):
    """Written from the formulas: every episode alone, one loss, one division, one backward."""
    numerator, tokens, rollouts = 0.0, 0, 0
    for group in data:
        for episode, advantage in zip(
            group.episodes, episode_advantages(group).values, strict=True
        ):
            if advantage is None:
                continue
            n = episode.action_tokens
            item = Sequence1D(
                episode.prompt_ids, episode.response_ids, episode.action_mask,
                episode.behaviour_logprobs, advantage, 1.0,
            )  # fmt: skip
            batch = pack_sequences([item], 10_000, share_prompt=False)[0]
            logprobs = policy(batch, (sampling,))[0].logprobs
            behaviour = torch.from_numpy(episode.behaviour_logprobs[episode.action_mask])
            weight = (logprobs.detach() - behaviour).exp().clamp(max=cap)
            per_token = -advantage * weight * (logprobs - logprobs.detach()).exp()
            scale = {"token-mean": 1, "rollout-mean": 1 / n, "constant-length": 1 / constant}
            numerator = numerator + per_token.sum() * scale[aggregation]
            tokens, rollouts = tokens + n, rollouts + 1
    loss = numerator / (tokens if aggregation == "token-mean" else rollouts)
    policy.zero_grad()
    loss.backward()
    return {policy.public_name(n): p.grad.clone() for n, p in policy.named_parameters()}, float(
        loss.detach()
    )


def assert_close(left, right, tolerance):
    scale = max(float(g.abs().max()) for g in right.values())
    for name in right:
        torch.testing.assert_close(
            left[name] / scale, right[name] / scale, rtol=0, atol=tolerance, msg=name
        )


DATA = groups(4, rewards=(1, 0, None, 1))


@pytest.mark.parametrize("aggregation", ["token-mean", "rollout-mean", "constant-length"])
def test_streamed_gradient_equals_the_one_batch_gradient_in_float64(aggregation):
    expected, loss = one_batch_gradient(ToyPolicy(), DATA, aggregation)
    keys = {"aggregation": aggregation, "constant_length": 7, "micro_batch_tokens": 30}
    found, stats = gradient(ToyPolicy(), DATA, **keys)
    assert_close(found, expected, 1e-12)
    assert stats.loss == pytest.approx(loss, abs=1e-12)


def test_streamed_gradient_equals_the_one_batch_gradient_of_a_hugging_face_model():
    expected, _ = one_batch_gradient(tiny_policy(), DATA)
    for micro in (20, 4096):
        found, _ = gradient(tiny_policy(), DATA, micro_batch_tokens=micro)
        assert_close(found, expected, 1e-6)
        for name, grad in expected.items():  # float32: the largest entry is 0.04
            torch.testing.assert_close(found[name], grad, rtol=0, atol=1e-7)


def test_the_gradient_is_taken_on_the_samplers_support_and_edge_tokens_are_counted():
    """Behaviour logprobs on that support: learner and sampler then agree to the last digit."""
    sampling = Sampling(temperature=0.7, top_k=9, top_p=0.9)
    data, edge = [], 0
    for group in DATA:
        members = []
        for episode in group.episodes:
            arrays = (episode.response_ids, episode.action_mask, episode.behaviour_logprobs)
            item = Sequence1D(episode.prompt_ids, *arrays, 1.0, 1.0)
            batch = pack_sequences([item], 10_000, share_prompt=False)[0]
            scores = ToyPolicy()(batch, (sampling,))[0]
            logprobs = np.zeros(len(episode.response_ids))
            logprobs[episode.action_mask] = scores.logprobs.detach()
            members.append(replace(episode, behaviour_logprobs=logprobs))
            edge += int(scores.edge.sum()) if isinstance(episode.outcome, Scored) else 0
        data.append(replace(group, episodes=tuple(members)))
    expected, _ = one_batch_gradient(ToyPolicy(), data, sampling=sampling)
    found, stats = gradient(ToyPolicy(), data, sampling=sampling)
    # The batch carries behaviour logprobs as float32.
    assert_close(found, expected, 1e-6)
    assert stats.mismatch_kl < 1e-12 and stats.max_ratio == pytest.approx(1.0, abs=1e-5)
    assert stats.edge_tokens == edge > 0


@given(st.permutations(range(4)), st.integers(1, 80))
@settings(max_examples=20, deadline=None)
def test_any_arrival_and_micro_batching_give_the_same_gradient(order, micro):
    expected, _ = gradient(ToyPolicy(), DATA)
    found, _ = gradient(ToyPolicy(), DATA, order, micro_batch_tokens=micro, accumulation="arrival")
    assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("slots", [(0, 1, 2), (1, 2, 3)], ids=["all", "first-missing"])
def test_slot_order_is_bitwise_independent_of_arrival(slots):
    results = [
        gradient(tiny_policy(), DATA, order, accumulation="slot") for order in permutations(slots)
    ]
    for found, stats in results[1:]:
        assert all(torch.equal(found[n], results[0][0][n]) for n in found)
        assert stats.digest_after == results[0][1].digest_after


def test_groups_are_accumulated_while_others_are_missing():
    subject = learner()
    subject.begin_step()
    subject.add_group(DATA[0], 0)
    assert len(subject.engine.sums) == 1
    subject.add_group(DATA[2], 2)
    assert len(subject.engine.sums) == 1, "slot 2 waits for slot 1"
    subject.add_group(DATA[1], 1)
    assert len(subject.engine.sums) == 3
    assert subject.finish().micro_batches == 3


def test_a_slot_enters_once():
    subject = learner()
    subject.begin_step()
    subject.add_group(DATA[0], 0)
    with pytest.raises(InvariantError):
        subject.add_group(DATA[0], 0)


def test_disagreeing_token_counts_stop_the_step_before_it_changes_anything():
    policy = ToyPolicy()
    subject, before = learner(policy), parameters(policy)
    subject.add_group(DATA[0], 0)
    with pytest.raises(InvariantError):
        subject.finish(action_tokens=1)
    assert all(torch.equal(before[n], p) for n, p in policy.named_parameters())
    subject.add_group(DATA[0], 0)
    tokens = sum(e.action_tokens for e in DATA[0].episodes if e.key.rollout != 2)
    assert subject.finish(action_tokens=tokens).action_tokens == tokens


def test_with_one_update_the_clip_is_inert_however_far_the_sampler_is():
    free, _ = gradient(ToyPolicy(), DATA, clip_low=0.9, clip_high=9.0)
    tight, stats = gradient(ToyPolicy(), DATA, clip_low=1e-6, clip_high=1e-6)
    assert stats.max_ratio > 1.1 and stats.clip_share == 0
    assert all(torch.equal(tight[n], free[n]) for n in free)


def test_each_key_of_the_objective_reaches_the_engine():
    algorithm = AlgorithmConfig(
        clip_low=0.11, clip_high=0.28, importance_cap=1.5, kl_coefficient=0.03,
        adam_betas=(0.8, 0.95), adam_eps=1e-7, weight_decay=0.02, max_grad_norm=0.4,
    )  # fmt: skip
    model, sampling = ModelConfig(learner_dtype="bfloat16"), Sampling(0.7, 5, 0.9)
    assert engine_settings(algorithm, model, sampling, False) == EngineSettings(
        sampling, LossSettings(0.11, 0.28, 1.5, 0.03), (0.8, 0.95), 1e-7, 0.02, 0.4, "bfloat16",
        False,
    )  # fmt: skip


def test_later_updates_measure_the_ratio_against_the_policy_before_the_first():
    """Two updates equal a hand-written loop with kept old logprobs, clip live."""
    keys = {"updates_per_step": 2, "learning_rate": 0.05, "clip_low": 0.05, "clip_high": 0.05}
    policy = ToyPolicy()
    subject = learner(policy, **keys)
    for slot, group in enumerate(DATA):
        subject.add_group(group, slot)
    stats = subject.finish()
    assert stats.updates == 2 and stats.clip_share > 0

    hand = ToyPolicy()
    optimizer = torch.optim.AdamW(hand.parameters(), lr=0.05, weight_decay=0.0)
    items = []
    for group in DATA:
        for episode, advantage in zip(
            group.episodes, episode_advantages(group).values, strict=True
        ):
            if advantage is not None:
                arrays = (episode.response_ids, episode.action_mask, episode.behaviour_logprobs)
                items.append(Sequence1D(episode.prompt_ids, *arrays, advantage, 1.0))
    batches = [pack_sequences([i], 10_000)[0] for i in items]
    old = [hand(b, (Sampling(),))[0].logprobs.detach() for b in batches]
    tokens = sum(b.action_tokens for b in batches)
    for _ in range(2):
        optimizer.zero_grad()
        total = 0.0
        for batch, before in zip(batches, old, strict=True):
            new = hand(batch, (Sampling(),))[0].logprobs
            ratio = (new - before).exp()
            advantages = batch.advantages.double()
            weight = (before - batch.behaviour_logprobs.double()).exp().clamp(max=2.0)
            inner = torch.minimum(ratio * advantages, ratio.clamp(0.95, 1.05) * advantages)
            total = total - (weight * inner).sum() / tokens
        total.backward()
        optimizer.step()
    for name, p in policy.named_parameters():
        torch.testing.assert_close(p, dict(hand.named_parameters())[name], rtol=0, atol=1e-9)


def test_empty_rollouts_add_nothing_to_any_divisor():
    from tbrl.learner.accumulate import Aggregation, PackingSettings, prepare_group

    group = groups(1, rewards=(1, 0))[0]
    silent = replace(group.episodes[0], action_mask=np.zeros_like(group.episodes[0].action_mask))
    group = replace(group, episodes=(silent, group.episodes[1]))
    for kind, share in (("token-mean", group.episodes[1].action_tokens), ("rollout-mean", 1)):
        prepared = prepare_group(group, PackingSettings(Aggregation(kind)))
        assert prepared.divisor == share
