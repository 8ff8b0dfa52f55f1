"""Tokens of a micro-batch over several ranks: same gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_toys import VOCABULARY, groups, on_ranks, tiny_policy
from torch.distributed.tensor import DTensor

from tbrl.config import AlgorithmConfig, ModelConfig
from tbrl.errors import ConfigError
from tbrl.learner.accumulate import PackingSettings, prepare_group
from tbrl.learner.distributed import Ranks, SequenceShards
from tbrl.learner.learner import GrpoLearner
from tbrl.learner.sequence import shard_batch, spread_heads
from tbrl.types import Sampling

DATA = groups(3)


def gradients(ranks, own_pace, updates=1):
    config = AlgorithmConfig(
        learning_rate=1e-3, max_grad_norm=0.0, micro_batch_tokens=40, updates_per_step=updates
    )
    subject = GrpoLearner(config, ModelConfig(), Sampling(), ranks, tiny_policy(), own_pace)
    subject.begin_step()
    for slot, group in enumerate(DATA):
        if slot % ranks.data_world == ranks.data_rank:
            subject.add_group(group, slot)
    stats = subject.finish()
    moments = subject.engine.state()["exp_avg"].items()
    return {
        n: (m.full_tensor() if isinstance(m, DTensor) else m).numpy().copy() for n, m in moments
    }, stats


def all_gradients(ranks):
    return [gradients(ranks, True), gradients(ranks, False), gradients(ranks, True, updates=2)]


@pytest.mark.parametrize(("world", "shards"), [(2, 2), (4, 4)])
def test_gradients_equal_those_of_one_rank(world, shards):
    """Four shards are more than the two key-value heads, which are then repeated."""
    results = on_ranks(world, all_gradients, sequence_parallel=shards)
    for index, updates in enumerate((1, 1, 2)):
        expected, stats = gradients(Ranks(), True, updates)
        scale = max(np.abs(g).max() for g in expected.values())
        for found, theirs in (r[index] for r in results):
            assert theirs.action_tokens == stats.action_tokens
            assert theirs.entropy == pytest.approx(stats.entropy, rel=1e-5)
            assert theirs.digest_before == stats.digest_before
            for name, grad in expected.items():
                np.testing.assert_allclose(found[name] / scale, grad / scale, rtol=0, atol=2e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_shards_hold_every_token_and_every_action_once(size):
    batch = prepare_group(DATA[0], PackingSettings()).batches[0]
    parts = [shard_batch(batch, SequenceShards(None, rank, size)) for rank in range(size)]
    ids = torch.cat([p.input_ids for p in parts])
    assert torch.equal(ids[: batch.tokens], batch.input_ids) and len(ids) % size == 0
    assert sum(s.length for s in parts[0].spans) == len(ids)
    offset = len(ids) // size
    found = sorted(
        (int(row) + rank * offset, int(target))
        for rank, p in enumerate(parts)
        for row, target in zip(p.rows, p.targets, strict=True)
    )
    assert found == sorted(zip(batch.rows.tolist(), batch.targets.tolist(), strict=True))
    assert max(int(p.input_ids.max()) for p in parts) < VOCABULARY


def test_heads_that_do_not_divide_are_refused():
    tensor = torch.zeros(1, 4, 3, 2)
    with pytest.raises(ConfigError, match="sequence_parallel=3"):
        spread_heads(tensor, tensor, tensor, SequenceShards(None, 0, 3))
