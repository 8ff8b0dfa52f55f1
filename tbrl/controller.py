"""The controller: synchronous GRPO steps over asynchronous parts.

     SlotSchedule ──ready()──> dispatch ──> Rollouts (vLLM, sandboxes, users, grader)
          ^                                     │  (summary, reference of the payload)
          │                                     v
       events <──resolve(verdict)── arrivals, in whatever order they come
          │
          ├─ committed ──> Learner.add_group(slot, reference)   accumulates while others decode
          ├─ zero variance / failed ──> the slot's next attempt, at once
          └─ cancelled ──> recall what still runs (only with speculation)

     all slots committed ──> Learner.finish: one optimizer update (or none, without signal)
                         ──> Learner.send_weights: engines echo version + digest
                         ──> receipt, ledger row, metrics, episodes, checkpoint

What each wait is for, and who unblocks it: arrivals wait for rollouts (each group has a deadline
in the fleet); finish and send_weights wait for learner ranks (deadline of the learner group). An
exception of any of them ends the run: nothing is awaited without an owner.

The controller sees group summaries only. Rollouts and Learner are protocols, implemented over Ray
by actors/fleet.py and actors/learner.py, so that the loop is tested without a cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tbrl.config import AlgorithmConfig, CheckpointConfig, RolloutConfig
from tbrl.errors import TbrlError
from tbrl.ledger import LedgerRow, StepLedger
from tbrl.schedule import Assignment, Event, Fate, SlotSchedule
from tbrl.types import Failed, GroupSummary, JsonObject

GroupReference = Any
"""Where a group's payload is; the controller never opens it."""


class TooManyFailures(TbrlError):
    """The share of failed episodes passed `rollout.failure_rate_limit`."""


class Rollouts(Protocol):
    """All rollout workers together."""

    async def run_group(
        self, assignment: Assignment, policy_version: int
    ) -> tuple[GroupSummary, GroupReference]: ...
    async def sleep(self) -> None: ...
    async def wake(self, part: str) -> None: ...


class Learner(Protocol):
    """All learner ranks together."""

    async def begin_step(self) -> None: ...
    async def add_group(self, slot: int, group: GroupReference) -> None: ...
    async def finish(self, action_tokens: int) -> LearnerReport: ...
    async def send_weights(self, policy_version: int) -> JsonObject: ...
    async def onload(self) -> None: ...
    async def offload(self) -> None: ...
    async def save(self, step: int, extra: JsonObject) -> None: ...


@dataclass(frozen=True, slots=True)
class LearnerReport:
    """What the learner says of one step."""

    no_op: bool
    """No signal: neither weights nor optimizer nor schedule moved."""
    digest_before: str
    digest_after: str
    metrics: dict[str, float]
    """Named scalars: loss, grad_norm, entropy, mismatch_kl, ..."""
    overlap_s: float
    """Seconds of accumulation that ran while groups were still decoding."""


@dataclass(slots=True)
class StepRecord:
    """All that is written of one step."""

    step: int
    policy_version: int
    """Version that sampled the step; the update made it `next_version`."""
    next_version: int
    committed: list[Assignment]
    """In slot order."""
    arrived: dict[Assignment, tuple[GroupSummary, GroupReference]]
    """Every group that answered, accepted or not."""
    fates: dict[Assignment, Fate]
    ledger: LedgerRow
    learner: LearnerReport
    sync: JsonObject
    """Echoes of the engines after the update; empty after a no-op."""
    seconds: dict[str, float]
    """Wall seconds: rollout, learner, weight_sync."""


@dataclass(slots=True)
class _Step:
    """State of the step in progress."""

    number: int
    ledger: StepLedger
    running: dict[asyncio.Task[tuple[GroupSummary, GroupReference]], Assignment] = field(
        default_factory=dict
    )
    arrived: dict[Assignment, tuple[GroupSummary, GroupReference]] = field(default_factory=dict)
    recalled: list[asyncio.Task[tuple[GroupSummary, GroupReference]]] = field(default_factory=list)
    adding: list[asyncio.Task[None]] = field(default_factory=list)
    committed: list[Assignment] = field(default_factory=list)
    fates: dict[Assignment, Fate] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    """Failed runs of episodes so far, repaired ones included."""
    scored: int = 0
    """Scored episodes so far."""


