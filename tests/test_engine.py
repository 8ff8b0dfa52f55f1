"""The vLLM engine on this machine's CPU: what the loop relies on, each measured trap of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import VOCABULARY, write_policy
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tbrl.config import EngineConfig, ModelConfig, TopologyConfig
from tbrl.engine.digest import WeightDigest
from tbrl.engine.vllm_engine import VllmEngine
from tbrl.engine.weights import ShmSender, WeightEcho
from tbrl.errors import InvariantError
from tbrl.types import Generation, Sampling
from tbrl.usage import Usage

SAMPLING = Sampling(temperature=1.0, top_k=20, top_p=0.95)
PROMPT = list(range(20, 90))


@dataclass
class Running:
    """One engine for all tests of this module, and the loop it lives on."""

    loop: asyncio.AbstractEventLoop
    engine: VllmEngine
    first: Path
    second: Path

    def __call__(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(awaitable, 120))

    def generate(self, seed: int = 1, prompt: list[int] = PROMPT, tokens: int = 24) -> Generation:
        return self(self.engine.generate(prompt, SAMPLING, tokens, seed, [0]))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("policies")
    first, second = write_policy(root / "first", 0), write_policy(root / "second", 1)
    loop = asyncio.new_event_loop()
    settings = EngineConfig(max_model_len=256, kv_cache_mib=32, max_num_seqs=64)
    engine = loop.run_until_complete(
        VllmEngine.start(str(first), ModelConfig(), settings, TopologyConfig())
    )
    loop.run_until_complete(engine.init_weight_transfer({}))
    yield Running(loop, engine, first, second)
    loop.run_until_complete(engine.shutdown())
    loop.close()


def reference_logprobs(folder: Path, generation: Generation) -> torch.Tensor:
    """Logprobs of the sampled ids by Hugging Face in float32, on the sampler's support."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([PROMPT + list(generation.ids)])
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0, len(PROMPT) - 1 : -1].float()
    kept = logits >= logits.topk(SAMPLING.top_k, -1).values[:, -1:]
    probabilities = logits.masked_fill(~kept, -torch.inf).softmax(-1)
    ordered, places = probabilities.sort(-1, descending=True)
    inside = (ordered.cumsum(-1) - ordered) < SAMPLING.top_p
    kept &= torch.zeros_like(kept).scatter(-1, places, inside)
    return logits.masked_fill(~kept, -torch.inf).log_softmax(-1)[
        torch.arange(len(generation.ids)), torch.tensor(generation.ids)
    ]


def gap(folder: Path, generation: Generation) -> float:
    """Largest |engine - reference| logprob, nats."""
    return float(
        (reference_logprobs(folder, generation) - torch.tensor(generation.logprobs)).abs().max()
    )


def load(running: Running, folder: Path, version: int) -> WeightEcho:
    async def update() -> WeightEcho:
        await running.engine.begin_update()
        await running.engine.receive_update({"path": str(folder / "model.safetensors")})
        return await running.engine.end_update(version)

    return running(update())


def test_behaviour_logprobs_are_those_of_the_processed_distribution(running: Running) -> None:
    load(running, running.first, 1)
    assert gap(running.first, running.generate()) < 1e-4


def test_after_an_update_the_engine_samples_from_the_new_weights_tied_head_included(
    running: Running,
) -> None:
    load(running, running.first, 1)
    assert gap(running.second, running.generate()) > 0.5
    load(running, running.second, 2)
    assert gap(running.second, running.generate()) < 1e-4


def test_loading_a_folder_replaces_the_weights_too(running: Running) -> None:
    load(running, running.second, 3)
    running(running.engine.load_folder(str(running.first), 4))
    assert running.engine.policy_version == 4
    assert gap(running.first, running.generate()) < 1e-4


def test_no_prefix_computed_with_old_weights_survives_an_update(running: Running) -> None:
    load(running, running.first, 5)
    first, again = running.generate(), running.generate(seed=2)
    assert first.usage == Usage.of(len(PROMPT), 0, len(first.ids))
    assert 0 < again.usage.cached < again.usage.input == len(PROMPT)
    assert again.usage.cache_unknown == again.usage.unknown == 0
    echo = load(running, running.second, 6)
    generation = running.generate(seed=2)
    assert echo.cache_reset
    assert generation.usage == Usage.of(len(PROMPT), 0, len(generation.ids))
    assert gap(running.second, generation) < 1e-4


