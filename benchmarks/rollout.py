"""Whole multi-turn rollouts against raw vLLM on the identical token streams.

    python benchmarks/rollout.py [--groups 12] [--size 8] [--repeats 3] [--ray]

One engine, one process, one run. Rollouts: prompt rendering, sampling, interpretation, tools over
MCP, simulated user, grading. The recorded episodes are then sent to the same engine as bare
requests, prompt ids and seed and length of each turn as recorded:

    (a) turn by turn, each episode waiting for its own previous turn     goal: rollouts >= 0.9 of it
    (b) all turns of all episodes at once, as if known in advance       goal: rollouts >= 0.75 of it

`--ray` also plays the same groups through the actors (another engine process, same weights).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tbrl.config import RolloutConfig
from tbrl.engine.environment import apply, engine_environment
from tbrl.episode.group import run_group
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.loop import Parts, run_episode
from tbrl.episode.rendering import Renderer
from tbrl.episode.seeding import training_seeds
from tbrl.launch import compose_config
from tbrl.policy.builtin import policy_folder
from tbrl.rewards.build import build_grader
from tbrl.sandbox.build import build_sandbox
from tbrl.tasks.load import load_tasks
from tbrl.types import Episode, EpisodeKey, Sampling
from tbrl.usage import unanswered
from tbrl.users.scripted import ScriptedUser


@dataclass(frozen=True, slots=True)
class Turn:
    """One recorded request."""

    prompt: list[int]
    seed: int
    length: int


def turns_of(episode: Episode) -> list[Turn]:
    ids = [*episode.prompt_ids.tolist(), *episode.response_ids.tolist()]
    return [
        Turn(ids[: t.start], t.seed, t.end - t.start)
        for t in episode.turns
        if t.role == "assistant"
    ]


class Bench:
    """The engine and what is measured on it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.config = compose_config([])
        self.rollout: RolloutConfig = self.config.rollout
        self.sampling = Sampling(self.rollout.temperature, self.rollout.top_k, self.rollout.top_p)
        self.tasks = load_tasks(self.config.tasks, "candidate")[: arguments.groups]

    async def start(self) -> None:
        from transformers import AutoTokenizer

        from tbrl.engine.vllm_engine import VllmEngine

        folder = policy_folder(self.config.model.path)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        renderer = Renderer(tokenizer)
        base = Interpreter(tokenizer, (), "auto", renderer.reasoning_preopened)
        readers: dict[tuple[str, ...], Interpreter] = {}

        def interpreter_for(session: object) -> Interpreter:
            tools = session.tools  # type: ignore[attr-defined]
            names = tuple(tool.name for tool in tools)
            return readers.setdefault(names, base.with_tools(tools))

        c = self.config
        self.engine = await VllmEngine.start(folder, c.model, c.engine, c.topology)
        sandbox = build_sandbox(c.sandbox)
        grader = build_grader(self.tasks, c.judge)
        self.parts = Parts(
            self.engine, sandbox, ScriptedUser(), grader, renderer, interpreter_for, unanswered()
        )

    async def rollouts(self) -> list[Episode]:
        async def group(number: int) -> list[Episode]:
            task = self.tasks[number % len(self.tasks)]

            async def member(key: EpisodeKey, tries: int, salt: int) -> Episode:
                seeds = training_seeds(0, key, salt)
                return await run_episode(
                    self.parts, task.public, key, self.rollout, self.sampling, seeds, tries
                )

            size = self.arguments.size
            result = await run_group(task.task_ref, 0, number, 0, size, 1, member)
            return list(result.group.episodes)

        groups = await asyncio.gather(*(group(n) for n in range(self.arguments.groups)))
        return [episode for group in groups for episode in group]

    async def request(self, turn: Turn) -> None:
        generation = await self.engine.generate(
            turn.prompt, self.sampling, turn.length, turn.seed, []
        )
        assert len(generation.ids) == turn.length

    async def dependent(self, episodes: list[list[Turn]]) -> None:
        async def one(turns: list[Turn]) -> None:
            for turn in turns:
                await self.request(turn)

        await asyncio.gather(*(one(turns) for turns in episodes))

    async def independent(self, episodes: list[list[Turn]]) -> None:
        await asyncio.gather(*(self.request(turn) for turns in episodes for turn in turns))

    async def timed(self, work: Callable[[], Awaitable[object]]) -> float:
        await self.engine._llm.reset_prefix_cache()
        began = time.perf_counter()
        await work()
        return time.perf_counter() - began


async def measure(arguments: argparse.Namespace) -> None:
    bench = Bench(arguments)
    await bench.start()
    episodes = await bench.rollouts()  # warms every path up; its streams are replayed below
    streams = [turns_of(episode) for episode in episodes]
    generated = sum(turn.length for turns in streams for turn in turns)
    processed = sum(len(turn.prompt) + turn.length for turns in streams for turn in turns)
    seconds: dict[str, list[float]] = {"rollouts": [], "raw (a)": [], "raw (b)": []}
    for _ in range(arguments.repeats):  # interleaved: a busy minute hits all alike
        seconds["rollouts"].append(await bench.timed(bench.rollouts))
        seconds["raw (a)"].append(await bench.timed(lambda: bench.dependent(streams)))
        seconds["raw (b)"].append(await bench.timed(lambda: bench.independent(streams)))
    await bench.engine.shutdown()
    if arguments.ray:
        seconds["through Ray actors"] = await through_actors(bench, arguments)
    report(seconds, generated, processed, episodes)


async def through_actors(bench: Bench, arguments: argparse.Namespace) -> list[float]:
    from tbrl.actors.cluster import Cluster
    from tbrl.schedule import Assignment

    bench.config.algorithm.group_size = arguments.size
    times = []
    async with Cluster(bench.config, bench.tasks) as cluster:
        for repeat in range(arguments.repeats + 1):
            await cluster.fleet.load_folder(bench_folder(bench), repeat)  # drops cached prefixes
            began = time.perf_counter()
            runs = [
                cluster.fleet.run_group(
                    Assignment(0, n, 0, n, bench.tasks[n % len(bench.tasks)].task_ref), repeat
                )
                for n in range(arguments.groups)
            ]
            await asyncio.gather(*runs)
            times.append(time.perf_counter() - began)
    return times[1:]


def bench_folder(bench: Bench) -> str:
    return policy_folder(bench.config.model.path)


def report(
    seconds: dict[str, list[float]], generated: int, processed: int, episodes: list[Episode]
) -> None:
    table = Table(title=f"{len(episodes)} episodes, {generated} generated tokens")
    for name in (
        "what",
        "seconds (median)",
        "generated tok/s",
        "processed tok/s",
        "rollouts / this",
    ):
        table.add_column(name, justify="left" if name == "what" else "right")
    rollout = statistics.median(seconds["rollouts"])
    for name, times in seconds.items():
        median = statistics.median(times)
        table.add_row(
            name,
            f"{median:.2f} ({min(times):.2f}-{max(times):.2f})",
            f"{generated / median:.0f}",
            f"{processed / median:.0f}",
            f"{median / rollout:.2f}",
        )
    console = Console(highlight=False)
    console.print(table)
    phases = {p: sum(e.seconds[p] for e in episodes) for p in ("engine", "tools", "user", "grade")}
    total = sum(e.seconds["total"] for e in episodes)
    shares = ", ".join(f"{name} {value / total:.1%}" for name, value in phases.items())
    console.print(f"where an episode's time goes: {shares}")


if __name__ == "__main__":
    apply(engine_environment("cpu", 1))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=12)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ray", action="store_true")
    asyncio.run(measure(parser.parse_args()))
