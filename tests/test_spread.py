"""Several ranks: one reads the weights, all get their shards."""

from __future__ import annotations

import pytest
import torch
from learner_toys import groups, no_deepspeed, on_ranks, tiny_causal_lm, train_on
from torch.distributed.tensor import DTensor

from tbrl.config import AlgorithmConfig, ModelConfig
from tbrl.learner import learner as facade
from tbrl.learner.distributed import Ranks
from tbrl.learner.learner import GrpoLearner
from tbrl.types import Sampling

DATA = groups(3)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("policy")
    tiny_causal_lm(seed=3, tied=request.param).save_pretrained(path)
    return str(path)


HOW = ["own pace", "aligned", pytest.param("zero3", marks=no_deepspeed)]
"""FSDP2 both ways, and ZeRO-3."""


def learner(ranks, folder, how="own pace", dtype="float32"):
    algorithm = AlgorithmConfig(learning_rate=1e-3, kl_coefficient=0.1)
    model = ModelConfig(path=folder, learner_dtype=dtype)
    engine = "zero3" if how == "zero3" else "fsdp2"
    return GrpoLearner(
        algorithm, model, Sampling(), ranks, own_pace=how == "own pace", engine=engine
    )


def train(ranks, folder, how="own pace"):
    """Digests, loss, names and buffers of one step; how often this rank read the weights."""
    reads = []
    real = facade.load_policy
    facade.load_policy = lambda *keys: reads.append(keys) or real(*keys)
    try:
        subject = learner(ranks, folder, how)
    finally:
        facade.load_policy = real
    stats = train_on(subject, DATA)
    weights = {name: tensor.numpy() for name, tensor in subject.weights()}
    buffers = {name: b.numpy() for name, b in subject.engine.model.named_buffers()}
    return len(reads), stats.digest_before, stats.loss, weights, buffers


@pytest.mark.parametrize("how", HOW)
def test_ranks_have_the_weights_that_only_the_first_one_read(folder, how):
    _, digest, loss, weights, buffers = train(Ranks(), folder)
    results = on_ranks(2, train, folder, how)
    assert [r[0] for r in results] == [2, 0], "policy and reference, on rank 0"
    for _, theirs, their_loss, their_weights, their_buffers in results:
        assert theirs == digest and their_loss == pytest.approx(loss, rel=1e-6)
        assert list(their_weights) == list(weights), "a tied head is one parameter"
        for name, value in weights.items():
            torch.testing.assert_close(
                torch.from_numpy(their_weights[name]), torch.from_numpy(value), rtol=0, atol=1e-5
            )
        assert {n: b.tolist() for n, b in their_buffers.items()} == {
            n: b.tolist() for n, b in buffers.items()
        }


def save_and_load(ranks, folder, how, root):
    """Weights and moments after a step, and as another learner finds them in its checkpoint."""
    first = learner(ranks, folder, how)
    train_on(first, DATA)
    path = first.save(root, 1).result()
    second = learner(ranks, folder, how)
    second.load(path)
    states = [subject.engine.state() for subject in (first, second)]
    local = [
        {
            (kind, name): tensor.to_local().clone() if isinstance(tensor, DTensor) else tensor
            for kind, tensors in state.items()
            for name, tensor in tensors.items()
        }
        for state in states
    ]
    same = all(torch.equal(local[0][key], local[1][key]) for key in local[0])
    moved = any((t != 0).any() for (kind, _), t in local[1].items() if kind == "exp_avg")
    return same, bool(moved), first.digest() == second.digest()


@pytest.mark.parametrize("how", HOW)
def test_learner_that_has_looked_at_its_policy_loads_a_checkpoint_into_its_shards(
    folder, how, tmp_path
):
    assert on_ranks(2, save_and_load, folder, how, str(tmp_path)) == [(True, True, True)] * 2
