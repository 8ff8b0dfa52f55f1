"""The episode loop with scripted parts: ids only appended, each end, each failure, deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from toy_tokenizers import toy_tokenizer

from tbrl.config import RolloutConfig
from tbrl.episode.group import run_group, salt_of
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.loop import Parts, run_episode
from tbrl.episode.rendering import Renderer
from tbrl.episode.seeding import attempt_seeds, training_seeds
from tbrl.errors import BackendFailure, InvariantError
from tbrl.types import (
    Episode,
    EpisodeKey,
    Failed,
    Generation,
    Grade,
    JsonObject,
    PublicTask,
    Sampling,
    Scored,
    TerminalState,
    ToolResult,
    ToolSpec,
    Turn,
    UserReply,
)
from tbrl.usage import NO_TOKENS, RoleUsage, Usage, unanswered, unknown

KEY = EpisodeKey(0, 0, 0, 0)
BOOKING = ToolResult('{"number": 123}')
TOOLS = (
    ToolSpec(
        "find_booking",
        "find",
        {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    ),
    ToolSpec("escalate", "stop", {"type": "object", "properties": {}}, ends_turn=True),
)
TASK = PublicTask("t/1", "toy", "toy/compact", "please cancel", {}, {}, "cancel")
TOKENIZER = toy_tokenizer("chatml_xml")
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
CALL = (
    "<tool_call>\n<function=find_booking>\n<parameter=number>\n123\n</parameter>\n</function>\n"
    "</tool_call>"
)


def ids_of(text: str, end: bool = True) -> tuple[int, ...]:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    return tuple([*ids, END] if end else ids)


@dataclass
class ScriptedEngine:
    """Says its script; remembers every prompt it was given."""

    script: Sequence[tuple[int, ...]]
    policy_version: int = 3
    prompts: list[list[int]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    hang: bool = False

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        seed: int,
        stop_ids: Sequence[int],
    ) -> Generation:
        if self.hang:
            await asyncio.Event().wait()
        self.prompts.append(list(prompt_ids))
        self.seeds.append(seed)
        ids = self.script[min(len(self.prompts), len(self.script)) - 1]
        cut = ids[:max_tokens]
        reason = "stop" if cut and cut[-1] in stop_ids else "length"
        logprobs = tuple(-0.5 - i / 100 for i in range(len(cut)))
        used = Usage.of(len(prompt_ids), len(prompt_ids) // 2, len(cut))
        return Generation(cut, logprobs, reason, self.policy_version, used)  # type: ignore[arg-type]


@dataclass
class ScriptedWorld:
    """Sandbox, session, user and grader in one."""

    result: ToolResult = BOOKING
    reply_text: str = "My number is 123."
    fail_in: str = ""
    hang_in: str = ""
    calls: list[tuple[str, JsonObject]] = field(default_factory=list)
    heard: list[list[str]] = field(default_factory=list)
    closed: int = 0
    session_id: str = "s"
    tools: tuple[ToolSpec, ...] = TOOLS
    policy: str = "be kind"

    async def _maybe(self, place: str) -> None:
        if self.fail_in == place:
            raise BackendFailure("backend", place, "it broke")
        if self.hang_in == place:
            await asyncio.Event().wait()

    async def open(self, task: PublicTask) -> ScriptedWorld:
        await self._maybe("open")
        return self

    async def call_tool(self, name: str, arguments: JsonObject) -> ToolResult:
        await self._maybe("call")
        self.calls.append((name, arguments))
        return self.result

    async def finish(self) -> TerminalState:
        await self._maybe("finish")
        return TerminalState("hash", (), 0)

    async def close(self) -> None:
        self.closed += 1

    async def reply(self, task: PublicTask, visible: Sequence[Turn], seed: int) -> UserReply:
        await self._maybe("reply")
        self.heard.append([turn.text for turn in visible])
        return UserReply(self.reply_text, Usage.of(30, None, 4))

    async def grade(self, task_ref: str, terminal: TerminalState, final_text: str) -> Grade:
        await self._maybe("grade")
        self.final_text = final_text
        return Grade(Scored(1.0, True), Usage.of(50, 20, 1))


def play(
    script: Sequence[tuple[int, ...]], world: ScriptedWorld | None = None, **config: Any
) -> tuple[Episode, ScriptedEngine, ScriptedWorld]:
    world = world or ScriptedWorld()
    engine = config.pop("engine", None) or ScriptedEngine(script)
    renderer = Renderer(TOKENIZER)
    interpreter = Interpreter(TOKENIZER, TOOLS)
    models = unanswered(user="llm", judge="llm")
    parts = Parts(engine, world, world, world, renderer, lambda session: interpreter, models)
    settings = RolloutConfig(**{"max_turn_tokens": 200, "max_episode_tokens": 2000, **config})
    seeds = training_seeds(5, KEY, 0)
    return asyncio.run(run_episode(parts, TASK, KEY, settings, Sampling(), seeds)), engine, world


def test_sampled_ids_are_kept_exactly_as_sampled_however_the_text_is_spelled() -> None:
    """`he` + `llo` and `hello` are the same text; the policy's own spelling must survive."""
    he, llo = (TOKENIZER.convert_tokens_to_ids(t) for t in ("he", "llo"))
    odd = (he, llo, END)
    assert TOKENIZER.encode("hello", add_special_tokens=False) != [he, llo]
    episode, engine, _ = play([odd, odd, ids_of("<DONE>")], max_user_turns=3)
    sampled = episode.response_ids[episode.action_mask].tolist()
    assert sampled == [*odd, *odd, *ids_of("<DONE>")]
    everything = [*episode.prompt_ids.tolist(), *episode.response_ids.tolist()]
    for prompt in engine.prompts:
        assert everything[: len(prompt)] == prompt