class Controller:
    """Runs the steps. `on_progress` hears each arrival, `on_step` gets each finished step."""

    def __init__(
        self,
        schedule: SlotSchedule,
        rollouts: Rollouts,
        learner: Learner,
        algorithm: AlgorithmConfig,
        rollout: RolloutConfig,
        checkpoint: CheckpointConfig,
        *,
        alternate: bool,
        policy_version: int = 0,
        on_step: Callable[[StepRecord], Awaitable[None]],
        on_progress: Callable[[int, int, GroupSummary], None] | None = None,
        checkpoint_extra: Callable[[], JsonObject] = dict,
    ) -> None:
        """`alternate`: engines and learner share devices, so their phases must not overlap."""
        self._schedule = schedule
        self._rollouts = rollouts
        self._learner = learner
        self._algorithm = algorithm
        self._rollout = rollout
        self._checkpoint = checkpoint
        self._alternate = alternate
        self.policy_version = policy_version
        self._on_step = on_step
        self._on_progress = on_progress
        self._checkpoint_extra = checkpoint_extra
        self._stop = False

    def request_stop(self) -> None:
        """Finish the step in progress, write a checkpoint, return."""
        self._stop = True

    async def run(self, first_step: int, steps: int) -> int:
        """Run steps first_step .. steps-1; returns the number of the next step."""
        step = first_step
        while step < steps and not self._stop:
            record = await self.step(step)
            await self._on_step(record)
            step += 1
            last = step == steps or self._stop
            if last or step % self._checkpoint.every == 0:
                await self.save(step)
        return step

    async def save(self, step: int) -> None:
        """Checkpoint before step number `step`."""
        extra = {
            "step": step,
            "policy_version": self.policy_version,
            "schedule": self._schedule.state(),
            **self._checkpoint_extra(),
        }
        await self._learner.save(step, extra)

    async def step(self, number: int) -> StepRecord:
        """One synchronous step: every trained token was sampled from the weights it updates."""
        state = _Step(number, StepLedger(number))
        self._schedule.begin_step(number)
        began = time.perf_counter()
        if not self._alternate:
            await self._learner.begin_step()
        try:
            await self._collect(state)
        except BaseException:
            self._recall(state, set(state.running.values()))
            await asyncio.gather(*state.recalled, *state.adding, return_exceptions=True)
            raise
        collected = time.perf_counter()
        report = await self._update(state)
        updated = time.perf_counter()
        version = self.policy_version
        sync = await self._synchronise(report)
        synced = time.perf_counter()
        return StepRecord(
            step=number,
            policy_version=version,
            next_version=self.policy_version,
            committed=sorted(state.committed, key=_by_slot),
            arrived=state.arrived,
            fates=state.fates,
            ledger=state.ledger.close(),
            learner=report,
            sync=sync,
            seconds={
                "rollout": collected - began,
                "learner": updated - collected,
                "weight_sync": synced - updated,
            },
        )

    # ------------------------------------------------------------ collecting groups

    async def _collect(self, state: _Step) -> None:
        self._dispatch(state)
        while not self._schedule.complete:
            adding = [add for add in state.adding if not add.done()]
            await asyncio.wait([*state.running, *adding], return_when=asyncio.FIRST_COMPLETED)
            # Taken out together: the first may cancel another that has answered as well.
            done = [task for task in state.running if task.done()]
            arrivals = sorted(
                ((state.running.pop(task), task) for task in done), key=_first_by_slot
            )
            for assignment, task in arrivals:
                self._receive(state, assignment, *task.result())
            for add in state.adding:
                if add.done():
                    add.result()  # a learner that is lost ends the step now, not when it is full
            self._check_failures(state)
            self._dispatch(state)

    def _dispatch(self, state: _Step) -> None:
        for assignment in self._schedule.ready():
            state.ledger.dispatched(assignment, self._algorithm.group_size)
            run = self._rollouts.run_group(assignment, self.policy_version)
            state.running[asyncio.ensure_future(run)] = assignment

    def _receive(
        self, state: _Step, assignment: Assignment, summary: GroupSummary, group: GroupReference
    ) -> None:
        state.arrived[assignment] = (summary, group)
        state.ledger.received(assignment, summary)
        state.failures += (*summary.failures, *summary.retried)
        state.scored += len(summary.rewards)
        mean = sum(summary.rewards) / len(summary.rewards) if summary.rewards else None
        events = self._schedule.resolve(assignment, summary.verdict, mean)
        state.ledger.settle(events)
        for event in events:
            self._account(state, event)
        if self._on_progress is not None:
            self._on_progress(state.number, len(state.committed), summary)

    def _account(self, state: _Step, event: Event) -> None:
        state.fates[event.assignment] = event.fate
        if event.fate == "committed":
            state.committed.append(event.assignment)
            if not self._alternate:
                self._add(state, event.assignment)
        elif event.fate == "cancelled" and event.assignment not in state.arrived:
            self._recall(state, {event.assignment})

    def _check_failures(self, state: _Step) -> None:
        """A backend that is down must stop the run, not keep it busy."""
        failed, runs = len(state.failures), len(state.failures) + state.scored
        least = self._algorithm.group_size * 2
        if failed > self._rollout.failure_rate_limit * max(runs, least):
            last = state.failures[-1]
            raise TooManyFailures(
                f"step {state.number}: {failed} of {runs} episodes failed, above "
                f"rollout.failure_rate_limit={self._rollout.failure_rate_limit:g}; "
                f"last: {last.kind} in {last.where}: {last.detail}"
            )

    def _recall(self, state: _Step, assignments: set[Assignment]) -> None:
        """Cancel running groups; `_update` waits until they are gone."""
        for task in [task for task, a in state.running.items() if a in assignments]:
            task.cancel()
            state.recalled.append(task)
            del state.running[task]

    # ------------------------------------------------------------ updating

    def _add(self, state: _Step, assignment: Assignment) -> None:
        _, group = state.arrived[assignment]
        add = self._learner.add_group(assignment.slot, group)
        state.adding.append(asyncio.ensure_future(add))

    async def _update(self, state: _Step) -> LearnerReport:
        # Nothing may sample across a weight update.
        await asyncio.gather(*state.recalled, return_exceptions=True)
        if self._alternate:
            await self._rollouts.sleep()
            await self._learner.onload()
            await self._learner.begin_step()
            for assignment in sorted(state.committed, key=_by_slot):
                self._add(state, assignment)
        await asyncio.gather(*state.adding)
        tokens = sum(state.arrived[a][0].action_tokens for a in state.committed)
        return await self._learner.finish(tokens)

    async def _synchronise(self, report: LearnerReport) -> JsonObject:
        if not report.no_op:
            self.policy_version += 1
        version = None if report.no_op else self.policy_version
        return await hand_over(self._rollouts, self._learner, version, self._alternate)


async def hand_over(
    rollouts: Rollouts, learner: Learner, version: int | None, alternate: bool
) -> JsonObject:
    """The engines' turn, with the learner's weights as `version` (None: with those they have).

    They echo what they hold. Where devices are shared, engines wake their weights to receive the
    new ones, the learner leaves the device, and only then is there room for the KV cache.
    """
    if alternate:
        await rollouts.wake("weights")
    sync = {} if version is None else await learner.send_weights(version)
    if alternate:
        await learner.offload()
        await rollouts.wake("kv_cache")
    return sync


def _first_by_slot(arrival: tuple[Assignment, object]) -> tuple[int, int]:
    return _by_slot(arrival[0])


def _by_slot(assignment: Assignment) -> tuple[int, int]:
    return assignment.slot, assignment.attempt
