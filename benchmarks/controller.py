"""Overhead of the controller: how much of a step is spent on deciding, not on waiting.

    python benchmarks/controller.py                       6, 100, 1,000 engines; 18, 128, 512 groups
    python benchmarks/controller.py --engines 1000 --groups 4096
    python benchmarks/controller.py --run runs/embedded        durations and verdicts of a real run

The real controller, schedule and ledger run here; engines are fakes in a few processes of their
own, behind sockets that carry pickled summaries, as Ray's object references do. A group takes a
duration drawn by its identity; time is compressed (--scale), which makes wall overhead an upper
bound: everything but the deciding runs that much faster than in a real step.

    cpu        CPU seconds of the controller's process a step (schedule, ledger, event loop, pickle)
    of 60 s    the same as a share of a step of 60 s
    ideal      longest chain of a slot's attempts + update + weight sync: the lower bound
    late       wall time beyond the ideal
    barrier    the alternative, in the same run: refill in rounds, each round waits for its slowest
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import pickle
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbrl.config import AlgorithmConfig, CheckpointConfig, RolloutConfig
from tbrl.controller import Controller, LearnerReport, StepRecord
from tbrl.records.episodes import read_groups
from tbrl.records.jsonl import JsonlWriter, read_jsonl
from tbrl.records.run_dir import RunDir
from tbrl.schedule import Assignment, SlotSchedule, TaskStream
from tbrl.types import GroupSummary, JsonObject

GROUP_SIZE = 8
STEP_S = 60.0
TASKS = 512
BARRIER_UP_TO = 512
"""Groups; the alternative takes minutes beyond."""


@dataclass(frozen=True, slots=True)
class Timings:
    """What the fakes do, in real seconds; `scale` compresses them."""

    groups: tuple[float, ...]
    """Sample of group durations to draw from."""
    acceptance: float
    finish_s: float
    sync_s: float
    scale: float

    def duration(self, a: Assignment) -> float:
        """Compressed seconds of a group, decided by its identity."""
        rng = random.Random(f"{a.step}/{a.slot}/{a.attempt}")
        return rng.choice(self.groups) / self.scale

    def accepted(self, a: Assignment) -> bool:
        return (
            random.Random(f"{a.task_ref}/{a.step}/{a.slot}/{a.attempt}").random() < self.acceptance
        )


def summary_of(a: Assignment, accepted: bool) -> GroupSummary:
    """As large as a real one."""
    rewards = (1.0, 0.0) * (GROUP_SIZE // 2) if accepted else (0.0,) * GROUP_SIZE
    return GroupSummary(
        step=a.step,
        slot=a.slot,
        attempt=a.attempt,
        task_ref=a.task_ref,
        policy_version=a.step,
        rewards=rewards,
        failures=(),
        retried=(),
        action_tokens=1200,
        total_tokens=6400,
        wasted_tokens=0,
        episode_tokens=tuple(range(780, 780 + GROUP_SIZE)),
        seconds={phase: 1.0 for phase in ("engine", "tools", "user", "grade", "total", "wall")},
        malformed_turns=1,
        finish_reasons=("done",) * GROUP_SIZE,
    )


# ------------------------------------------------------------ fakes


def host(path: str, timings: Timings) -> None:
    """One process of fake engines, all behind one connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(a: Assignment) -> None:
            await asyncio.sleep(timings.duration(a))
            await send(writer, (a, summary_of(a, timings.accepted(a)), b"x" * 28))

        running = set()
        while (message := await receive(reader)) is not None:
            task = asyncio.ensure_future(answer(message))
            running.add(task)
            task.add_done_callback(running.discard)

    async def main() -> None:
        server = await asyncio.start_unix_server(serve, path)
        async with server:
            await server.serve_forever()

    asyncio.run(main())


async def send(writer: asyncio.StreamWriter, message: Any) -> None:
    body = pickle.dumps(message)
    writer.write(len(body).to_bytes(4, "big") + body)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> Any:
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        return pickle.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None


