"""Scores an episode by its terminal state: 1 when it equals the golden state and every rubric is
answered with yes, else 0. What cannot be decided is Failed and has no number."""

from __future__ import annotations

from collections.abc import Iterable

from tbrl.errors import BackendFailure, ConfigError
from tbrl.rewards.attribution import RUBRIC, attribution, differences
from tbrl.rewards.golden import Golden, GoldenSource
from tbrl.rewards.judge import Judge
from tbrl.types import Failed, Outcome, Scored, Task, TerminalState


class StateGrader:
    """Implements interfaces.Grader. Holds the GradingSpecs, and golden states once replayed."""

    def __init__(self, tasks: Iterable[Task], source: GoldenSource, judge: Judge) -> None:
        self._tasks = {task.task_ref: task for task in tasks}
        self._source = source
        self._judge = judge
        self._goldens: dict[str, Golden] = {}

    async def grade(self, task_ref: str, terminal: TerminalState, final_text: str) -> Outcome:
        """State first; rubrics are asked only where the state is right."""
        task = self._tasks.get(task_ref)
        if task is None:
            return Failed("grader", "grader", f"the grader has no task {task_ref!r}")
        try:
            golden = await self._golden(task)
        except ConfigError as error:
            return Failed("grader", "golden replay", str(error))
        except BackendFailure as failure:
            return Failed("grader", "golden replay", failure.detail)
        if terminal.state_hash != golden.state_hash:
            return Scored(
                reward=0.0,
                state_equal=False,
                attribution=attribution(golden.effects, terminal.effects, golden.ticket_tables),
                differences=differences(golden.effects, terminal.effects),
            )
        try:
            passed = await self._rubrics(task, final_text)
        except BackendFailure as failure:
            return Failed(failure.kind, failure.where, failure.detail)
        return Scored(
            reward=float(all(passed)),
            state_equal=True,
            rubrics_passed=passed,
            attribution="" if all(passed) else RUBRIC,
        )

    async def _rubrics(self, task: Task, final_text: str) -> tuple[bool, ...]:
        return tuple(
            [await self._judge.says_yes(rubric, final_text) for rubric in task.grading.rubrics]
        )

    async def _golden(self, task: Task) -> Golden:
        if task.task_ref not in self._goldens:
            self._goldens[task.task_ref] = await self._source.golden_of(task)
        return self._goldens[task.task_ref]
