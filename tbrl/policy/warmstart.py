"""Warm start: supervised training of the tiny policy on expert demonstrations.

    tasks of the `warmstart` split -> expert on the real backend, wrong at decisions with
    probability `noise` -> token ids -> next-token loss on assistant tokens -> bf16 checkpoint

Conversations of one scenario share their system turn, which is more than half of their tokens: it
is computed once a batch and its keys and values serve all conversations of the batch.
Deterministic on one machine with one thread setting.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from tbrl.config import WarmstartConfig
from tbrl.domains.base import Domain, Names
from tbrl.domains.names import names_of
from tbrl.domains.registry import all_domains
from tbrl.policy.copying import copy_exercise, copy_loss
from tbrl.policy.demonstrations import Demonstration, conversations, tokenized
from tbrl.policy.modelcard import Metrics, write_card
from tbrl.policy.tokenizer import chat_template, padded_vocab, train_tokenizer

Progress = Callable[[str, int, int, float], None]
"""(phase, done, total, loss so far)."""

NOISE = {"base": 0.33, "reference": 0.0}
"""Probability of a wrong branch at each decision, by shipped policy."""
VOCABULARY = 1536
CORPUS = 3000
"""Conversations that the tokenizer is trained on."""
MICRO_BATCH = 12
"""Conversations of one scenario a micro-batch; a step has one micro-batch a domain."""
BUCKET = 8
"""Micro-batches that are cut from conversations sorted by length."""
WARMUP = 0.05
CLIP = 1.0


@dataclass(frozen=True, slots=True)
class _Phase:
    """How long to train on demonstrations, on how many, how fast."""

    steps: int
    demonstrations: int
    learning_rate: float
    noise: float
    seed: int


def warmstart(
    config: WarmstartConfig,
    out_dir: Path,
    noise: float,
    on_progress: Progress | None = None,
    start: Path | None = None,
    domains: Sequence[Domain] | None = None,
) -> Metrics:
    """Train a policy and write it to `out_dir` as a Hugging Face folder in bfloat16.

    From nothing: tokenizer, copy exercises, `config.steps` steps. With `start`, an earlier warm
    start's folder: its tokenizer and weights, `config.refine_*`. `domains` defaults to all that
    have a compact size.
    """
    started = time.perf_counter()
    report = on_progress or (lambda phase, done, total, loss: None)
    if domains is None:
        domains = [d for d in all_domains() if "compact" in d.sizes]
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    if start is None:
        tokenizer = _tokenizer(domains, config)
        model = Qwen3ForCausalLM(model_config(tokenizer))
        _learn_to_copy(model, tokenizer, config, report)
    else:
        tokenizer = AutoTokenizer.from_pretrained(start)
        model = Qwen3ForCausalLM.from_pretrained(start, dtype=torch.float32)
    phase = _phase(config, noise, refine=start is not None)
    demos, right = _demonstrations(domains, tokenizer, phase, report)
    losses = _train(model, demos, phase, report)
    _save(model, tokenizer, out_dir)
    metrics = Metrics(
        steps=phase.steps,
        demonstrations=len(demos),
        right_share=right,
        loss=sum(losses[-50:]) / len(losses[-50:]),
        parameters=sum(p.numel() for p in model.parameters()),
        seconds=time.perf_counter() - started,
    )
    write_card(out_dir, noise, metrics, config, domains)
    return metrics


def _phase(config: WarmstartConfig, noise: float, refine: bool) -> _Phase:
    if refine:
        return _Phase(
            steps=config.refine_steps,
            demonstrations=config.refine_demonstrations,
            learning_rate=config.refine_learning_rate,
            noise=noise,
            seed=config.seed,
        )
    return _Phase(
        steps=config.steps,
        demonstrations=config.demonstrations,
        learning_rate=config.learning_rate,
        noise=noise,
        seed=config.seed,
    )


def model_config(tokenizer: Any) -> Qwen3Config:
    """The architecture: Qwen3, below a million parameters."""
    return Qwen3Config(
        vocab_size=padded_vocab(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _tokenizer(domains: Sequence[Domain], config: WarmstartConfig) -> Any:
    """Trained on conversations without anybody's name, so that names of all splits are spelled."""
    count = min(CORPUS, config.demonstrations)
    nobody = Names("nobody", first=("X",), last=("Y",), ids=names_of("warmstart").ids)
    plain = train_tokenizer([""], 0, chat_template())
    texts = [
        str(plain.apply_chat_template(list(c.messages), tools=list(c.tools), tokenize=False))
        for c in conversations(domains, nobody, count, noise=0.5, seed=config.seed)
    ]
    return train_tokenizer(texts, VOCABULARY, chat_template())