def test_the_engine_echoes_version_and_digest_of_what_it_received(running: Running) -> None:
    echo = load(running, running.second, 7)
    digest = WeightDigest()
    for name, tensor in load_file(running.second / "model.safetensors").items():
        digest.add(name, tensor)
    assert echo.policy_version == 7
    assert echo.digest == digest.hexdigest()


def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd(running: Running) -> None:
    load(running, running.first, 8)
    alone = running.generate(seed=11)

    async def crowd() -> Generation:
        others = [
            running.engine.generate([*PROMPT, i % VOCABULARY], SAMPLING, 24, i, [0])
            for i in range(30)
        ]
        mine = running.engine.generate(PROMPT, SAMPLING, 24, 11, [0])
        return (await asyncio.gather(mine, *others))[0]

    crowded = running(crowd())
    assert crowded.ids == alone.ids
    assert crowded.logprobs == alone.logprobs


def test_a_large_seed_is_accepted_and_differs_from_its_neighbour(running: Running) -> None:
    one, two = running.generate(seed=(1 << 63) - 1), running.generate(seed=(1 << 63) - 2)
    assert one.ids != two.ids


def test_a_long_prompt_with_a_seed_is_prefilled_whole(running: Running) -> None:
    prompt = [i % 200 for i in range(220)]
    assert len(running.generate(prompt=prompt, tokens=16).ids) == 16


def test_during_an_update_no_version_can_be_asked_for(running: Running) -> None:
    running(running.engine.begin_update())
    assert running.engine.policy_version == -1
    path = str(running.first / "model.safetensors")
    running(running.engine.receive_update({"path": path}))
    running(running.engine.end_update(9))
    assert running.engine.policy_version == 9


def test_an_update_whose_sender_died_gives_way_to_the_next(running: Running) -> None:
    load(running, running.first, 9)
    running(running.engine.begin_update())
    load(running, running.second, 10)
    assert gap(running.second, running.generate()) < 1e-4


class LoopControl:
    """EngineControl over one in-process engine."""

    def __init__(self, running: Running, corrupt: bool = False) -> None:
        self.running = running
        self.corrupt = corrupt

    def init_transfer(self, info: dict[str, Any]) -> None:
        self.running(self.running.engine.init_weight_transfer(info))

    def begin_update(self) -> None:
        self.running(self.running.engine.begin_update())

    def receive_update(self, info: Any) -> None:
        if self.corrupt:
            info = {"path": str(self.running.first / "model.safetensors")}
        self.running(self.running.engine.receive_update(info))

    def end_update(self, version: int) -> list[WeightEcho]:
        return [self.running(self.running.engine.end_update(version))]


def test_the_shared_memory_sender_updates_engines_and_confirms_the_digest(running: Running) -> None:
    tensors = load_file(running.second / "model.safetensors")
    sender = ShmSender(LoopControl(running), rank=0, name="test")
    sent = sender.send(lambda: iter(tensors.items()), 10)
    assert sent is not None
    assert sent.echoes[0].digest == sent.digest
    assert gap(running.second, running.generate()) < 1e-4
    left = list(Path("/dev/shm").glob("tbrl-test-*"))
    sender.close()
    assert left
    assert not list(Path("/dev/shm").glob("tbrl-test-*"))


def test_an_engine_that_received_other_weights_is_refused(running: Running) -> None:
    tensors = load_file(running.second / "model.safetensors")
    sender = ShmSender(LoopControl(running, corrupt=True), rank=0, name="corrupt")
    with pytest.raises(InvariantError, match="engine 0 echoes version 11"):
        sender.send(lambda: iter(tensors.items()), 11)
    sender.close()


def test_ranks_above_zero_only_take_part_in_gathering() -> None:
    class Nobody:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"rank 1 called {name}")

    passed: list[str] = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        passed.append("gathered")
        yield "w", torch.zeros(2)

    sender = ShmSender(Nobody(), rank=1, name="rank")  # type: ignore[arg-type]
    assert sender.send(weights, 1) is None
    assert passed == ["gathered"]
    sender.close()
