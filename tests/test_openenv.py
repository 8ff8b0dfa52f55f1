"""The OpenEnv server, played by OpenEnv's own clients over real WebSockets and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="openenv-core is not installed: pip install 'tbrl[openenv]'")

from openenv.core import GenericEnvClient, MCPToolClient
from openenv.core.env_server import CallToolAction
from openenv_served import CONFIG, TASKS, WRITING, play, served, until

from tbrl.config import OpenEnvConfig, SandboxConfig, TasksConfig
from tbrl.errors import BackendFailure, ConfigError
from tbrl.sandbox.build import build_sandbox
from tbrl.serving.openenv.client import BusinessEnv
from tbrl.serving.openenv.grading import GraderProcess
from tbrl.serving.openenv.models import AgentAction, UserObservation
from tbrl.tasks.schema import save_tasks
from tbrl.types import Failed, Grade, Scored

INSIDE = "what went wrong inside"


@pytest.fixture(scope="module")
def grader() -> Iterator[GraderProcess]:
    process = GraderProcess(CONFIG)
    assert [task.task_ref for task in process.start()] == list(TASKS)
    yield process
    process.stop()


def test_the_golden_calls_of_every_task_earn_one(grader: GraderProcess) -> None:
    async def run() -> None:
        async with served(grader) as (url, _), BusinessEnv(url) as env:
            for task in TASKS.values():
                step = await play(env, task)
                assert (step.done, step.reward) == (True, 1.0)
                assert step.observation.finish_reason in ("done", "end_turn_tool")

    asyncio.run(run())


def test_doing_nothing_earns_zero_and_the_end_is_the_end(grader: GraderProcess) -> None:
    async def run() -> None:
        async with served(grader) as (url, _), BusinessEnv(url) as env:
            await env.reset(task_ref=WRITING[0])
            step = await env.say("<DONE>")
            assert (step.done, step.reward) == (True, 0.0)
            state = await env.state()
            assert (state.done, state.step_count, state.task_ref) == (True, 1, WRITING[0])
            with pytest.raises(RuntimeError, match="the episode is over; reset first"):
                await env.say("more")
            assert not (await env.reset(seed=0)).done

    asyncio.run(run())


def test_reset_gives_what_a_policy_starts_from_and_the_user_answers(grader: GraderProcess) -> None:
    async def run() -> None:
        async with served(grader) as (url, host), BusinessEnv(url) as env:
            task = next(t.public for t in TASKS.values() if t.public.user_context["facts"])
            seen = (await env.reset(task_ref=task.task_ref, episode_id="mine")).observation
            session = next(iter(host.sandbox.sessions.values()))
            assert seen.messages() == [
                {"role": "system", "content": session.policy},
                {"role": "user", "content": task.query},
            ]
            assert [(t.name, t.input_schema) for t in seen.tools] == [
                (t.name, t.parameters) for t in session.tools
            ]
            assert seen.tools == await env.list_tools()
            assert (seen.eval_only, seen.max_agent_turns) == (False, 12)
            fact, value = next(iter(task.user_context["facts"].items()))
            word = task.user_context.get("asked_by", {}).get(fact, [fact.split("_")[0]])[0]
            reply = await env.say(f"What is your {word}?")
            assert isinstance(reply.observation, UserObservation) and not reply.done
            assert str(value) in reply.observation.text
            empty = await env.say("")
            assert "empty" in empty.observation.text
            assert (await env.state()).episode_id == "mine"

    asyncio.run(run())


def test_seeds_name_tasks_and_no_seed_takes_the_next(grader: GraderProcess) -> None:
    async def run() -> None:
        async with served(grader) as (url, _), BusinessEnv(url) as env:
            refs = list(TASKS)
            for seed in (0, 1, len(refs), 3):
                opened = (await env.reset(seed=seed)).observation.task_ref
                assert opened == refs[seed % len(refs)]
            assert [(await env.reset()).observation.task_ref for _ in range(3)] == refs[:3]

    asyncio.run(run())


def test_mistakes_are_told_and_the_session_goes_on(grader: GraderProcess) -> None:
    async def run() -> None:
        async with served(grader) as (url, _), GenericEnvClient(url) as env:
            for wrong in (
                {"task_ref": "embedded/rental/compact/none/candidate/0.0"},
                {"task_ref": 5},
                {"seed": -1},
                {"seed": "1"},
                {"seed": 2**63},
                {"task": WRITING[0]},
            ):
                with pytest.raises(RuntimeError, match=r"task_ref|seed"):
                    await env.reset(**wrong)
            with pytest.raises(RuntimeError, match="no episode is open; reset first"):
                await env.step({"type": "message", "text": "hello"})
            await env.reset(task_ref=WRITING[0])
            for wrong_action in ({"type": "sql"}, {"type": "call_tool"}, {"text": 5}, {"x": 1}):
                with pytest.raises(RuntimeError, match=r"VALIDATION_ERROR|needs a tool_name"):
                    await env.step(wrong_action)
            huge = {"type": "call_tool", "tool_name": "cancel", "arguments": {"a": 2**70}}
            assert "no JSON object" in (await env.step(huge)).observation["result"]
            missing = await env.step({"type": "call_tool", "tool_name": "effects"})
            assert missing.observation["error"]["error_type"] == "tool_not_found"
            assert "there is no tool" in missing.observation["result"] and missing.reward is None
            assert (await env.step({"text": "<DONE>"})).reward == 0.0

    asyncio.run(run())


def test_openenvs_own_tool_client_plays_too(grader: GraderProcess) -> None:
    async def run() -> None:
        async with served(grader) as (url, _), MCPToolClient(url) as env:
            task = TASKS[WRITING[0]]
            await env.reset(task_ref=task.task_ref)
            tools = await env.list_tools()
            assert {c.tool for c in task.grading.expected_tool_interactions} <= {
                tool.name for tool in tools
            }
            result = None
            for call in task.grading.expected_tool_interactions:
                action = CallToolAction(tool_name=call.tool, arguments=call.arguments)
                result = await env.step(action)
            if not result.done:
                result = await env.step(AgentAction(text="Done. <DONE>"))
            assert (result.done, result.reward) == (True, 1.0)

    asyncio.run(run())


def test_sessions_at_once_are_isolated(grader: GraderProcess) -> None:
    async def run() -> None:
        async with served(grader) as (url, host):
            async with BusinessEnv(url) as one, BusinessEnv(url) as other:
                await one.reset(task_ref=WRITING[0])
                await other.reset(task_ref=WRITING[0])
                assert len(host.sandbox.sessions) == 2
                assert (await play(one, TASKS[WRITING[0]])).reward == 1.0
                assert (await other.say("<DONE>")).reward == 0.0
            many = [BusinessEnv(url) for _ in range(12)]
            steps = await asyncio.gather(
                *(play(env, TASKS[WRITING[i % 3]]) for i, env in enumerate(many))
            )
            assert [step.reward for step in steps] == [1.0] * 12
            await asyncio.gather(*(env.close() for env in many))

    asyncio.run(run())


def test_whoever_leaves_leaves_no_world_behind(grader: GraderProcess) -> None:
    async def run() -> None:
        async with served(grader) as (url, host):
            env = BusinessEnv(url)
            await env.reset(seed=0)
            await env.reset(seed=1)
            assert len(host.sandbox.sessions) == 1  # the first world went with its episode
            env._ws.transport.abort()  # the client dies without a word
            await until(lambda: not host.sandbox.sessions)
            assert host.sandbox.opened == 2

    asyncio.run(run())


def test_an_idle_client_loses_its_world_and_its_next_action_is_refused(
    grader: GraderProcess,
) -> None:
    config = replace(CONFIG, sandbox=SandboxConfig(session_lease_s=0.3))

    async def run() -> None:
        async with served(grader, config) as (url, host), BusinessEnv(url) as env:
            await env.reset(seed=0)
            await until(lambda: not host.sandbox.sessions)
            with pytest.raises(RuntimeError, match="deadline failure: the episode has no reward"):
                await env.say("<DONE>")
            await env.reset(seed=0)

    asyncio.run(run())


def test_more_clients_than_places_are_told(grader: GraderProcess) -> None:
    config = replace(CONFIG, sandbox=SandboxConfig(max_sessions=1))

    async def run() -> None:
        async with served(grader, config) as (url, _), BusinessEnv(url) as env:
            await env.reset(seed=0)
            async with BusinessEnv(url) as late:
                assert (await late._receive())["data"]["code"] == "CAPACITY_REACHED"
            assert (await env.say("<DONE>")).reward is not None

    asyncio.run(run())


class Broken:
    """A grader that fails in one way or another."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    async def grade(self, *_: Any) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return Grade(self.outcome)


