"""Evaluated policies that speak chat completions: endpoints and recorded files, in real worlds."""

import asyncio
import json
import random
from dataclasses import replace

import httpx
import pytest
from evaluation_helpers import LABELS
from fixture_domain import DOMAINS, LIBRARY

from tbrl.config import EndpointConfig, RolloutConfig
from tbrl.domains.names import names_of
from tbrl.endpoint import Answer, ChatEndpoint
from tbrl.episode.seeding import attempt_seeds
from tbrl.errors import ConfigError
from tbrl.evaluation.campaign import Campaign, run_campaign
from tbrl.evaluation.chat_episode import ChatRunner
from tbrl.evaluation.chat_models import EndpointModel, RecordedModel, completion_of
from tbrl.rewards.golden import GoldenReplay
from tbrl.rewards.grader import StateGrader
from tbrl.rewards.judge import LlmJudge, LocalJudge
from tbrl.sandbox.embedded import EmbeddedSandbox
from tbrl.types import Failed, Sampling, Scored
from tbrl.usage import NO_TOKENS, NOTHING, RoleUsage, Usage, unanswered, unknown
from tbrl.users.llm import LlmUser
from tbrl.users.scripted import ScriptedUser

pytestmark = pytest.mark.anyio
TASK = (
    LIBRARY.sizes["compact"]
    .templates[0]
    .make(random.Random(0), "lib/lend/0", names_of("candidate"))
    .task
)
MEMBER = TASK.public.user_context["facts"]["member_id"]
CHAT = unanswered("chat")
LEND = ("lend", {"member_id": MEMBER, "code": "B1"})


@pytest.fixture
def anyio_backend():
    return "asyncio"


def says(text="", calls=(), finish="stop", usage=(100, 20, 64)):
    message = {"content": text, "reasoning_content": "hm"}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"c{i}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": a if isinstance(a, str) else json.dumps(a),
                },
            }
            for i, (name, a) in enumerate(calls)
        ]
    details = {"prompt_tokens_details": {"cached_tokens": usage[2]}} if len(usage) > 2 else {}
    counted = {"prompt_tokens": usage[0], "completion_tokens": usage[1], **details}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": counted}


