"""One GRPO update: time and memory against a padded loop and against TRL's loss path.

    python benchmarks/learner.py                                     synthetic episodes
    python benchmarks/learner.py --run runs/embedded --step 0        the episodes of a real step
    python benchmarks/learner.py --trl-python /path/to/python        also TRL, in its environment

Every case runs in a process of its own on the same episodes, model and threads; peak memory is
the process' highest resident size above what it held before the update.

    tbrl             packed, prompt of a group computed once, head on action tokens, top-k support
    tbrl, unshared   the same with the prompt repeated for each member
    padded           a straightforward loop: right-padded rows, logits of all response positions
    trl              GRPOTrainer's loss on left-padded prompts and right-padded completions
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tbrl.config import AlgorithmConfig, ModelConfig  # noqa: E402
from tbrl.learner.advantages import episode_advantages  # noqa: E402
from tbrl.learner.attention import register_attention  # noqa: E402
from tbrl.learner.head import score_tokens  # noqa: E402
from tbrl.learner.learner import GrpoLearner  # noqa: E402
from tbrl.learner.model import prepare_policy  # noqa: E402
from tbrl.records.episodes import read_groups  # noqa: E402
from tbrl.types import Episode, EpisodeGroup, EpisodeKey, Sampling, Scored  # noqa: E402

SAMPLING = Sampling(temperature=1.0, top_k=20, top_p=0.95)
SHAPES = {
    # layers, width, ff, heads, kv heads, head dim, vocabulary
    "tiny": (4, 128, 384, 4, 2, 32, 1216),
    "wide": (2, 256, 512, 4, 2, 64, 150_000),
}


def causal_lm(shape: str, attention: str) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    layers, width, ff, heads, kv_heads, head_dim, vocabulary = SHAPES[shape]
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=ff,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        use_cache=False,
    )
    config._attn_implementation = attention
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).float()


def synthetic_groups(count: int, size: int, vocabulary: int, seed: int = 0) -> list[EpisodeGroup]:
    """Shapes of the embedded tasks: prompts of about 225 tokens, responses of about 140 (5 to 6
    turns, 60 % sampled), long-tailed; two to six members of eight solved."""
    rng = np.random.default_rng(seed)
    result = []
    for slot in range(count):
        prompt = rng.integers(3, vocabulary, int(rng.integers(200, 250))).astype(np.int32)
        solved = int(rng.integers(2, 7))
        members = []
        for index in range(size):
            length = int(np.clip(rng.lognormal(4.85, 0.4), 30, 500))
            mask = (np.arange(length) % 25) < 15
            members.append(
                Episode(
                    key=EpisodeKey(0, slot, 0, index),
                    task_ref="synthetic",
                    domain="",
                    template="",
                    policy_version=0,
                    prompt_ids=prompt,
                    response_ids=rng.integers(3, vocabulary, length).astype(np.int32),
                    action_mask=mask,
                    behaviour_logprobs=np.where(mask, -2.0, 0.0).astype(np.float32),
                    turns=(),
                    finish_reason="done",
                    outcome=Scored(float(index < solved), index < solved),
                    sampling=SAMPLING,
                )
            )
        result.append(EpisodeGroup(0, slot, 0, "synthetic", tuple(members)))
    return result


def load_groups(args: argparse.Namespace) -> list[EpisodeGroup]:
    if args.run:
        path = Path(args.run) / "episodes" / f"step-{args.step:06d}.parquet"
        stored = [s.group for s in read_groups(path) if s.fate == "trained"]
        return stored[: args.groups]
    return synthetic_groups(args.groups, 8, SHAPES[args.shape][-1])


# ---------------------------------------------------------------- the cases


def tbrl_update(args: argparse.Namespace, groups: list[EpisodeGroup]) -> Callable[[], None]:
    from tbrl.learner import learner as facade

    if args.case == "tbrl-unshared":
        original = facade.PackingSettings
        facade.PackingSettings = lambda *a, **k: original(*a, **k, share_prompt=False)  # type: ignore
    config = AlgorithmConfig(learning_rate=1e-6, micro_batch_tokens=args.micro_batch_tokens)
    policy = prepare_policy(causal_lm(args.shape, register_attention()), config.head_chunk)
    learner = GrpoLearner(config, ModelConfig(), SAMPLING, policy=policy)

    def update() -> None:
        for slot, group in enumerate(groups):
            learner.add_group(group, slot)
        learner.finish()

    return update


def padded_rows(group: EpisodeGroup, left: bool) -> dict[str, Tensor]:
    """Prompts [B, P], completions [B, R] and their masks, padded to the longest."""
    longest = max(len(e.response_ids) for e in group.episodes)
    prompt = torch.from_numpy(np.stack([e.prompt_ids for e in group.episodes])).long()
    rows = len(group.episodes)
    completion = torch.zeros(rows, longest, dtype=torch.long)
    present, action = torch.zeros(rows, longest), torch.zeros(rows, longest)
    behaviour = torch.zeros(rows, longest)
    for i, e in enumerate(group.episodes):
        n = len(e.response_ids)
        completion[i, :n] = torch.from_numpy(e.response_ids)
        present[i, :n] = 1
        action[i, :n] = torch.from_numpy(e.action_mask)
        behaviour[i, :n] = torch.from_numpy(e.behaviour_logprobs)
    return {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": completion,
        "completion_mask": present.long(),
        "tool_mask": action.long(),
        "behaviour": behaviour,
        "advantages": torch.tensor(episode_advantages(group).values),
    }


def padded_update(args: argparse.Namespace, groups: list[EpisodeGroup]) -> Callable[[], None]:
    """What one would write first: rows of a group, logits of the completion, one step."""
    model = causal_lm(args.shape, "sdpa")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)
    batches = [padded_rows(group, left=False) for group in groups]
    total = sum(float(b["tool_mask"].sum()) for b in batches)

    def update() -> None:
        for b in batches:
            ids = torch.cat([b["prompt_ids"], b["completion_ids"]], 1)
            present = torch.cat([b["prompt_mask"], b["completion_mask"]], 1)
            keep = b["completion_ids"].shape[1] + 1
            logits = model(input_ids=ids, attention_mask=present, logits_to_keep=keep).logits
            logprobs = logits[:, :-1].log_softmax(-1)
            entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
            new = logprobs.gather(2, b["completion_ids"][:, :, None])[:, :, 0]
            ratio, advantage = (new - new.detach()).exp(), b["advantages"][:, None]
            weight = (new.detach() - b["behaviour"]).exp().clamp(max=2.0)
            token = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * weight
            ((token * b["tool_mask"]).sum() / total).backward()
            float((entropy * b["tool_mask"]).sum())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update


def trl_update(args: argparse.Namespace, groups: list[EpisodeGroup]) -> Callable[[], None]:
    """GRPOTrainer._compute_loss with its dapo aggregation; optimizer and clipping as above."""
    import tempfile

    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=len(groups),
        num_generations=8,
        beta=0.0,
        report_to="none",
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        causal_lm(args.shape, "sdpa"),
        lambda completions, **_: [0.0] * len(completions),
        config,
        Dataset.from_dict({"prompt": ["a"] * 8}),
        processing_class=AutoTokenizer.from_pretrained(ROOT / "tbrl/policy/base"),
    )
    model = trainer.model.train()
    trainer.current_gradient_accumulation_steps = len(groups)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)
    batches = [padded_rows(group, left=True) for group in groups]
    total = torch.tensor(sum(float(b["tool_mask"].sum()) for b in batches))

    def update() -> None:
        for b in batches:
            trainer._compute_loss(model, {**b, "num_items_in_batch": total}).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update


def head_case(args: argparse.Namespace) -> Callable[[], None]:
    """Forward and backward of the head alone on the same hidden states."""
    width, vocabulary, rows = 1024, args.vocabulary, args.tokens[0]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, width, generator=generator).requires_grad_()
    weight = (torch.randn(vocabulary, width, generator=generator) / 32).requires_grad_()
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    sampling = SAMPLING if args.case == "head-support" else Sampling()

    def update() -> None:
        hidden.grad = weight.grad = None
        if args.case == "head-naive":
            logprobs = (hidden @ weight.T).log_softmax(1)
            logprobs.gather(1, targets[:, None]).sum().backward()
        else:
            score_tokens(
                hidden, weight, targets, sampling, args.head_chunk
            ).logprobs.sum().backward()

    return update


# ---------------------------------------------------------------- one case, measured


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def matmul_peak(repeats: int = 5) -> float:
    """Best float32 GFLOP/s of a square matmul at this thread count."""
    a = torch.randn(1536, 1536)
    best = 0.0
    for _ in range(repeats):
        started = time.perf_counter()
        a @ a
        best = max(best, 2 * 1536**3 / (time.perf_counter() - started) / 1e9)
    return best


def run_case(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    makers = {"tbrl": tbrl_update, "tbrl-unshared": tbrl_update, "padded": padded_update,
              "trl": trl_update}  # fmt: skip
    update = makers[args.case](args, load_groups(args)) if args.case in makers else head_case(args)
    before = resident_mib()
    update()
    seconds = []
    for _ in range(args.repeats):
        started, cpu = time.perf_counter(), time.process_time()
        update()
        seconds.append((time.process_time() - cpu, time.perf_counter() - started))
    result = {
        "cpu_s": statistics.median(s[0] for s in seconds),
        "wall_s": statistics.median(s[1] for s in seconds),
        "peak_mib": peak_mib() - before,
        "gflops": matmul_peak(),
    }
    print("RESULT " + json.dumps(result))


def measure(args: argparse.Namespace, case: str, python: str = sys.executable, **more: Any) -> Any:
    keys = {**vars(args), **more, "case": case}
    command = [python, __file__]
    for key, value in keys.items():
        if key != "trl_python" and value is not None and value != "":
            values = value if isinstance(value, list) else [value]
            command += [f"--{key.replace('_', '-')}", *map(str, values)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"{case}: failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        return None
    return json.loads(lines[-1][7:])


# ---------------------------------------------------------------- tables


def show(title: str, rows: dict[str, Any], base: str, unit: int, what: str) -> None:
    """CPU seconds, `unit` items a CPU second, peak memory; ratios against `base`."""
    print(f"\n{title}")
    print(f"{'':18}{'cpu s':>9}{what + '/cpu s':>16}{'peak MiB':>10}{'speed':>8}{'memory':>8}")
    for name, row in rows.items():
        if row is None:
            continue
        speed = rows[base]["cpu_s"] / row["cpu_s"]
        memory = row["peak_mib"] / rows[base]["peak_mib"]
        print(
            f"{name:18}{row['cpu_s']:9.3f}{unit / row['cpu_s']:16.0f}{row['peak_mib']:10.0f}"
            f"{speed:8.2f}{memory:8.2f}"
        )


def flops_of(groups: list[EpisodeGroup], shape: str) -> float:
    """Matmul FLOPs of an unshared, unpadded update: 6 x weights x tokens; attention and head on
    top."""
    layers, width, ff, heads, kv_heads, head_dim, vocabulary = SHAPES[shape]
    weights = layers * (width * head_dim * (2 * heads + 2 * kv_heads) + 3 * width * ff)
    total = 0.0
    for group in groups:
        for e in group.episodes:
            length = len(e.prompt_ids) + len(e.response_ids)
            total += 6 * weights * length + 6 * vocabulary * width * e.action_tokens
            total += 6 * layers * heads * head_dim * length * length
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--case", default="")
    parser.add_argument("--shape", default="tiny", choices=SHAPES)
    parser.add_argument("--groups", type=int, default=18)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--micro-batch-tokens", type=int, default=4096)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[1024, 4096], help="rows of the head cases"
    )
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--head-chunk", type=int, default=512)
    parser.add_argument("--run", default="")
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--trl-python", default="", help="python of an environment with TRL")
    args = parser.parse_args()
    if args.case:
        run_case(args)
        return
    trl = args.trl_python or sys.executable
    for shape, groups in (("tiny", args.groups), ("wide", 1)):
        data = argparse.Namespace(**{**vars(args), "shape": shape, "groups": groups})
        episodes = load_groups(data)
        tokens = sum(len(e.prompt_ids) + len(e.response_ids) for g in episodes for e in g.episodes)
        rows = {case: measure(data, case) for case in ("padded", "tbrl", "tbrl-unshared")}
        rows["trl"] = measure(data, "trl", trl)
        title = (
            f"GRPO update, {SHAPES[shape][-1]:,} vocabulary, {groups} groups x 8, {tokens:,} tokens"
        )
        show(title, rows, "padded", sum(len(g.episodes) for g in episodes), "episodes")
        done = flops_of(episodes, shape) / rows["tbrl-unshared"]["cpu_s"] / 1e9
        peak = rows["tbrl-unshared"]["gflops"]
        print(
            f"tbrl-unshared: {done:.0f} of {peak:.0f} GFLOP/s of a matmul here: {done / peak:.0%}"
        )
    for tokens in args.tokens:
        heads = {
            case: measure(args, case, tokens=[tokens])
            for case in ("head-naive", "head-full", "head-support")
        }
        title = f"Head alone, {tokens} tokens x {args.vocabulary:,}, width 1024, forward + backward"
        show(title, heads, "head-naive", tokens, "tokens")


if __name__ == "__main__":
    main()