@pytest.mark.parametrize(
    "broken",
    [
        Failed("judge", "judge", INSIDE),
        BackendFailure("grader", "golden replay", INSIDE),
        ConfigError(INSIDE),
        ZeroDivisionError(INSIDE),
    ],
    ids=lambda broken: type(broken).__name__,
)
def test_a_failure_is_an_error_and_never_a_reward(broken: Any) -> None:
    async def run() -> None:
        async with served(Broken(broken)) as (url, _), BusinessEnv(url) as env:
            await env.reset(task_ref=WRITING[0])
            with pytest.raises(RuntimeError, match="the episode has no reward") as told:
                await env.say("<DONE>")
            assert INSIDE not in str(told.value)
            with pytest.raises(RuntimeError, match="no episode is open"):
                await env.say("<DONE>")

    asyncio.run(run())


def test_a_broken_world_is_an_error_and_never_a_reward(grader: GraderProcess) -> None:
    async def run() -> None:
        async with served(grader) as (url, host), BusinessEnv(url) as env:
            await env.reset(task_ref=WRITING[0])
            session = next(iter(host.sandbox.sessions.values()))
            session._backend._conn.close()
            call = TASKS[WRITING[0]].grading.expected_tool_interactions[0]
            with pytest.raises(RuntimeError, match="backend failure: the episode has no reward"):
                await env.call(call.tool, call.arguments)
            assert (await play(env, TASKS[WRITING[0]])).reward == 1.0

    asyncio.run(run())


