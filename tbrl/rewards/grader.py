"""Scores an episode by its terminal state: 1 when it equals the golden state and every rubric is
answered with yes, else 0. What cannot be decided is Failed and has no number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tbrl.errors import BackendFailure, ConfigError
from tbrl.rewards.attribution import RUBRIC, attribution, differences
from tbrl.rewards.golden import Golden, GoldenSource
from tbrl.rewards.judge import Judge
from tbrl.types import Failed, Grade, Scored, Task, TerminalState
from tbrl.usage import NOTHING, UNKNOWN


class StateGrader:
    """Implements interfaces.Grader. Holds the GradingSpecs, and golden states once replayed."""

    def __init__(self, tasks: Iterable[Task], source: GoldenSource, judge: Judge) -> None:
        self._tasks = {task.task_ref: task for task in tasks}
        self._source = source
        self._judge = judge
        self._goldens: dict[str, Golden] = {}

    async def grade(self, task_ref: str, terminal: TerminalState, final_text: str) -> Grade:
        """State first; rubrics are asked only where the state is right."""
        task = self._tasks.get(task_ref)
        if task is None:
            return Grade(Failed("grader", "grader", f"the grader has no task {task_ref!r}"))
        try:
            golden = await self._golden(task)
        except ConfigError as error:
            return Grade(Failed("grader", "golden replay", str(error)))
        except BackendFailure as failure:
            return Grade(Failed("grader", "golden replay", failure.detail))
        if terminal.state_hash != golden.state_hash:
            zero = Scored(
                reward=0.0,
                state_equal=False,
                attribution=attribution(golden.effects, terminal.effects, golden.ticket_tables),
                differences=differences(golden.effects, terminal.effects),
            )
            return Grade(zero)
        return await self._judged(task.grading.rubrics, final_text)

    async def _judged(self, rubrics: Sequence[str], final_text: str) -> Grade:
        """The grade of an episode whose state is right."""
        passed: list[bool] = []
        used = NOTHING
        for rubric in rubrics:
            try:
                verdict = await self._judge.verdict(rubric, final_text)
            except BackendFailure as failure:
                used += UNKNOWN if failure.usage is None else failure.usage
                return Grade(Failed(failure.kind, failure.where, failure.detail), used)
            passed.append(verdict.yes)
            used += verdict.usage
        scored = Scored(
            reward=float(all(passed)),
            state_equal=True,
            rubrics_passed=tuple(passed),
            attribution="" if all(passed) else RUBRIC,
        )
        return Grade(scored, used)

    async def _golden(self, task: Task) -> Golden:
        if task.task_ref not in self._goldens:
            self._goldens[task.task_ref] = await self._source.golden_of(task)
        return self._goldens[task.task_ref]
