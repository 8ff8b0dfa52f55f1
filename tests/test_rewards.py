"""Grading by terminal state, attribution of zeros, judges; and that golden states stay away from
the agent's side."""

from __future__ import annotations

import ast
import asyncio
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixture_domain import DOMAINS, LIBRARY, library_task
from reach import reachable

import tbrl
from tbrl.config import JudgeConfig
from tbrl.domains.names import names_of
from tbrl.errors import BackendFailure, ConfigError
from tbrl.rewards.attribution import CLASSES, attribution, differences
from tbrl.rewards.build import build_judge
from tbrl.rewards.golden import Golden, GoldenReplay
from tbrl.rewards.grader import StateGrader
from tbrl.rewards.judge import LocalJudge, Verdict
from tbrl.sandbox.embedded import EmbeddedSandbox
from tbrl.types import (
    Failed,
    GradingSpec,
    Outcome,
    RowChange,
    Scored,
    Task,
    TerminalState,
    ToolInteraction,
)
from tbrl.usage import Usage, unknown
from tbrl.users.scripted import ScriptedUser

REPLAY = GoldenReplay(DOMAINS)
LEND, LOST = (t.make for t in LIBRARY.sizes["compact"].templates)


def task_of(make: Any, ref: str = "t", seed: int = 0) -> Task:
    return make(random.Random(seed), ref, names_of("candidate")).task


def played(task: Task, calls: Any) -> TerminalState:
    """Terminal state after an agent's calls over the protocol."""

    async def run() -> TerminalState:
        session = await EmbeddedSandbox(DOMAINS).open(task.public)
        for name, arguments in calls:
            await session.call_tool(name, arguments)
        return await session.finish()

    return asyncio.run(run())


def graded(task: Task, calls: Any, text: str = "", judge: Any = None) -> Outcome:
    grader = StateGrader([task], REPLAY, judge or LocalJudge())
    return asyncio.run(grader.grade(task.task_ref, played(task, calls), text)).outcome


def golden_calls(task: Task) -> list[tuple[str, Any]]:
    return [(c.tool, c.arguments) for c in task.grading.expected_tool_interactions]


def test_the_golden_calls_are_scored_1_whatever_the_agent_reads_besides() -> None:
    task = task_of(LEND)
    reads = [("get_member", {"member_id": 1}), ("search_docs", {"text": "fines"})]
    assert graded(task, [*reads, *golden_calls(task), *reads]) == Scored(1.0, True)


def test_free_text_that_nobody_can_repeat_is_not_compared() -> None:
    task = task_of(LOST)
    set_loan, (ticket, arguments) = golden_calls(task)
    outcome = graded(
        task, [set_loan, (ticket, {**arguments, "subject": "my words"})], "12.50 euros"
    )
    assert outcome == Scored(1.0, True, (True,))


@pytest.mark.parametrize(
    ("make", "calls", "cause"),
    [
        (LEND, lambda g: [], "nothing_done"),
        (LEND, lambda g: [("lend", {"member_id": 1, "code": "B9"})], "nothing_done"),
        (LEND, lambda g: [*g, *g], "business_write_wrong"),
        (LEND, lambda g: [("lend", {**g[1][1], "member_id": 1})], "business_write_wrong"),
        (LOST, lambda g: g[:1], "ticket_only"),
        (LOST, lambda g: [g[0], (g[1][0], {**g[1][1], "priority": "high"})], "ticket_only"),
        (LOST, lambda g: g[1:], "business_write_wrong"),
    ],
)  # fmt: skip
def test_a_zero_names_its_class(make: Any, calls: Any, cause: str) -> None:
    task = task_of(make)
    outcome = graded(task, calls(golden_calls(task)), "12.5")
    assert isinstance(outcome, Scored)
    assert (outcome.reward, outcome.state_equal, outcome.attribution) == (0.0, False, cause)
    assert outcome.differences and cause in CLASSES


def test_writing_where_the_golden_run_escalates_is_a_violated_policy() -> None:
    task = task_of(LEND)
    only_ticket = (ToolInteraction("open_ticket", {"subject": "ask first", "priority": "high"}),)
    escalate = Task(task.public, replace(task.grading, expected_tool_interactions=only_ticket))
    outcome = graded(escalate, golden_calls(task))
    assert isinstance(outcome, Scored) and outcome.attribution == "policy_violated_before_approval"
    assert isinstance(
        both := graded(escalate, [*golden_calls(escalate), *golden_calls(task)]), Scored
    )
    assert both.attribution == "policy_violated_before_approval"


