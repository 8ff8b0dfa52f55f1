"""What makes a task invalid, found when it is loaded and not when it is graded."""

from __future__ import annotations

from collections.abc import Iterable

from tbrl.errors import ConfigError
from tbrl.rewards.golden import GoldenReplay
from tbrl.types import Task


def problems_of(task: Task, replay: GoldenReplay) -> list[str]:
    """One line per problem, empty for a valid task: a patch or golden call that fails, a golden
    that changes nothing where a change is expected (so doing nothing would pass), a task marked
    `null_passes` whose golden does change something, a golden without a writing call to show."""
    ref = task.task_ref
    if not task.public.query.strip():
        return [f"{ref}: the query is empty"]
    if task.grading.task_ref != ref:
        return [f"{ref}: its grading belongs to {task.grading.task_ref!r}"]
    try:
        golden = replay.golden(task)
    except ConfigError as error:
        return [str(error)]
    unchanged = golden.state_hash == golden.untouched_hash
    if unchanged and not task.grading.null_passes:
        return [
            f"{ref}: the golden calls change nothing, so doing nothing would pass;"
            " mark it null_passes if that is meant"
        ]
    if task.grading.null_passes and not unchanged:
        return [f"{ref}: marked null_passes, but the golden calls change the state"]
    return []


def check_tasks(tasks: Iterable[Task], replay: GoldenReplay) -> None:
    """Raises ConfigError with one line per problem, ten at most, when any task is invalid."""
    found = [problem for task in tasks for problem in problems_of(task, replay)]
    if found:
        more = [f"... and {len(found) - 10} more"] if len(found) > 10 else []
        raise ConfigError("\n".join([*found[:10], *more]))
