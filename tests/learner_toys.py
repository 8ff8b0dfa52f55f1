"""Small policies and episode groups for the learner's tests."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.tensor import DTensor

from tbrl.learner.attention import register_attention
from tbrl.learner.distributed import Ranks, join_ranks, leave_ranks
from tbrl.learner.head import TokenScores, score_tokens
from tbrl.learner.model import HuggingFacePolicy, Policy, prepare_policy
from tbrl.learner.packing import PackedBatch
from tbrl.types import Episode, EpisodeGroup, EpisodeKey, Failed, Sampling, Scored

VOCABULARY = 61

no_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="deepspeed is not installed (the extra `zero`)"
)


class ToyPolicy(Policy):
    """Float64 unless cast: the next token depends on the current token and its position only."""

    def __init__(self, seed: int = 0, width: int = 8) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64))

        self.embedding, self.mix, self.head = (
            normal(VOCABULARY, width),
            normal(width, width),
            normal(VOCABULARY, width),
        )

    def forward(
        self, batch: PackedBatch, samplings: tuple[Sampling, ...]
    ) -> tuple[TokenScores, ...]:
        phase = torch.cos(batch.position_ids.double() / 3.0)[:, None].to(self.mix.dtype)
        hidden = torch.tanh(self.embedding[batch.input_ids] @ self.mix + phase)
        return tuple(
            score_tokens(hidden[batch.rows], self.head, batch.targets, sampling, 16)
            for sampling in samplings
        )


def tiny_causal_lm(seed: int = 0, tied: bool = True, vocabulary: int = VOCABULARY) -> Any:
    """Random Qwen3: 2 layers, width 32, grouped queries; weights large enough to matter."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        max_position_embeddings=512,
    )
    config._attn_implementation = register_attention()
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config).float()


def tiny_policy(seed: int = 0, tied: bool = True) -> HuggingFacePolicy:
    return prepare_policy(tiny_causal_lm(seed, tied), head_chunk=32)


def episode(
    rng: np.random.Generator,
    key: EpisodeKey,
    prompt: np.ndarray,
    length: int,
    reward: float | None,
    sampling: Sampling,
    noise: float = 0.1,
) -> Episode:
    """Random tokens with turns of sampled and observed tokens; the first token is sampled."""
    mask = np.ones(length, bool)
    mask[length // 3 : length // 2] = False
    return Episode(
        key=key,
        task_ref="toy/task",
        domain="toy",
        template="toy",
        policy_version=0,
        prompt_ids=prompt,
        response_ids=rng.integers(0, VOCABULARY, length).astype(np.int32),
        action_mask=mask,
        behaviour_logprobs=np.where(mask, rng.normal(-3.0, noise, length), 0.0).astype(np.float32),
        turns=(),
        finish_reason="done",
        outcome=Failed("backend", "toy", "down") if reward is None else Scored(reward, reward == 1),
        sampling=sampling,
    )


def groups(
    count: int, rewards: tuple[float | None, ...] = (1, 0, 0, 1), seed: int = 0
) -> list[EpisodeGroup]:
    """`count` groups, slot = index, with prompts and responses of varied lengths."""
    rng = np.random.default_rng(seed)
    result = []
    for slot in range(count):
        prompt = rng.integers(0, VOCABULARY, int(rng.integers(3, 9))).astype(np.int32)
        members = tuple(
            episode(
                rng,
                EpisodeKey(0, slot, 0, index),
                prompt,
                int(rng.integers(4, 14)),
                reward,
                Sampling(),
            )
            for index, reward in enumerate(rewards)
        )
        result.append(EpisodeGroup(0, slot, 0, "toy/task", members))
    return result


def train_on(subject: Any, data: list[EpisodeGroup]) -> Any:
    """One step of a GrpoLearner on `data`, slot = index: its LearnerStats."""
    ranks = subject.ranks
    subject.begin_step()
    for slot, group in enumerate(data):
        if slot % ranks.data_world == ranks.data_rank:
            subject.add_group(group, slot)
    return subject.finish()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a parameter, gathered where it is sharded."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def parameters(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


def _rank_main(
    rank: int,
    world: int,
    port: int,
    target: Callable[..., Any],
    queue: Any,
    args: Any,
    sequence_parallel: int,
) -> None:
    torch.set_num_threads(1)
    # DeepSpeed collects garbage whenever an engine starts: not among all that was imported.
    gc.freeze()
    store = dist.TCPStore("127.0.0.1", port, world, False)
    try:
        ranks = join_ranks(
            rank,
            world,
            store,
            timeout_s=240,
            always_group=True,
            sequence_parallel=sequence_parallel,
        )
        value = target(ranks, *args)
        dist.barrier()
        leave_ranks(ranks)
    except BaseException:
        queue.put((rank, None, traceback.format_exc()))
        raise
    queue.put((rank, value, ""))


def on_ranks(
    world: int, target: Callable[..., Any], *args: Any, sequence_parallel: int = 1
) -> list[Any]:
    """Run target(ranks, *args) on `world` gloo processes; results by rank (plain data)."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # One clean process imports everything once; each rank is forked from it.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(
        ["learner_toys", "tbrl.learner.learner", "transformers.models.qwen3.modeling_qwen3"]
    )
    store = dist.TCPStore("127.0.0.1", 0, world, True, wait_for_workers=False)
    queue = context.SimpleQueue()
    processes = [
        context.Process(
            target=_rank_main,
            args=(rank, world, store.port, target, queue, args, sequence_parallel),
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    results = {}
    for _ in range(world):
        rank, value, trouble = queue.get()
        if trouble:
            for process in processes:
                process.kill()
            raise AssertionError(f"rank {rank}: {trouble}")
        results[rank] = value
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * world
    return [results[rank] for rank in range(world)]


SINGLE = Ranks()
