"""The sampler's support, recorded by the engine or recomputed by the learner.

    python benchmarks/support.py --run runs/embedded [--step 0] [--turns 400] [key=value ...]

Training with top-k and top-p compares logprobs on the sampler's support. Either the engine reports
it (top_k logprobs a token) or the learner cuts its own logits the same way and forces the sampled
token in. The recorded turns of a step are sampled again by a float32 and by a bfloat16 engine, and
scored by the float32 learner:

    edge         sampled tokens outside the learner's own support
    other set    tokens whose two supports differ in some member
    mean k3      estimate of KL(sampler || learner) from exp(d) - d - 1, d = learner - sampler, nats
    max ratio    largest exp(|d|)
    cost         engine tokens/s with reported supports over those without; bytes a token
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rollout import Turn, turns_of
from torch import Tensor

from tbrl.config import Config
from tbrl.engine.environment import apply, engine_environment
from tbrl.launch import compose_config
from tbrl.learner.support import restrict_
from tbrl.policy.builtin import policy_folder
from tbrl.records.episodes import read_groups
from tbrl.types import Sampling

RECORDED_BYTES = 8
"""Of a member of a support: int32 id, float32 logprob."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One turn: its tokens, and for each the engine's support with processed logprobs."""

    ids: list[int]
    tables: list[dict[int, float]]


def requests_of(run: str, step: int, count: int) -> list[Turn]:
    path = Path(run) / "episodes" / f"step-{step:06d}.parquet"
    episodes = (episode for stored in read_groups(path) for episode in stored.group.episodes)
    return [turn for episode in episodes for turn in turns_of(episode)][:count]


class Engine:
    """A vLLM engine that is asked for `width` logprobs a token."""

    def __init__(self, wrapped: Any, sampling: Sampling) -> None:
        self.wrapped, self.sampling = wrapped, sampling

    async def sample(self, request: Turn, width: int, name: str) -> Sampled:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        s = self.sampling
        params = SamplingParams(
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            max_tokens=request.length,
            seed=request.seed,
            logprobs=width,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        final = None
        async for output in self.wrapped._llm.generate(tokens_input(request.prompt), params, name):
            final = output
        assert final is not None
        (sampled,) = final.outputs
        tables = [
            {token: entry.logprob for token, entry in table.items() if entry.logprob > -torch.inf}
            for table in sampled.logprobs
        ]
        return Sampled(list(sampled.token_ids), tables)

    async def timed(self, requests: Sequence[Turn], width: int) -> tuple[float, list[Sampled]]:
        await self.wrapped._llm.reset_prefix_cache()
        began = time.perf_counter()
        work = (self.sample(r, width, f"{width}-{began}-{n}") for n, r in enumerate(requests))
        sampled = await asyncio.gather(*work)
        return time.perf_counter() - began, sampled


@dataclass
class Gaps:
    """learner - sampler per token, in one of the two ways."""

    values: list[Tensor]

    def row(self) -> tuple[str, str]:
        gap = torch.cat(self.values).double()
        k3 = float((torch.expm1(gap) - gap).mean())
        return f"{k3:.1e}", f"{float(gap.abs().max().exp()):.4f}"


@torch.no_grad()
def score(model: Any, requests: list[Turn], turns: list[Sampled], sampling: Sampling) -> Any:
    """(recorded, recomputed, edge tokens, tokens whose supports differ)"""
    recorded, recomputed, edges, differing = Gaps([]), Gaps([]), 0, 0
    for request, turn in zip(requests, turns, strict=True):
        ids = torch.tensor([request.prompt + turn.ids])
        first = len(request.prompt) - 1
        logits = model(ids).logits[0, first : first + len(turn.ids)] / sampling.temperature
        targets = torch.tensor(turn.ids)
        theirs = torch.full_like(logits, -torch.inf)
        for n, table in enumerate(turn.tables):
            theirs[n, list(table)] = logits[n, list(table)]
        ours = logits.clone()
        edge = restrict_(ours, targets, sampling.top_k, sampling.top_p)
        behaviour = torch.tensor(
            [table[token] for table, token in zip(turn.tables, turn.ids, strict=True)]
        )
        for gaps, kept in ((recorded, theirs), (recomputed, ours)):
            chosen = kept.log_softmax(1).gather(1, targets[:, None])[:, 0]
            gaps.values.append(chosen - behaviour)
        edges += int(edge.sum())
        differing += int(((ours > -torch.inf) != (theirs > -torch.inf)).any(1).sum())
    return recorded, recomputed, edges, differing


async def measure(config: Config, arguments: argparse.Namespace, dtype: str, table: Table) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from tbrl.engine.vllm_engine import VllmEngine

    folder = policy_folder(arguments.policy)
    requests = requests_of(arguments.run, arguments.step, arguments.turns)
    r = config.rollout
    sampling = Sampling(r.temperature, r.top_k, r.top_p)
    config.model.engine_dtype = dtype
    started = await VllmEngine.start(folder, config.model, config.engine, config.topology)
    engine = Engine(started, sampling)
    seconds: dict[int, list[float]] = {0: [], sampling.top_k: []}
    turns: list[Sampled] = []
    for _ in range(arguments.repeats + 1):  # interleaved; the first of each warms up
        for width, times in seconds.items():
            spent, turns = await engine.timed(requests, width)
            times.append(spent)
    await started.shutdown()
    plain, wide = (statistics.median(times[1:]) for times in seconds.values())
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    recorded, recomputed, edges, differing = score(model, requests, turns, sampling)
    count = sum(len(turn.ids) for turn in turns)
    members = sum(len(t) for turn in turns for t in turn.tables) / count
    cost = f"{plain / wide:.2f} x, {members * RECORDED_BYTES:.0f} B"
    table.add_row(dtype, "recorded", "", "", *recorded.row(), cost)
    table.add_row(
        dtype, "recomputed", f"{edges}", f"{differing} of {count}", *recomputed.row(), "1 x, 0 B"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--run", required=True)
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--policy", default="builtin:base", help="that played the step")
    parser.add_argument("overrides", nargs="*", help="of the configuration: rollout.temperature=2")
    arguments = parser.parse_args()
    apply(engine_environment("cpu", 1))
    torch.set_num_threads(1)
    table = Table(title="Support of the sampler: reported by the engine, or cut by the learner")
    for name in ("engine", "support", "edge", "other set", "mean k3", "max ratio", "cost"):
        table.add_column(name)
    for dtype in ("float32", "bfloat16"):
        asyncio.run(measure(compose_config(arguments.overrides), arguments, dtype, table))
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