def test_the_grader_comes_back_after_it_died() -> None:
    async def run() -> None:
        process = GraderProcess(CONFIG)
        process.start()
        try:
            async with served(process) as (url, _), BusinessEnv(url) as env:
                process._process.kill()
                await until(lambda: process._connection is None)
                assert (await play(env, TASKS[WRITING[0]])).reward == 1.0
        finally:
            process.stop()

    asyncio.run(run())


def test_a_graders_process_gives_public_tasks_and_bare_numbers(
    grader: GraderProcess, tmp_path: Path
) -> None:
    async def run() -> None:
        ref = WRITING[0]
        sandbox = build_sandbox(CONFIG.sandbox)
        terminal = await (await sandbox.open(TASKS[ref].public)).finish()
        assert await grader.grade(ref, terminal, "") == Grade(Scored(0.0, False))
        unknown = await grader.grade("none", terminal, "")
        assert unknown == Grade(Failed("grader", "grader", "see the server's log"))

    asyncio.run(run())


def test_evaluation_tasks_are_refused_for_training_and_marked_for_evaluation(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tasks.jsonl"
    task = TASKS[WRITING[0]]
    save_tasks(path, [replace(task, public=replace(task.public, eval_only=True, split=""))])
    config = replace(CONFIG, tasks=TasksConfig(source=str(path)))
    with pytest.raises(ConfigError, match="is for evaluation only"):
        GraderProcess(config).start()
    process = GraderProcess(replace(config, openenv=OpenEnvConfig(split="heldout")))
    (public,) = process.start()
    process.stop()
    assert public.eval_only
