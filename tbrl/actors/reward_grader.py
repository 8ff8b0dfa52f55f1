"""RewardGrader: the only process that holds golden interactions and golden states."""

from __future__ import annotations

from tbrl.actors.actor import actor
from tbrl.config import JudgeConfig, SandboxConfig
from tbrl.rewards.build import build_grader
from tbrl.types import Grade, Task, TerminalState


@actor(restarts=-1)
class RewardGrader:
    def __init__(self, tasks: list[Task], judge: JudgeConfig, sandbox: SandboxConfig) -> None:
        self._grader = build_grader(tasks, judge, sandbox)

    async def grade(self, task_ref: str, terminal: TerminalState, final_text: str) -> Grade:
        return await self._grader.grade(task_ref, terminal, final_text)