def test_every_sampled_id_has_its_behaviour_logprob_and_observations_have_none() -> None:
    episode, _, _ = play([ids_of(CALL), ids_of("done <DONE>")])
    assert (episode.behaviour_logprobs[episode.action_mask] < 0).all()
    assert (episode.behaviour_logprobs[~episode.action_mask] == 0).all()
    assert len(episode.action_mask) == len(episode.response_ids)


def test_the_conversation_equals_the_templates_own_rendering() -> None:
    episode, _, _ = play([ids_of(CALL), ids_of("done <DONE>")])
    text = TOKENIZER.decode([*episode.prompt_ids, *episode.response_ids])
    assert text.count("<|im_start|>assistant\n") == 2
    assert text.index('{"number": 123}') > text.index("find_booking>")


def test_calls_are_typed_and_executed_in_order() -> None:
    _, _, world = play([ids_of(CALL), ids_of("done <DONE>")])
    assert world.calls == [("find_booking", {"number": 123})]


def test_malformed_output_is_answered_and_never_executed() -> None:
    episode, _, world = play([ids_of("<tool_call>\n<function=find"), ids_of("sorry <DONE>")])
    assert world.calls == []
    assert episode.malformed_turns == 1
    assert episode.finish_reason == "done"
    assert isinstance(episode.outcome, Scored)
    assert [t.is_error for t in episode.turns if t.role == "tool"] == [True]


def test_a_tool_error_is_shown_to_the_policy_and_the_episode_goes_on() -> None:
    world = ScriptedWorld(result=ToolResult("no booking 123", is_error=True))
    episode, _, _ = play([ids_of(CALL), ids_of("done <DONE>")], world)
    assert isinstance(episode.outcome, Scored)
    assert "no booking 123" in TOKENIZER.decode(episode.response_ids)


def test_the_user_hears_visible_text_only() -> None:
    thinking = ids_of("<think>\nsecret\n</think>\n\nwhat number?")
    _, _, world = play([ids_of(CALL), thinking, ids_of("done <DONE>")])
    assert world.heard == [["please cancel", "what number?"]]


