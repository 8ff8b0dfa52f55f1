"""Which task next: slots, attempts and the stream of tasks. Pure: no clock, no I/O, no Ray.

    TaskStream   position 0 1 2 3 4 5 ...  ->  task_ref   (a seeded permutation per epoch)

    S = 3 slots     slot 0 owns positions 0 3 6 9 ...     cursor: how many it has used up
                    slot 1 owns positions 1 4 7 ...
                    slot 2 owns positions 2 5 8 ...

    one slot, one step (cursor 4, speculation 2):

        attempt     0              1              2              3
        position    s+4S           s+5S           s+6S           s+7S
        verdict     zero variance  (running)      accepted       zero variance
                    passed         ^ lowest       held           held
                                   open attempt

        attempt 1 zero variance or failed -> attempt 2 commits, attempt 3 is cancelled
        attempt 1 accepted                -> attempt 1 commits, attempts 2 and 3 are cancelled

    cursor after the step = cursor + committed attempt + 1

A slot commits its lowest attempt whose group is accepted. An attempt that ran ahead of the
committed one is cancelled whatever its verdict was, and its position is given back: the slot's
next step starts there. So durations, worker counts and arrival order never choose the data;
speculation costs work and changes nothing. Every dispatched assignment gets exactly one final
`Event`: committed, zero_variance, failed or cancelled (the ledger's four accounts).

The controller's loop: `begin_step`; dispatch `ready()`; `resolve` each group as it arrives and
dispatch `ready()` again; `complete` ends it. `state()` after any call restores the schedule; in
the middle of a step it keeps the passed attempts, so a resumed run does not meet a hopeless
episode a second time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from tbrl.errors import ConfigError, InvariantError
from tbrl.seeds import task_rank
from tbrl.types import JsonObject

Verdict = Literal["accepted", "zero_variance", "failed"]
Fate = Literal["committed", "zero_variance", "failed", "cancelled"]

_CACHED_EPOCHS = 32
_NAMED_TASKS = 5


@dataclass(frozen=True, slots=True)
class Assignment:
    """One group to roll out: `task_ref` at (step, slot, attempt)."""

    step: int
    slot: int
    attempt: int
    """0, 1, ... within the step."""
    position: int
    """In the task stream: slot + (cursor + attempt) * slots."""
    task_ref: str


@dataclass(frozen=True, slots=True)
class Event:
    """The final fate of one dispatched assignment."""

    fate: Fate
    assignment: Assignment


class PoolExhausted(ConfigError):
    """A slot used all its attempts of a step without an accepted group."""

    def __init__(
        self,
        slot: int,
        attempts: int,
        always_solved: tuple[str, ...],
        never_solved: tuple[str, ...],
        failed: tuple[str, ...],
    ) -> None:
        super().__init__(slot, attempts, always_solved, never_solved, failed)
        self.slot = slot
        self.attempts = attempts
        self.always_solved = always_solved
        self.never_solved = never_solved
        self.failed = failed

    def __str__(self) -> str:
        return (
            f"algorithm.max_attempts={self.attempts}: slot {self.slot} met no task with mixed "
            f"outcomes; always solved: {_names(self.always_solved)}; never solved: "
            f"{_names(self.never_solved)}; failed: {_names(self.failed)}; "
            "curate the pool again with the present policy or raise algorithm.max_attempts"
        )


def _names(task_refs: tuple[str, ...]) -> str:
    shown = ", ".join(task_refs[:_NAMED_TASKS]) or "none"
    rest = len(task_refs) - _NAMED_TASKS
    return f"{shown} and {rest} more" if rest > 0 else shown


class TaskStream:
    """Endless stream of tasks: every epoch is one permutation of the pool, decided by (seed,
    epoch) alone. The order of `task_refs` does not matter: ranks are hashes of names."""

    def __init__(self, task_refs: Sequence[str], seed: int) -> None:
        """Raises ConfigError for an empty pool and for duplicates."""
        if not task_refs:
            raise ConfigError("tasks.pool: no task is left to train on; widen curation.keep")
        self._pool = sorted(task_refs)
        for first, second in zip(self._pool, self._pool[1:], strict=False):
            if first == second:
                raise ConfigError(f"tasks.pool: task {first!r} is listed twice; remove one")
        self._seed = seed
        self._epoch = lru_cache(maxsize=_CACHED_EPOCHS)(self._permutation)

    def __len__(self) -> int:
        """Tasks in the pool = positions in one epoch."""
        return len(self._pool)

    @property
    def digest(self) -> str:
        """Hex digest of pool and seed: a checkpoint's cursors mean nothing on another stream."""
        text = "\n".join([str(self._seed), *self._pool])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def task_at(self, position: int) -> str:
        epoch, index = divmod(position, len(self._pool))
        return self._epoch(epoch)[index]

    def _permutation(self, epoch: int) -> tuple[str, ...]:
        return tuple(sorted(self._pool, key=lambda ref: (task_rank(self._seed, epoch, ref), ref)))