class FakeRollouts:
    """All engines, groups to the least loaded, as the fleet does."""

    def __init__(self) -> None:
        self.load: list[int] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.waiting: dict[Assignment, asyncio.Future[Any]] = {}
        self.readers: list[asyncio.Task[None]] = []

    async def connect(self, paths: list[str], engines: int) -> None:
        for path in paths:
            reader, writer = await asyncio.open_unix_connection(path)
            self.writers.append(writer)
            self.readers.append(asyncio.ensure_future(self._listen(reader)))
        self.load = [0] * engines

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (message := await receive(reader)) is not None:
            assignment, *answer = message
            future = self.waiting.pop(assignment, None)
            if future is not None and not future.cancelled():
                future.set_result(tuple(answer))

    async def run_group(self, assignment: Assignment, policy_version: int) -> Any:
        engine = min(range(len(self.load)), key=self.load.__getitem__)
        self.load[engine] += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting[assignment] = future
        await send(self.writers[engine % len(self.writers)], assignment)
        try:
            return await future
        finally:
            self.load[engine] -= 1

    async def sleep(self) -> None: ...
    async def wake(self, part: str) -> None: ...

    def close(self) -> None:
        for task in self.readers:
            task.cancel()
        for writer in self.writers:
            writer.close()


class FakeLearner:
    def __init__(self, timings: Timings) -> None:
        self.timings = timings

    async def begin_step(self) -> None: ...
    async def add_group(self, slot: int, group: Any) -> None: ...

    async def finish(self, action_tokens: int) -> LearnerReport:
        await asyncio.sleep(self.timings.finish_s / self.timings.scale)
        return LearnerReport(False, "a", "b", {"loss": 0.0}, 0.0)

    async def send_weights(self, policy_version: int) -> JsonObject:
        await asyncio.sleep(self.timings.sync_s / self.timings.scale)
        return {"digest": "b", "echoes": []}

    async def onload(self) -> None: ...
    async def offload(self) -> None: ...
    async def save(self, step: int, extra: JsonObject) -> None: ...


# ------------------------------------------------------------ measuring


@dataclass(frozen=True, slots=True)
class Result:
    engines: int
    groups: int
    dispatched: int
    cpu_s: float
    wall_s: float
    ideal_s: float
    barrier_s: float


def ideal_of(record: StepRecord, timings: Timings) -> float:
    chains: dict[int, float] = {}
    for a in record.arrived:
        chains[a.slot] = chains.get(a.slot, 0.0) + timings.duration(a)
    return max(chains.values()) + (timings.finish_s + timings.sync_s) / timings.scale


async def barrier_step(step: int, slots: int, rollouts: FakeRollouts, timings: Timings) -> None:
    """The alternative: all open slots at once, wait for all, then the next round."""
    stream = TaskStream([f"task/{i}" for i in range(TASKS)], 0)
    schedule = SlotSchedule(stream, slots, 10_000)
    learner = FakeLearner(timings)
    schedule.begin_step(step)
    while not schedule.complete:
        batch = schedule.ready()
        answers = await asyncio.gather(*(rollouts.run_group(a, step) for a in batch))
        for assignment, (summary, _) in zip(batch, answers, strict=True):
            schedule.resolve(assignment, summary.verdict)
    await learner.finish(0)
    await learner.send_weights(0)


