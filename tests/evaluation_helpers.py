"""Episodes and campaigns made by hand."""

import asyncio

import numpy as np

from tbrl.evaluation.metrics import TaskLabels
from tbrl.types import (
    Episode,
    EpisodeKey,
    Failed,
    RowChange,
    Sampling,
    Scored,
    ToolCall,
    Turn,
)
from tbrl.usage import RoleUsage, Usage

LABELS = {
    "d/refund/0": TaskLabels("d", "refund", True, False),
    "d/refund/1": TaskLabels("d", "refund", True, False),
    "e/escalate/0": TaskLabels("e", "escalate", False, True),
}
AGENT_USED = Usage.of(60, 32, 20) + Usage.of(90, 64, 10)
"""By the agent in an episode of `episode_of`."""


def episode_of(task_ref, outcome, version=0, finish_reason="done", turns=None):
    """A short conversation with one tool call."""
    change = RowChange("orders", '{"id":1}', "updated", "status", '"open"', '"closed"')
    turns = turns or (
        Turn("system", "Policy text.", start=0, end=40),
        Turn("user", "Please close order 1.", start=40, end=60),
        Turn(
            "assistant",
            "",
            reasoning="I must look first.",
            tool_calls=(ToolCall("close_order", {"id": 1}),),
            start=60,
            end=80,
            usage=Usage.of(60, 32, 20),
        ),
        Turn("tool", '{"ok": true}', tool_name="close_order", start=80, end=90),
        Turn("assistant", "Closed. <DONE>", start=90, end=100, usage=Usage.of(90, 64, 10)),
    )
    return Episode(
        key=EpisodeKey(0, 0, 0, 0),
        task_ref=task_ref,
        domain=task_ref.split("/")[0],
        template=task_ref.split("/")[1],
        policy_version=version,
        prompt_ids=np.zeros(60, np.int32),
        response_ids=np.zeros(40, np.int32),
        action_mask=np.ones(40, bool),
        behaviour_logprobs=np.zeros(40, np.float32),
        turns=turns,
        finish_reason=finish_reason,
        outcome=outcome,
        sampling=Sampling(),
        effects=(change,),
        seconds={"engine": 1.0, "tools": 0.5, "total": 1.6},
        usage=RoleUsage(agent=AGENT_USED),
    )


def scored(passed, **fields):
    return Scored(float(passed), bool(passed), **fields)


class FakeRun:
    """`run(task, attempt, try_)` by a table: True / False / a list of outcomes by try / "hang".
    A hung episode waits for `release`, as an episode without a deadline would."""

    def __init__(self, table=None, default=True):
        self.table = table or {}
        self.default = default
        self.calls = []
        self.release = asyncio.Event()

    async def __call__(self, task_ref, attempt, try_):
        self.calls.append((task_ref, attempt, try_))
        await asyncio.sleep(0)
        planned = self.table.get((task_ref, attempt), self.default)
        if isinstance(planned, list):
            planned = planned[min(try_, len(planned) - 1)]
        if planned == "hang":
            await self.release.wait()
            planned = True
        if isinstance(planned, Exception):
            raise planned
        if isinstance(planned, Failed):
            return episode_of(task_ref, planned, finish_reason="failed")
        return episode_of(task_ref, scored(planned))