def test_differences_say_wrong_missing_and_extra_with_the_golden_value_first() -> None:
    def change(table: str, after: str, before: str = "0") -> RowChange:
        return RowChange(table, "[1]", "updated", "c", before, after)

    golden = [change("same", "1"), change("wrong", "1"), change("missing", "1")]
    actual = [change("same", "1"), change("wrong", "2"), change("extra", "3")]
    assert differences(golden, actual) == (
        RowChange("extra", "[1]", "inserted", "c", "0", "3"),
        RowChange("missing", "[1]", "deleted", "c", "1", "0"),
        RowChange("wrong", "[1]", "updated", "c", "1", "2"),
    )
    assert differences(golden, golden) == ()
    assert attribution(golden, actual, {"wrong", "missing", "extra"}) == "ticket_only"


def test_rubrics_are_asked_only_where_the_state_is_right() -> None:
    task = task_of(LOST)
    asked: list[str] = []

    class Spy:
        async def verdict(self, rubric: str, message: str) -> Verdict:
            asked.append(message)
            return Verdict(False)

    wrong = graded(task, [], "12.5", Spy())
    assert isinstance(wrong, Scored) and asked == []
    right = graded(task, golden_calls(task), "nothing", Spy())
    assert right == Scored(0.0, True, (False,), "rubric") and asked == ["nothing"]


@pytest.mark.parametrize("kind", ["judge", "deadline"])
def test_a_judge_that_fails_is_a_failure_and_never_a_zero(kind: Any) -> None:
    class Broken:
        async def verdict(self, rubric: str, message: str) -> Verdict:
            raise BackendFailure(kind, "judge x", "no answer")

    task = task_of(LOST)
    assert graded(task, golden_calls(task), "", Broken()) == Failed(kind, "judge x", "no answer")


def test_the_judges_tokens_are_those_of_all_its_rubrics_also_where_one_has_no_answer() -> None:
    task = task_of(LOST)
    three = Task(task.public, replace(task.grading, rubrics=("a?", "b?", "c?")))
    used = Usage.of(40, 30, 1)

    class Metered:
        def __init__(self, breaks: bool, known: Usage | None) -> None:
            self.breaks, self.known = breaks, known

        async def verdict(self, rubric: str, message: str) -> Verdict:
            if self.breaks and rubric == "c?":
                raise BackendFailure("judge", "judge x", "no answer", self.known)
            return Verdict(True, used)

    def tokens(*settings: Any) -> Usage:
        grader = StateGrader([three], REPLAY, Metered(*settings))
        terminal = played(three, golden_calls(three))
        return asyncio.run(grader.grade(three.task_ref, terminal, "")).usage

    assert tokens(False, None) == used + used + used
    assert tokens(True, used) == used + used + used
    assert tokens(True, None) == used + used + unknown()


def test_what_the_grader_cannot_decide_is_a_failure_and_never_a_zero() -> None:
    task = task_of(LEND)
    broken = (ToolInteraction("lend", {"member_id": 999, "code": "B1"}),)
    invalid = Task(task.public, replace(task.grading, expected_tool_interactions=broken))
    outcome = graded(invalid, [])
    assert isinstance(outcome, Failed) and outcome.kind == "grader"
    assert "golden call 1 (lend)" in outcome.detail
    grader = StateGrader([], REPLAY, LocalJudge())
    unknown = asyncio.run(grader.grade("who", TerminalState("", (), 0), "")).outcome
    assert isinstance(unknown, Failed) and unknown.kind == "grader"


def test_backend_failures_on_chosen_tries_leave_the_group_means_as_they_were() -> None:
    """A failed try has no number; the episode is run again and the group is the undisturbed one."""
    tasks = [task_of(LEND, f"t{seed}", seed) for seed in range(4)]
    grader = StateGrader(tasks, REPLAY, LocalJudge())

    async def episode(task: Task, rollout: int, failing: bool) -> Outcome:
        session = await EmbeddedSandbox(DOMAINS).open(
            replace(task.public, scenario_id="library/hostile")
        )
        calls = golden_calls(task) if rollout % 2 else golden_calls(task)[:1]
        try:
            for name, arguments in calls:
                if failing:
                    await session.call_tool("write_then_break", {"how": "bug"})
                await session.call_tool(name, arguments)
            return (await grader.grade(task.task_ref, await session.finish(), "")).outcome
        except BackendFailure as failure:
            return Failed(failure.kind, failure.where, failure.detail)

    async def means(failures: set[tuple[int, int]]) -> list[float]:
        found = []
        for number, task in enumerate(tasks):
            rewards = []
            for rollout in range(4):
                outcome = await episode(task, rollout, (number, rollout) in failures)
                if isinstance(outcome, Failed):
                    outcome = await episode(task, rollout, False)
                assert isinstance(outcome, Scored)
                rewards.append(outcome.reward)
            found.append(sum(rewards) / len(rewards))
        return found

    undisturbed = asyncio.run(means(set()))
    assert undisturbed == [0.5] * 4
    assert asyncio.run(means({(0, 1), (1, 0), (2, 3), (3, 2)})) == undisturbed