@pytest.mark.parametrize(
    ("script", "config", "reason"),
    [
        (["hello <DONE>"], {}, "done"),
        (
            ["<tool_call>\n<function=escalate>\n</function>\n</tool_call>"],
            {},
            "end_turn_tool",
        ),
        (["hello"], {"max_user_turns": 2}, "user_limit"),
        ([CALL], {"max_agent_turns": 4}, "agent_limit"),
        ([CALL], {"max_turn_tokens": 5}, "length"),
        (["hello"], {"max_episode_tokens": 1, "max_user_turns": 9}, "length"),
    ],
)
def test_each_way_to_end_has_its_own_reason_and_is_scored(
    script: list[str], config: dict[str, int], reason: str
) -> None:
    episode, _, _ = play([ids_of(text) for text in script], **config)
    assert episode.finish_reason == reason
    assert isinstance(episode.outcome, Scored)


def test_a_user_who_says_done_ends_the_conversation() -> None:
    episode, _, _ = play([ids_of("hello")], ScriptedWorld(reply_text="Thanks. <DONE>"))
    assert episode.finish_reason == "user_done"


def test_endless_thinking_is_capped() -> None:
    episode, engine, _ = play([ids_of("<think>\nhmm\n</think>\n\n")], max_agent_turns=5)
    assert episode.finish_reason == "agent_limit"
    assert len(engine.prompts) == 5


def test_an_episode_never_grows_beyond_its_tokens() -> None:
    prompt = len(play([ids_of("<DONE>")])[0].prompt_ids)
    long = ids_of("number " * 40)
    episode, _, _ = play([long], max_episode_tokens=prompt + 20)
    assert episode.finish_reason == "length"
    assert episode.response_ids.tolist() == list(long[:20])


def test_an_observation_that_does_not_fit_ends_the_episode_uncut() -> None:
    world = ScriptedWorld(result=ToolResult("number " * 400))
    episode, _, _ = play([ids_of(CALL)], world, max_episode_tokens=600)
    assert episode.finish_reason == "length"
    assert episode.response_ids.tolist() == list(ids_of(CALL))


@pytest.mark.parametrize("place", ["open", "call", "finish", "reply", "grade"])
def test_an_infrastructure_failure_has_no_reward_and_frees_the_session(place: str) -> None:
    world = ScriptedWorld(fail_in=place)
    episode, _, _ = play([ids_of(CALL), ids_of("what number?"), ids_of("<DONE>")], world)
    assert isinstance(episode.outcome, Failed)
    assert episode.outcome.where == place
    assert episode.finish_reason == "failed"
    with pytest.raises(TypeError, match="no reward"):
        _ = episode.reward
    assert world.closed == (place != "open")


@pytest.mark.parametrize(
    ("place", "deadline"),
    [
        ("open", "turn"),
        ("call", "turn"),
        ("finish", "turn"),
        ("engine", "turn"),
        ("reply", "user"),
        ("grade", "grade"),
    ],
)
def test_whatever_never_answers_meets_its_own_deadline(place: str, deadline: str) -> None:
    """Real waits of 10 ms: what hangs is an event that nobody sets."""
    world = ScriptedWorld(hang_in=place)
    script = [ids_of(CALL), ids_of("what number?"), ids_of("<DONE>")]
    engine = ScriptedEngine(script, hang=place == "engine")
    longer = {f"{name}_deadline_s": 5.0 for name in ("turn", "user", "grade", "episode")}
    started = time.perf_counter()
    episode, _, _ = play(script, world, engine=engine, **{**longer, f"{deadline}_deadline_s": 0.01})
    assert isinstance(episode.outcome, Failed)
    assert episode.outcome.kind == "deadline" and episode.outcome.where != "episode"
    assert time.perf_counter() - started < 4.0


def test_the_episodes_own_deadline_covers_everything() -> None:
    world = ScriptedWorld(hang_in="reply")
    episode, _, _ = play([ids_of("hello")], world, episode_deadline_s=0.02)
    assert isinstance(episode.outcome, Failed)
    assert (episode.outcome.kind, episode.outcome.where) == ("deadline", "episode")
    assert episode.outcome.tokens == len(episode.prompt_ids) + len(episode.response_ids) > 0