@dataclass(slots=True)
class _Slot:
    """One slot within one step. Attempts below `lowest_open` are passed."""

    cursor: int
    """Positions used up before this step."""
    passed: list[tuple[Verdict, float | None]] = field(default_factory=list)
    """Verdict and mean reward of attempts 0 .. lowest_open-1, in order."""
    running: dict[int, Assignment] = field(default_factory=dict)
    """Dispatched and without a final fate, by attempt."""
    held: dict[int, tuple[Verdict, float | None]] = field(default_factory=dict)
    """Verdicts of attempts that ran ahead; a subset of `running`'s attempts."""
    next_attempt: int = 0
    committed: Assignment | None = None

    @property
    def lowest_open(self) -> int:
        return len(self.passed)


class SlotSchedule:
    """See the module's picture. Not thread-safe: one owner (the controller)."""

    def __init__(
        self, stream: TaskStream, slots: int, max_attempts: int, speculation: int = 0
    ) -> None:
        self._stream = stream
        self._max_attempts = max_attempts
        self._speculation = speculation
        self._slots = [_Slot(cursor=0) for _ in range(slots)]
        self._step: int | None = None
        self._dirty: list[int] = []
        """Slots that may have something to dispatch."""
        self._open = 0
        """Slots without a committed group."""
        self._cancelled: set[Assignment] = set()
        """Cancelled while running: their late results are ignored."""

    # ------------------------------------------------------------ a step

    def begin_step(self, step: int) -> None:
        """Open all slots. After a restore in the middle of a step, continues that step."""
        if self._step is not None and self._open:
            if not self._resumes(step):
                raise InvariantError(f"step {step} begins while step {self._step} is incomplete")
        else:
            if self._step is not None and step <= self._step:
                raise InvariantError(f"step {step} begins after step {self._step}")
            self._slots = [_Slot(cursor=_cursor_after(slot)) for slot in self._slots]
        self._step = step
        self._open = len(self._slots)
        self._dirty = list(range(len(self._slots)))

    def ready(self) -> list[Assignment]:
        """Assignments to dispatch now, each returned once; lowest attempts first. Raises
        PoolExhausted when a slot has no attempt left."""
        fresh: list[Assignment] = []
        for index in self._dirty:
            fresh.extend(self._dispatch(index))
        self._dirty = []
        fresh.sort(key=lambda a: (a.attempt - self._slots[a.slot].lowest_open, a.slot))
        return fresh

    def resolve(
        self, assignment: Assignment, verdict: Verdict, mean_reward: float | None = None
    ) -> list[Event]:
        """Take one group's verdict; returns the fates that it settles, lowest attempts first.
        `mean_reward` (of a zero-variance group) is only used to say which tasks are always or
        never solved. The late result of a cancelled assignment settles nothing.

        Raises InvariantError for an assignment that is not running, or resolved twice.
        """
        if assignment in self._cancelled:
            self._cancelled.remove(assignment)
            return []
        slot = self._slots[assignment.slot] if assignment.step == self._step else None
        if slot is None or slot.running.get(assignment.attempt) != assignment:
            raise InvariantError(f"{assignment} is resolved but not running in step {self._step}")
        if assignment.attempt in slot.held:
            raise InvariantError(f"{assignment} is resolved twice")
        slot.held[assignment.attempt] = (verdict, mean_reward)
        events = self._settle(slot)
        self._dirty.append(assignment.slot)
        return events

    @property
    def complete(self) -> bool:
        """All slots of the step have committed."""
        return self._step is not None and self._open == 0

    @property
    def committed(self) -> tuple[Assignment | None, ...]:
        """Committed assignment of each slot, in slot order; None while the slot is open."""
        return tuple(slot.committed for slot in self._slots)

    @property
    def running(self) -> list[Assignment]:
        """Dispatched and not yet resolved: who must still answer."""
        return [
            assignment
            for slot in self._slots
            for attempt, assignment in slot.running.items()
            if attempt not in slot.held
        ]

    # ------------------------------------------------------------ checkpoints

    def state(self) -> JsonObject:
        """JSON-serialisable. In the middle of a step, committed slots count as open: their
        groups are rolled out again, from the same seeds."""
        open_step = self._step is not None and self._open > 0
        return {
            "stream": self._stream.digest,
            "step": self._step,
            "open": open_step,
            "cursors": [s.cursor if open_step else _cursor_after(s) for s in self._slots],
            "passed": [[list(p) for p in s.passed] if open_step else [] for s in self._slots],
        }

    def restore(self, state: JsonObject) -> None:
        """Raises ConfigError when the state belongs to another pool, seed or number of slots."""
        if state["stream"] != self._stream.digest:
            raise ConfigError(
                "resume: the checkpoint's task pool or algorithm.seed is another one; "
                "resume with the run's own configuration and pool file"
            )
        if len(state["cursors"]) != len(self._slots):
            raise ConfigError(
                f"algorithm.groups_per_step={len(self._slots)}: the checkpoint was made with "
                f"{len(state['cursors'])}; resume with that number"
            )
        self._slots = [
            _Slot(
                cursor, [(verdict, reward) for verdict, reward in passed], next_attempt=len(passed)
            )
            for cursor, passed in zip(state["cursors"], state["passed"], strict=True)
        ]
        self._step = state["step"]
        self._open = len(self._slots) if state["open"] else 0
        self._dirty = []
        self._cancelled = set()

    # ------------------------------------------------------------ inside

    def _resumes(self, step: int) -> bool:
        untouched = not any(slot.running or slot.committed for slot in self._slots)
        return step == self._step and untouched

    def _dispatch(self, index: int) -> list[Assignment]:
        """New attempts of one slot: up to `speculation` beyond its lowest open one, none beyond
        an accepted one (nothing above it can commit)."""
        slot = self._slots[index]
        if slot.committed is not None or self._step is None:
            return []
        if slot.lowest_open >= self._max_attempts:
            raise self._exhausted(index)
        end = min(slot.lowest_open + self._speculation + 1, self._max_attempts)
        fresh = []
        while slot.next_attempt < end and not _accepted_ahead(slot):
            attempt = slot.next_attempt
            position = index + (slot.cursor + attempt) * len(self._slots)
            assignment = Assignment(
                self._step, index, attempt, position, self._stream.task_at(position)
            )
            slot.running[attempt] = assignment
            slot.next_attempt += 1
            fresh.append(assignment)
        return fresh

    def _settle(self, slot: _Slot) -> list[Event]:
        """Walk up from the lowest open attempt as far as verdicts are known."""
        events: list[Event] = []
        while slot.lowest_open in slot.held:
            attempt = slot.lowest_open
            verdict, mean_reward = slot.held.pop(attempt)
            assignment = slot.running.pop(attempt)
            if verdict == "accepted":
                slot.committed = assignment
                self._open -= 1
                return [*events, Event("committed", assignment), *self._cancel_rest(slot)]
            slot.passed.append((verdict, mean_reward))
            events.append(Event(verdict, assignment))
        return events

    def _cancel_rest(self, slot: _Slot) -> list[Event]:
        events = []
        for attempt, assignment in sorted(slot.running.items()):
            if attempt not in slot.held:
                self._cancelled.add(assignment)
            events.append(Event("cancelled", assignment))
        slot.running.clear()
        slot.held.clear()
        return events

    def _exhausted(self, index: int) -> PoolExhausted:
        """Names every task of the step whose attempts passed, by why."""
        solved: set[str] = set()
        unsolved: set[str] = set()
        failed: set[str] = set()
        for number, slot in enumerate(self._slots):
            for attempt, (verdict, reward) in enumerate(slot.passed):
                position = number + (slot.cursor + attempt) * len(self._slots)
                group = failed if verdict == "failed" else (solved if reward else unsolved)
                group.add(self._stream.task_at(position))
        return PoolExhausted(
            index,
            self._max_attempts,
            tuple(sorted(solved - unsolved)),
            tuple(sorted(unsolved - solved)),
            tuple(sorted(failed)),
        )


def _cursor_after(slot: _Slot) -> int:
    """Cursor once the step is over: the position behind the committed attempt."""
    return slot.cursor if slot.committed is None else slot.cursor + slot.committed.attempt + 1


def _accepted_ahead(slot: _Slot) -> bool:
    return any(verdict == "accepted" for verdict, _ in slot.held.values())