@pytest.mark.parametrize(
    ("rubric", "message", "answer"),
    [
        ('Does the final message mention "12.5"?', "It is 12.50 euros.", True),
        ('Does the final message mention "12.5"?', "It is 112.5 euros.", False),
        ('Does the final message mention "12.5"?', "It is 12.", False),
        ('Does the final message mention "1250"?', "It is 1,250 euros.", True),
        ('Does the final message mention "front desk"? (Yes = good)', "Ask the Front\nDesk!", True),
        ('Does the final message mention "front desk"?', "The desk in front.", False),
        ('Does the final message mention "sent"?', "I consented.", False),
        ('Does the final message mention all of "a1", "b2"?', "A 1 and B 2", True),
        ('Does the final message mention all of "red", "blue"?', "red only", False),
        ('Does the final message mention any of "red", "blue"?', "blue only", True),
        ('Does the final message avoid "refund"?', "No money back.", True),
        ('Does the final message avoid mentioning any of "refund", "fee"?', "A fee of 3.", False),
        ('Does the final message avoid "refund"?', "", True),
        ('Does the final message mention "caf\u00e9"?', "The cafe\u0301 is open", True),
    ],
)
def test_the_local_judge_reads_words_and_numbers(rubric: str, message: str, answer: bool) -> None:
    assert asyncio.run(LocalJudge().verdict(rubric, message)) == Verdict(answer)


def test_a_rubric_the_local_judge_cannot_read_is_refused_at_the_start() -> None:
    task = task_of(LOST)
    vague = Task(task.public, replace(task.grading, rubrics=("Is it polite?",)))
    with pytest.raises(ConfigError, match="cannot read a rubric of 't'"):
        build_judge([vague], JudgeConfig())
    with pytest.raises(BackendFailure):
        asyncio.run(LocalJudge().verdict("Is it polite?", "hello"))
    with pytest.raises(ConfigError, match="local"):
        build_judge([], JudgeConfig(kind="tarot"))


CANARY = "CANARY-41c7"


def test_no_agent_side_object_leads_to_the_grading_half() -> None:
    async def run() -> tuple[list[Any], list[Any]]:
        public = replace(library_task(), task_ref=CANARY + "-ref")
        spec = GradingSpec(public.task_ref, (ToolInteraction("lend", {"code": CANARY}),), (CANARY,))
        task = Task(public, spec)
        grader = StateGrader([task], REPLAY, LocalJudge())
        sandbox, user = EmbeddedSandbox(DOMAINS), ScriptedUser()
        session = await sandbox.open(task.public)
        await session.call_tool("lend", {"member_id": 1, "code": "B1"})
        agent_side = reachable([sandbox, session, user, task.public])
        grader_side = reachable([grader])
        await session.close()
        return agent_side, grader_side

    agent_side, grader_side = asyncio.run(run())
    forbidden = (Task, GradingSpec, ToolInteraction, Golden, StateGrader)
    assert not [item for item in agent_side if isinstance(item, forbidden)]
    assert CANARY not in [item for item in agent_side if isinstance(item, str)]
    assert any(isinstance(item, GradingSpec) for item in grader_side)
    assert CANARY in [item for item in grader_side if isinstance(item, str)]


def test_what_crosses_to_the_agent_side_pickles_without_the_grading_half() -> None:
    task = task_of(LOST)
    spec = replace(task.grading, rubrics=(CANARY,))
    sent = pickle.dumps(Task(task.public, spec).public)
    assert CANARY.encode() not in sent and b"GradingSpec" not in sent
    assert b"set_loan" not in sent
    assert CANARY.encode() in pickle.dumps(spec)


def imports_of(module: str) -> set[str]:
    """tbrl modules that a module imports, directly or through others, read from the source."""
    root = Path(tbrl.__file__).parent
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = root.joinpath(*name.split(".")[1:])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not file.is_file():
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tbrl"):
                waiting.append(str(node.module))
                waiting += [f"{node.module}.{alias.name}" for alias in node.names]
    return seen


@pytest.mark.parametrize(
    "module",
    ["sandbox.embedded", "sandbox.http", "sandbox.external", "users.scripted", "users.llm"],
)
def test_the_agent_side_does_not_know_the_graders_modules(module: str) -> None:
    known = imports_of(f"tbrl.{module}")
    assert not [name for name in known if name.startswith(("tbrl.rewards", "tbrl.tasks"))]
    assert "tbrl.types" in known