# ---------------------------------------------------------------- tokens


def test_tokens_of_each_role_are_recorded_per_turn_and_per_episode() -> None:
    script = [ids_of(CALL), ids_of("what number?"), ids_of("done <DONE>")]
    episode, engine, _ = play(script)
    sampled = [turn for turn in episode.turns if turn.role == "assistant"]
    expected = [
        Usage.of(len(prompt), len(prompt) // 2, len(ids))
        for prompt, ids in zip(engine.prompts, script, strict=True)
    ]
    assert [turn.usage for turn in sampled] == expected
    assert episode.usage.agent == sum(expected[1:], expected[0])
    assert episode.usage.user == Usage.of(30, None, 4)
    assert episode.usage.judge == Usage.of(50, 20, 1)
    said = [turn.usage for turn in episode.turns if turn.role == "user"]
    assert said == [None, Usage.of(30, None, 4)]
    assert all(turn.usage is None for turn in episode.turns if turn.role in ("system", "tool"))


@pytest.mark.parametrize(
    ("place", "role"), [("engine", "agent"), ("reply", "user"), ("grade", "judge")]
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_request_cut_off_by_a_deadline_used_an_unknown_number(
    place: str, role: Any, whole: bool
) -> None:
    script = [ids_of("what number?"), ids_of("<DONE>")]
    engine = ScriptedEngine(script, hang=place == "engine")
    short = ("episode",) if whole else ("turn", "user", "grade")
    deadlines = {f"{name}_deadline_s": 0.02 for name in short}
    episode, _, _ = play(script, ScriptedWorld(hang_in=place), engine=engine, **deadlines)
    assert isinstance(episode.outcome, Failed)
    assert episode.usage.of(role) == unknown()
    assert episode.usage.agent.requests == (1 if place != "grade" else 2)


def test_a_failure_of_the_sandbox_keeps_what_was_used_until_then() -> None:
    script = [ids_of("what number?"), ids_of(CALL)]
    episode, _, _ = play(script, ScriptedWorld(fail_in="call"))
    assert isinstance(episode.outcome, Failed)
    used = episode.usage
    assert (used.agent.requests, used.user.requests, used.judge.requests) == (2, 1, 0)
    assert used.agent.unknown == 0 and used.agent.output == sum(map(len, script))


def test_a_failure_that_knows_its_tokens_is_booked_with_them() -> None:
    class Vague(ScriptedWorld):
        async def reply(self, *arguments: Any) -> UserReply:
            raise BackendFailure("user", "user m", "no text", Usage.of(30, 10, 2))

    episode, _, _ = play([ids_of("what number?")], Vague())
    assert isinstance(episode.outcome, Failed)
    assert episode.usage.user == Usage.of(30, 10, 2)


def test_a_scripted_user_and_a_local_judge_use_nothing_even_where_they_fail() -> None:
    assert unanswered().user == unanswered().judge == Usage()
    assert unanswered("recorded").agent == Usage()


def test_weights_that_change_inside_an_episode_stop_the_run() -> None:
    class Restless(ScriptedEngine):
        async def generate(self, *args: Any, **kwargs: Any) -> Generation:
            generation = await super().generate(*args, **kwargs)
            self.policy_version += 1
            return generation

    with pytest.raises(InvariantError, match="the episode began with 3"):
        play([], engine=Restless([ids_of(CALL)]))


def test_each_turn_has_its_own_seed() -> None:
    episode, engine, _ = play([ids_of(CALL), ids_of(CALL), ids_of("<DONE>")])
    assert len(set(engine.seeds)) == 3
    assert [t.seed for t in episode.turns if t.role == "assistant"] == engine.seeds


def test_agent_and_user_of_every_rollout_and_salt_draw_numbers_of_their_own() -> None:
    keys = [
        EpisodeKey(step, slot, attempt, rollout)
        for step in range(2)
        for slot in range(3)
        for attempt in range(3)
        for rollout in range(4)
    ]
    drawn = [
        draw(turn)
        for key in keys
        for salt in range(3)
        for draw in (training_seeds(5, key, salt).turn, training_seeds(5, key, salt).user)
        for turn in range(3)
    ]
    drawn += [
        draw(turn)
        for purpose in ("probe", "evaluate")
        for attempt in range(3)
        for salt in range(3)
        for draw in [attempt_seeds(purpose, 5, "t/1", attempt, salt).turn]
        for turn in range(3)
    ]
    assert len(set(drawn)) == len(drawn)


def test_probes_and_evaluations_of_one_attempt_draw_different_numbers() -> None:
    one, two = (attempt_seeds(p, 1, "t/1", 0, 0) for p in ("probe", "evaluate"))
    assert one.turn(0) != two.turn(0)
    assert attempt_seeds("probe", 1, "t/1", 0, 0).turn(0) == one.turn(0)


# ---------------------------------------------------------------- groups


def scored(key: EpisodeKey, reward: float) -> Episode:
    empty = np.zeros(0, np.int32)
    return Episode(
        key=key,
        task_ref="t/1",
        domain="toy",
        template="cancel",
        policy_version=0,
        prompt_ids=empty,
        response_ids=np.arange(7, dtype=np.int32),
        action_mask=np.ones(7, bool),
        behaviour_logprobs=np.zeros(7, np.float32),
        turns=(),
        finish_reason="done",
        outcome=Scored(reward, reward > 0),
        sampling=Sampling(),
        usage=RoleUsage(agent=Usage.of(100, 50, 7)),
    )


def broken(key: EpisodeKey) -> Episode:
    from dataclasses import replace

    return replace(scored(key, 0.0), outcome=Failed("backend", "x", "down"), finish_reason="failed")


def group(plan: dict[int, int], unit: str = "episode", max_tries: int = 3) -> tuple[Any, list[Any]]:
    """Rollout r fails plan[r] times, then scores r % 2."""
    seen: list[tuple[int, int, int]] = []

    async def member(key: EpisodeKey, tries: int, salt: int) -> Episode:
        seen.append((key.rollout, tries, salt))
        return broken(key) if tries <= plan.get(key.rollout, 0) else scored(key, key.rollout % 2)

    result = asyncio.run(run_group("t/1", 0, 0, 0, 4, max_tries, member, unit))
    return result, seen


def test_only_the_failed_member_runs_again_with_its_own_seeds() -> None:
    result, seen = group({2: 1})
    assert [s for s in seen if s[1] > 1] == [(2, 2, 0)]
    assert result.summary.verdict == "accepted"
    assert result.summary.rewards == (0.0, 1.0, 0.0, 1.0)
    assert len(result.summary.retried) == 1
    assert result.summary.wasted_tokens == 7
    assert result.summary.usage.agent == Usage.of(400, 200, 28) + Usage(requests=3)
    assert result.summary.wasted_usage == RoleUsage(agent=Usage.of(100, 50, 7))


def test_a_repeated_failure_is_salted_and_a_lasting_one_spoils_the_group() -> None:
    assert [salt_of(n) for n in (1, 2, 3, 4)] == [0, 0, 1, 2]
    result, seen = group({1: 9})
    assert [s for s in seen if s[0] == 1] == [(1, 1, 0), (1, 2, 0), (1, 3, 1)]
    assert result.summary.verdict == "failed"
    assert len(result.summary.rewards) == 3


def test_refill_by_group_runs_all_members_again() -> None:
    result, seen = group({0: 1}, unit="group")
    assert sorted(s[0] for s in seen if s[1] == 2) == [0, 1, 2, 3]
    assert result.summary.wasted_tokens == 28
    assert result.summary.wasted_usage.agent.output == 28


def test_equal_rewards_are_zero_variance() -> None:
    async def member(key: EpisodeKey, tries: int, salt: int) -> Episode:
        return scored(key, 1.0)

    result = asyncio.run(run_group("t/1", 0, 0, 0, 4, 1, member))
    assert result.summary.verdict == "zero_variance"
    assert result.summary.wasted_usage == NO_TOKENS
