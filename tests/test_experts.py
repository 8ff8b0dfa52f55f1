"""A mixture of experts: the learner holds a layer's experts as two stacked tensors, the files on
disk hold each on its own. Engines and exports must end with the same weights by either road."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import write_policy
from learner_toys import on_ranks
from safetensors.torch import load_file, save_file
from test_engine import Running, gap, load

from tbrl.config import AlgorithmConfig, EngineConfig, ModelConfig, TopologyConfig
from tbrl.engine.digest import WeightDigest
from tbrl.engine.vllm_engine import VllmEngine
from tbrl.learner.learner import GrpoLearner
from tbrl.learner.model import load_policy
from tbrl.serving.export import export
from tbrl.types import Sampling

STACKED = "model.layers.0.mlp.experts.gate_up_proj"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("experts")
    return (
        write_policy(root / "first", 0, experts=True),
        write_policy(root / "second", 1, experts=True),
    )


def learners_weights(folder: Path) -> dict[str, torch.Tensor]:
    """By the names under which a learner sends them."""
    policy = load_policy(str(folder))
    return {policy.public_name(n): p.detach().clone() for n, p in policy.named_parameters()}


def update_an_engine(first: Path, second: Path, stacked: Path, queue: Any) -> None:
    """Gaps to the weights that should be loaded, at the start and after each of two updates; the
    digest that the engine echoes for the first of them."""
    loop = asyncio.new_event_loop()
    settings = EngineConfig(max_model_len=256, kv_cache_mib=32, max_num_seqs=16)
    engine = loop.run_until_complete(
        VllmEngine.start(str(first), ModelConfig(), settings, TopologyConfig())
    )
    running = Running(loop, engine, first, second)
    running(engine.init_weight_transfer({}))
    gaps = [gap(first, running.generate())]
    echo = load(running, stacked, 1)
    gaps.append(gap(second, running.generate()))
    load(running, first, 2)
    gaps.append(gap(first, running.generate()))
    queue.put((gaps, echo.digest))
    engine.shutdown()


def test_an_engine_takes_the_learners_stacked_experts_and_single_ones(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    weights = learners_weights(folders[1])
    assert STACKED in weights and STACKED not in load_file(folders[1] / "model.safetensors")
    save_file(weights, tmp_path / "model.safetensors")
    # In a process of its own: this one may hold another engine.
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=update_an_engine, args=(*folders, tmp_path, queue))
    process.start()
    gaps, digest = queue.get(timeout=240)
    process.join(60)
    process.kill()
    assert max(gaps) < 1e-4, gaps
    assert digest == digest_of(iter(weights.items()))


def digest_of(weights: Iterator[tuple[str, torch.Tensor]]) -> str:
    digest = WeightDigest()
    for name, tensor in weights:
        digest.add(name, tensor)
    return digest.hexdigest()


def test_an_export_has_each_expert_on_its_own_again(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = folders
    export(learners_weights(second), first, tmp_path / "policy")
    written, wanted = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "policy", second)
    )
    assert written.keys() == wanted.keys()
    assert all(torch.equal(written[name], wanted[name]) for name in wanted)


def names_and_digest(ranks, folder):
    """Three ranks and eight experts: the shards of the stacked tensors are uneven."""
    model = ModelConfig(path=folder)
    learner = GrpoLearner(AlgorithmConfig(), model, Sampling(), ranks, own_pace=False)
    return digest_of(learner.weights())


def test_sharded_ranks_send_what_one_would(folders: tuple[Path, Path]) -> None:
    expected = digest_of(iter(learners_weights(folders[0]).items()))
    assert on_ranks(3, names_and_digest, str(folders[0])) == [expected] * 3