def _demonstrations(
    domains: Sequence[Domain],
    tokenizer: Any,
    phase: _Phase,
    report: Progress,
) -> tuple[list[Demonstration], float]:
    total = phase.demonstrations
    demos: list[Demonstration] = []
    prefixes: dict[str, str] = {}
    right = 0
    walked = conversations(domains, names_of("warmstart"), total, phase.noise, phase.seed)
    for conversation in walked:
        demos.append(tokenized(conversation, tokenizer, prefixes))
        right += conversation.right
        if len(demos) % 100 == 0:
            report("demonstrations", len(demos), total, 0.0)
    return demos, right / total


def _learn_to_copy(
    model: Qwen3ForCausalLM, tokenizer: Any, config: WarmstartConfig, report: Progress
) -> None:
    optimizers = _optimizers(model, config.learning_rate)
    rng = random.Random(f"{config.seed}/copying")
    model.train()
    for step in range(config.copy_steps):
        loss = copy_loss(model, copy_exercise(tokenizer, rng))
        loss.backward()
        _update(model, optimizers)
        report("copying", step + 1, config.copy_steps, loss.item())


def _train(
    model: Qwen3ForCausalLM,
    demos: Sequence[Demonstration],
    phase: _Phase,
    report: Progress,
) -> list[float]:
    optimizers = _optimizers(model, phase.learning_rate)
    base_rates = [[g["lr"] for g in o.param_groups] for o in optimizers]
    losses: list[float] = []
    model.train()
    batches = _batches(demos, phase.seed)
    for step in range(phase.steps):
        scale = _schedule(step / phase.steps)
        for optimizer, rates in zip(optimizers, base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * scale
        losses.append(_step(model, next(batches), optimizers))
        report("training", step + 1, phase.steps, losses[-1])
    return losses


def _step(
    model: Qwen3ForCausalLM,
    micro_batches: Sequence[Sequence[Demonstration]],
    optimizers: Sequence[torch.optim.Optimizer],
) -> float:
    """One update on one micro-batch a domain; returns the mean loss per assistant token."""
    count = sum(int(d.mask.sum()) for batch in micro_batches for d in batch)
    total = 0.0
    for batch in micro_batches:
        loss = loss_sum(model, batch) / count
        loss.backward()
        total += loss.item()
    _update(model, optimizers)
    return total


def _update(model: Qwen3ForCausalLM, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def loss_sum(model: Qwen3ForCausalLM, batch: Sequence[Demonstration]) -> Tensor:
    """Summed negative log-likelihood of the assistant tokens of conversations of one scenario."""
    prefix = torch.from_numpy(batch[0].prefix)[None]
    length = max(len(d.ids) for d in batch)
    ids = torch.zeros((len(batch), length), dtype=torch.long)
    mask = torch.zeros((len(batch), length), dtype=torch.bool)
    for row, demo in enumerate(batch):
        ids[row, : len(demo.ids)] = torch.from_numpy(demo.ids)
        mask[row, : len(demo.mask)] = torch.from_numpy(demo.mask)
    cache = model.model(prefix, use_cache=True).past_key_values
    cache.batch_repeat_interleave(len(batch))
    hidden = model.model(ids[:, :-1], past_key_values=cache, use_cache=True).last_hidden_state
    logits = model.lm_head(hidden[mask[:, 1:]])
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][mask[:, 1:]], reduction="sum")


def _batches(demos: Sequence[Demonstration], seed: int) -> Iterator[list[Sequence[Demonstration]]]:
    """Endless steps: one micro-batch of each scenario, of conversations of similar length."""
    by_scenario: dict[str, list[Demonstration]] = {}
    for demo in demos:
        by_scenario.setdefault(demo.scenario_id, []).append(demo)
    streams = [
        _micro_batches(group, random.Random(f"{seed}/{name}"))
        for name, group in by_scenario.items()
    ]
    while True:
        yield [next(stream) for stream in streams]


def _micro_batches(
    demos: list[Demonstration], rng: random.Random
) -> Iterator[Sequence[Demonstration]]:
    while True:
        order = rng.sample(demos, len(demos))
        for start in range(0, len(order), MICRO_BATCH * BUCKET):
            bucket = sorted(order[start : start + MICRO_BATCH * BUCKET], key=lambda d: len(d.ids))
            cuts = [bucket[i : i + MICRO_BATCH] for i in range(0, len(bucket), MICRO_BATCH)]
            yield from rng.sample(cuts, len(cuts))


def _optimizers(model: Qwen3ForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embedding and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(
            matrices, lr=learning_rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _schedule(progress: float) -> float:
    """Linear warm-up, then cosine to a tenth."""
    if progress < WARMUP:
        return progress / WARMUP + 0.01
    done = (progress - WARMUP) / (1 - WARMUP)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def _save(model: Qwen3ForCausalLM, tokenizer: Any, out_dir: Path) -> None:
    out_dir.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=20,
        top_p=0.95,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.bfloat16().save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
