"""What a person sees while a run is on: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from tbrl.types import JsonObject

_SPARK = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float]) -> str:
    """One block per value in [0, 1]."""
    return "".join(_SPARK[min(7, max(0, int(v * 8)))] for v in values)


@dataclass(slots=True)
class _Steps:
    """Training as far as it has come."""

    total: int = 0
    number: int = 0
    slots: int = 0
    accepted: int = 0
    zero_variance: int = 0
    failed: int = 0
    rewards: list[float] = field(default_factory=list)
    row: JsonObject = field(default_factory=dict)


class RunView:
    """One line of progress a stage; during training also the step in progress. Use as a context."""

    def __init__(self, title: str, live: bool, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._title = title
        self._steps = _Steps()
        self._progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=self._console,
        )
        self._tasks: dict[str, int] = {}
        self._began: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        """Wall seconds by stage."""
        self._live: Live | None = None
        if live and self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render, console=self._console, refresh_per_second=4
            )

    def __enter__(self) -> RunView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def console(self) -> Console:
        return self._console

    def line(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text)

    # ------------------------------------------------------------ stages

    def begin(self, stage: str, total: int, note: str = "") -> None:
        self._began[stage] = time.perf_counter()
        self._tasks[stage] = self._progress.add_task(stage, total=total, note=note)
        if self._live is None:
            self.line(f"{stage}: {total} to do" + (f" ({note})" if note else ""))

    def update(self, stage: str, done: int, note: str = "") -> None:
        self._progress.update(self._tasks[stage], completed=done, note=note)  # type: ignore[arg-type]

    def end(self, stage: str, note: str = "") -> None:
        """Close a stage; returns nothing, remembers its seconds."""
        took = time.perf_counter() - self._began[stage]
        self.seconds[stage] = self.seconds.get(stage, 0.0) + took
        task = self._tasks[stage]
        self._progress.update(task, note=note)  # type: ignore[arg-type]
        self._progress.stop_task(task)  # type: ignore[arg-type]
        if self._live is None:
            self.line(f"{stage}: done in {took:.1f} s" + (f", {note}" if note else ""))

    # ------------------------------------------------------------ training

    def begin_steps(self, total: int, first: int, slots: int) -> None:
        self._steps.total, self._steps.slots = total, slots
        self.begin("train", total)
        self.update("train", first)

    def group(self, step: int, committed: int, verdict: str) -> None:
        """One group arrived."""
        s = self._steps
        if step != s.number or s.accepted + s.zero_variance + s.failed == 0:
            s.number, s.accepted, s.zero_variance, s.failed = step, 0, 0, 0
        if verdict == "zero_variance":
            s.zero_variance += 1
        elif verdict == "failed":
            s.failed += 1
        s.accepted = committed

    def step(self, row: JsonObject) -> None:
        """One step is complete; `row` is its line of metrics.jsonl."""
        s = self._steps
        s.rewards.append(row["reward_mean"])
        s.row = row
        s.accepted = s.zero_variance = s.failed = 0
        note = f"reward {row['reward_mean']:.2f}"
        self.update("train", row["step"] + 1, note)
        if self._live is None:
            self.line(step_line(row, s.total))

    def _render(self) -> Panel:
        parts: list[object] = [self._progress]
        if self._steps.total:
            parts.append(self._steps_table())
        return Panel(Group(*parts), title=self._title, title_align="left")  # type: ignore[arg-type]

    def _steps_table(self) -> Table:
        s, row = self._steps, self._steps.row
        table = Table.grid(padding=(0, 2))
        table.add_row("step", f"{s.number + 1} / {s.total}", "reward", sparkline(s.rewards[-40:]))
        table.add_row(
            "groups",
            f"{s.accepted}/{s.slots} accepted, {s.zero_variance} zero-variance, {s.failed} failed",
            "last step",
            step_line(row, s.total) if row else "-",
        )
        return table


def step_line(row: JsonObject, total: int) -> str:
    """One step on one line."""
    groups = row["groups"]
    return (
        f"step {row['step'] + 1:>3}/{total}  reward {row['reward_mean']:.3f}  groups "
        f"{groups['trained']} ok {groups['zero_variance']} zv {groups['failed']} failed  "
        f"kl {abs(row['mismatch_kl']):.0e}  "
        f"{row['tokens_per_s']:.0f} tok/s  {row['seconds']['total']:.1f} s"
    )