class Server:
    """Answers requests from a script and keeps their bodies."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.bodies = []

    def __call__(self, request):
        self.bodies.append(json.loads(request.content))
        answer = self.answers.pop(0)
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


def runner_of(model, lost=CHAT, **changes):
    config = RolloutConfig(**{"max_agent_turns": 6, "max_user_turns": 2, **changes})
    return ChatRunner(
        model,
        EmbeddedSandbox(DOMAINS),
        ScriptedUser(),
        StateGrader([TASK], GoldenReplay(DOMAINS), LocalJudge()),
        {TASK.task_ref: TASK.public},
        config,
        Sampling(0.0),
        lambda ref, attempt, try_: attempt_seeds("evaluate", 1, ref, attempt, try_),
        lost,
    )


async def play(*answers, **changes):
    server = Server(*answers)
    config = EndpointConfig(base_url="http://llm.test/v1", model="m", timeout_s=5)

    async def no_sleep(seconds):
        pass

    endpoint = ChatEndpoint(config, "engine", httpx.MockTransport(server), no_sleep)
    episode = await runner_of(EndpointModel(endpoint), **changes).run(TASK.task_ref, 0, 0)
    return episode, server


async def test_a_right_conversation_is_scored_one():
    episode, server = await play(says("", [LEND]), says("Here is Dune. <DONE>"))
    assert isinstance(episode.outcome, Scored) and episode.reward == 1.0
    assert (episode.finish_reason, episode.turns[-1].text) == ("done", "Here is Dune.")
    first, second = server.bodies
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    assert {t["function"]["name"] for t in first["tools"]} >= {"lend", "get_member"}
    assert [m["role"] for m in second["messages"][2:]] == ["assistant", "tool"]
    assert second["messages"][3]["tool_call_id"] == second["messages"][2]["tool_calls"][0]["id"]
    assert first["seed"] != second["seed"]


async def test_doing_nothing_is_a_zero_not_a_failure():
    episode, _ = await play(says("Sorry. <DONE>"))
    assert episode.reward == 0.0 and episode.outcome.attribution == "nothing_done"


async def test_calls_of_one_message_that_share_an_id_are_each_run():
    twice = says("", [("get_member", {"member_id": MEMBER}), LEND])
    for call in twice["choices"][0]["message"]["tool_calls"]:
        call["id"] = "same"
    episode, _ = await play(twice, says("Done. <DONE>"))
    assert episode.reward == 1.0 and sum(t.role == "tool" for t in episode.turns) == 2


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"'])
async def test_malformed_arguments_are_answered_and_never_run(arguments):
    episode, server = await play(says("", [("lend", arguments)]), says("Bye <DONE>"))
    assert "no JSON object" in server.bodies[1]["messages"][-1]["content"]
    assert episode.reward == 0.0 and not episode.effects and episode.malformed_turns == 1


async def test_an_unknown_tool_is_the_policys_mistake():
    episode, _ = await play(says("", [("drop_tables", {})]), says("Bye <DONE>"))
    assert isinstance(episode.outcome, Scored) and episode.turns[3].is_error


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([says("Who are you?"), says("Who?"), says("Who now?")], "user_limit"),
        ([says("cut off", finish="length")], "length"),
        ([says("", [("get_member", {"member_id": MEMBER})])] * 6, "agent_limit"),
        ([says("")] * 6, "agent_limit"),
        ([says("", [("report_injection", {"reason": "x"})])], "end_turn_tool"),
    ],
)
async def test_each_way_to_end_has_its_own_reason_and_is_scored(answers, reason):
    episode, _ = await play(*answers)
    assert (episode.finish_reason, type(episode.outcome)) == (reason, Scored)


@pytest.mark.parametrize(
    "broken",
    [
        httpx.Response(400),
        httpx.Response(200, text="hello"),
        {"choices": [{"message": {"tool_calls": [{"nonsense": 1}]}}]},
    ],
)
async def test_a_broken_endpoint_is_a_failure_never_a_zero(broken):
    episode, _ = await play(broken)
    assert isinstance(episode.outcome, Failed) and episode.outcome.kind == "engine"


async def test_an_endpoint_that_never_answers_meets_its_deadline():
    class Silent:
        async def complete(self, *arguments):
            await asyncio.Event().wait()

    episode = await runner_of(Silent(), turn_deadline_s=0.01).run(TASK.task_ref, 0, 0)
    assert isinstance(episode.outcome, Failed) and episode.outcome.kind == "deadline"


async def test_tokens_are_those_the_endpoint_counts(tmp_path):
    labels = {TASK.task_ref: LABELS["d/refund/0"]}
    server = Server(says("", [LEND], usage=(100, 20, 0)), says("Ok <DONE>", usage=(150, 5, 96)))
    config = EndpointConfig(base_url="http://llm.test/v1", model="m")
    model = EndpointModel(ChatEndpoint(config, "engine", httpx.MockTransport(server)))
    job = Campaign(tmp_path / "r.jsonl", labels, 1, "m")
    await run_campaign(job, runner_of(model).run)
    row = json.loads(job.path.read_text())
    used = Usage.of(100, 0, 20) + Usage.of(150, 96, 5)
    assert RoleUsage.from_json(row["tbrl"]["tokens"]) == RoleUsage(agent=used)
    assert [u["output_tokens"] for u in row["usage"]] == [20, 5]


async def test_agent_user_and_judge_are_counted_apart_and_a_failed_try_keeps_its_tokens(tmp_path):
    """The judge is unclear at first: that try is a failure, its tokens stay."""

    def llm(kind, *answers):
        config = EndpointConfig(base_url="http://llm.test/v1", model=kind)
        return ChatEndpoint(config, kind, httpx.MockTransport(Server(*answers)))

    conversation = (
        says("Which book?", usage=(100, 20, 64)),
        says("", [LEND], usage=(150, 10)),
        says("Ok <DONE>", usage=(200, 5, 128)),
    )
    agent = EndpointModel(llm("engine", *conversation, *conversation))
    user = LlmUser(EndpointConfig(), llm("user", *[says("B1", usage=(30, 2, 0))] * 2))
    verdicts = [says("Perhaps", usage=(40, 1, 0)), says("Yes", usage=(40, 1, 32))]
    judge = LlmJudge(llm("judge", *verdicts))
    judged = replace(TASK, grading=replace(TASK.grading, rubrics=("Polite?",)))
    runner = replace(
        runner_of(agent),
        user=user,
        grader=StateGrader([judged], GoldenReplay(DOMAINS), judge),
        unanswered=unanswered("chat", "llm", "llm"),
    )
    job = Campaign(tmp_path / "r.jsonl", {TASK.task_ref: LABELS["d/refund/0"]}, 1, "m")
    report = await run_campaign(job, runner.run)
    assert (report.progress.passed, report.progress.failures) == (1, 1)
    row, failure = (json.loads(p.read_text()) for p in (job.path, job.failures_path))
    played = RoleUsage(
        agent=Usage.of(100, 64, 20) + Usage.of(150, None, 10) + Usage.of(200, 128, 5),
        user=Usage.of(30, 0, 2),
    )
    assert RoleUsage.from_json(row["tbrl"]["tokens"]) == replace(played, judge=Usage.of(40, 32, 1))
    assert failure["kind"] == "judge"
    assert RoleUsage.from_json(failure["tokens"]) == replace(played, judge=Usage.of(40, 0, 1))
    cached = [u["input_tokens_details"]["cached_tokens"] for u in row["usage"]]
    assert cached == [64, None, 128]


async def test_an_endpoint_that_counts_nothing_leaves_the_tokens_unknown(tmp_path):
    answer = says("Ok <DONE>")
    del answer["usage"]
    episode, _ = await play(answer)
    assert episode.usage == RoleUsage(agent=unknown())
    assert episode.turns[-1].usage == unknown()


async def test_a_recorded_campaign_plays_again_to_the_same_outcome(tmp_path):
    labels = {TASK.task_ref: LABELS["d/refund/0"]}
    server = Server(
        says("Let me see.", [("get_member", {"member_id": MEMBER})]),
        says("", [LEND]),
        says("Anything else?"),
        says("Bye <DONE>"),
        says("No. <DONE>"),
    )
    config = EndpointConfig(base_url="http://llm.test/v1", model="m")
    model = EndpointModel(ChatEndpoint(config, "engine", httpx.MockTransport(server)))
    first = Campaign(tmp_path / "first.jsonl", labels, 2, "m", concurrency=1)
    again = Campaign(tmp_path / "again.jsonl", labels, 2, "recorded")
    await run_campaign(first, runner_of(model).run)
    recorded = runner_of(RecordedModel(first.path), unanswered("recorded"))
    await run_campaign(again, recorded.run)
    rows = [
        sorted(map(json.loads, job.path.open()), key=lambda r: r["tbrl"]["attempt"])
        for job in (first, again)
    ]
    assert all(RoleUsage.from_json(row["tbrl"]["tokens"]) == NO_TOKENS for row in rows[1])
    for one, two in zip(*rows, strict=True):
        assert one["messages"] == two["messages"] and one["test_result"] == two["test_result"]
        assert one["tbrl"]["effects"] == two["tbrl"]["effects"]
    assert [row["test_result"]["result"] for row in rows[0]] == [True, False]


async def test_a_recording_without_the_attempt_is_refused(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"lib/lend/0 attempt 0 is not recorded"):
        await runner_of(RecordedModel(path)).run(TASK.task_ref, 0, 0)


def test_an_incomplete_endpoint_is_named():
    with pytest.raises(ConfigError, match=r"evaluation\.endpoint\.model is empty"):
        EndpointModel.connect(EndpointConfig(base_url="http://x"))


def test_reasoning_is_read_under_both_names():
    answer = {"choices": [{"message": {"content": None, "reasoning": "r"}}]}
    assert completion_of(Answer(answer, NOTHING)).reasoning == "r"