async def measure(
    engines: int, groups: int, steps: int, paths: list[str], timings: Timings
) -> Result:
    rollouts = FakeRollouts()
    await rollouts.connect(paths, engines)
    algorithm = AlgorithmConfig(groups_per_step=groups, group_size=GROUP_SIZE, max_attempts=10_000)
    schedule = SlotSchedule(TaskStream([f"task/{i}" for i in range(TASKS)], 0), groups, 10_000)
    records: list[StepRecord] = []
    with tempfile.TemporaryDirectory() as folder, JsonlWriter(Path(folder) / "ledger") as writer:

        async def on_step(record: StepRecord) -> None:
            writer.write(record.ledger.to_json())
            records.append(record)

        controller = Controller(
            schedule,
            rollouts,
            FakeLearner(timings),
            algorithm,
            RolloutConfig(),
            CheckpointConfig(every=10_000),
            alternate=False,
            on_step=on_step,
        )
        cpu, wall = time.process_time(), time.perf_counter()
        await controller.run(0, steps)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    started = time.perf_counter()
    if groups <= BARRIER_UP_TO:
        for step in range(steps):
            await barrier_step(step, groups, rollouts, timings)
    barrier = time.perf_counter() - started
    rollouts.close()
    return Result(
        engines=engines,
        groups=groups,
        dispatched=sum(len(r.arrived) for r in records) // steps,
        cpu_s=cpu / steps,
        wall_s=wall / steps,
        ideal_s=sum(ideal_of(r, timings) for r in records) / steps,
        barrier_s=barrier / steps,
    )


def group_seconds(run: RunDir) -> list[float]:
    """Wall seconds of every recorded group: its longest episode."""
    return [
        max(episode.seconds["total"] for episode in stored.group.episodes)
        for step in run.recorded_steps()
        for stored in read_groups(run.episodes(step))
    ]


def recorded_timings(run: Path, scale: float) -> Timings:
    """Durations, acceptance, update and sync times of a real run, stretched to steps of 60 s."""
    folder = RunDir(run)
    rows = [row for row in read_jsonl(folder.metrics) if "seconds" in row]
    stretch = STEP_S / (sum(row["seconds"]["total"] for row in rows) / len(rows))
    accepted = sum(row["accepted"] for row in rows)
    return Timings(
        groups=tuple(seconds * stretch for seconds in group_seconds(folder)),
        acceptance=accepted / sum(row["attempts"] for row in rows),
        finish_s=stretch * sum(row["seconds"]["learner"] for row in rows) / len(rows),
        sync_s=stretch * sum(row["seconds"]["weight_sync"] for row in rows) / len(rows),
        scale=scale,
    )


def default_timings(scale: float) -> Timings:
    """Long-tailed groups of about 12 s, half of them accepted: steps of about 60 s."""
    rng = random.Random(0)
    groups = tuple(rng.lognormvariate(2.3, 0.5) for _ in range(4096))
    return Timings(groups, acceptance=0.5, finish_s=8.0, sync_s=2.0, scale=scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, nargs="+", default=[6, 100, 1000])
    parser.add_argument("--groups", type=int, nargs="+", default=[18, 128, 512])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=2, help="processes that host the engines")
    parser.add_argument("--scale", type=float, default=40.0, help="times faster than real")
    parser.add_argument("--run", type=Path, help="take the timings of this run")
    arguments = parser.parse_args()
    timings = (
        recorded_timings(arguments.run, arguments.scale)
        if arguments.run
        else default_timings(arguments.scale)
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/host-{index}" for index in range(arguments.hosts)]
        hosts = [
            multiprocessing.Process(target=host, args=(p, timings), daemon=True) for p in paths
        ]
        for process in hosts:
            process.start()
        while not all(Path(path).exists() for path in paths):
            time.sleep(0.01)
        print(
            "engines  groups  dispatched   cpu ms  of 60 s   ideal s    late s  late of 60 s"
            "  barrier/ours"
        )
        for engines in arguments.engines:
            for groups in arguments.groups:
                r = asyncio.run(measure(engines, groups, arguments.steps, paths, timings))
                late = max(0.0, r.wall_s - r.ideal_s)
                print(
                    f"{r.engines:7d} {r.groups:7d} {r.dispatched:11d} {r.cpu_s * 1e3:8.1f}"
                    f" {r.cpu_s / STEP_S:8.2%} {r.ideal_s:9.3f} {late:9.3f} {late / STEP_S:13.2%}"
                    + (f" {r.barrier_s / r.wall_s:13.2f}" if groups <= BARRIER_UP_TO else ""),
                    flush=True,
                )
        for process in hosts:
            process.terminate()
            process.join()


if __name__ == "__main__":
    main()
