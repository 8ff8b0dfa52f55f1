"""Cost of campaigns and of dependable tasks, by role, failed tries included."""

import io
from dataclasses import replace

import orjson
import pytest
from evaluation_helpers import AGENT_USED, LABELS, FakeRun, episode_of, scored
from rich.console import Console

from tbrl.config import PriceConfig, PricesConfig
from tbrl.errors import ConfigError
from tbrl.evaluation.campaign import Campaign, run_campaign
from tbrl.evaluation.cost import Amount, amounts, campaign_cost
from tbrl.evaluation.report import effort, render
from tbrl.evaluation.report_cost import money, role_rows
from tbrl.evaluation.report_data import ReportOptions, load_report
from tbrl.evaluation.terminal import print_summary
from tbrl.launch import compose_config
from tbrl.types import Failed
from tbrl.usage import NO_TOKENS, RoleUsage, Usage, unknown
from tbrl.validate import validate

pytestmark = pytest.mark.anyio
AGENT = PriceConfig(input=2.0, cached=0.2, output=10.0)
PRICES = PricesConfig(
    agent=AGENT, user=PriceConfig(input=1.0, output=4.0), judge=PriceConfig(0.5, 0.05, 2.0)
)
BROKEN = Failed("backend", "sandbox", "database gone")


@pytest.fixture
def anyio_backend():
    return "asyncio"


def usage(requests=1, **counts):
    return Usage(requests=requests, **counts)


# ------------------------------------------------------------ arithmetic


def test_cached_input_is_priced_apart_and_only_once():
    used = RoleUsage(agent=usage(input=1_000_000, cached=400_000, output=100_000))
    assert amounts(used, PRICES)["agent"].known == pytest.approx(1.2 + 0.08 + 1.0)


def test_without_a_cached_price_cached_input_costs_as_input():
    used = RoleUsage(user=usage(input=1_000_000, cached=500_000))
    assert amounts(used, PRICES)["user"].known == pytest.approx(1.0)


def test_input_that_may_have_been_cached_is_priced_as_not_cached():
    used = RoleUsage(agent=Usage.of(1_000_000, None, 0))
    assert amounts(used, PRICES)["agent"] == Amount(2.0)


@pytest.mark.parametrize(("dependable", "price"), [(68, 82), (107, 102), (38, 241)])
def test_price_of_a_dependable_task_is_the_whole_campaign_over_tasks_that_always_pass(
    dependable, price
):
    """507 x 20 attempts; the campaign is paid for whether or not a task is dependable."""
    total = dependable * price
    used = RoleUsage(agent=usage(10140, input=total * 250_000, output=total * 50_000))
    cost = campaign_cost(
        used,
        NO_TOKENS,
        PRICES,
        attempts=10140,
        tasks=507,
        successes=5000,
        dependable=dependable,
    )
    assert cost.campaign().known == pytest.approx(total)
    assert cost.per_dependable_task().known == pytest.approx(price)
    assert cost.per_success().known == pytest.approx(total / 5000)
    assert cost.per_task().known == pytest.approx(total / 507)


def test_a_campaign_by_hand():
    """Two tasks, two attempts each, one of them failed once; one task passes both attempts.

    agent  scored: (900 - 300) x 2 + 300 x 0.2 + 100 x 10 = 2260; failed: 100 x 2 + 10 x 10 = 300
    user   scored: 200 x 1 + 50 x 4 = 400;                       failed: 40 x 1 + 5 x 4 = 60
    judge  scored: (80 - 40) x 0.5 + 40 x 0.05 + 4 x 2 = 30;     failed: 0
    all in millionths: 3050, so 762.5 an attempt, 1525 a task, 3050 the dependable task
    """
    scored_use = RoleUsage(
        agent=usage(8, input=900, cached=300, output=100),
        user=usage(4, input=200, output=50),
        judge=usage(3, input=80, cached=40, output=4),
    )
    failed_use = RoleUsage(agent=usage(input=100, output=10), user=usage(input=40, output=5))
    cost = campaign_cost(
        scored_use, failed_use, PRICES, attempts=4, tasks=2, successes=3, dependable=1
    )
    by_role = {role: 1e6 * cost.campaign(role).known for role in ("agent", "user", "judge")}
    assert by_role == pytest.approx({"agent": 2560, "user": 460, "judge": 30})
    assert 1e6 * cost.failed_tries().known == pytest.approx(360)
    assert 1e6 * cost.failed_tries("user").known == pytest.approx(60)
    assert 1e6 * cost.per_attempt().known == pytest.approx(762.5)
    assert 1e6 * cost.per_task().known == pytest.approx(1525)
    assert 1e6 * cost.per_dependable_task().known == pytest.approx(3050)
    assert 1e6 * cost.per_dependable_task("agent").known == pytest.approx(2560)


def test_nothing_dependable_has_no_price_rather_than_a_zero():
    used = RoleUsage(agent=usage(input=10))
    cost = campaign_cost(used, NO_TOKENS, PRICES, attempts=4, tasks=2, successes=0, dependable=0)
    assert cost.per_success() is None and cost.per_dependable_task() is None
    assert money(cost.per_dependable_task()) == "–"


def test_a_single_request_of_unknown_tokens_makes_a_cost_a_lower_bound():
    used = RoleUsage(agent=Usage.of(1_000_000, 0, 100_000), user=unknown(3))
    cost = campaign_cost(used, NO_TOKENS, PRICES, attempts=1, tasks=1, successes=1, dependable=1)
    assert cost.campaign() == Amount(3.0, 3)
    assert money(cost.campaign("agent")) == "3.00"
    assert money(cost.campaign("user")) == "unknown"
    assert money(cost.per_dependable_task()) == "unknown (≥ 3.00)"


def test_a_role_without_a_price_is_named_and_a_free_one_says_so():
    used = RoleUsage(agent=usage(input=5), judge=usage(7, input=5))
    with pytest.raises(ConfigError, match=r"prices\.judge\.input=None: the judge made 7 requests"):
        amounts(used, PricesConfig(agent=AGENT))
    free = PricesConfig(agent=AGENT, judge=PriceConfig(input=0.0, output=0.0))
    assert amounts(used, free)["judge"] == Amount(0.0)


# ------------------------------------------------------------ configuration

LLM_USER = ("user.kind=llm", "user.endpoint.base_url=http://x/v1", "user.endpoint.model=m")


def priced(*overrides):
    prefixed = [o if o in LLM_USER else f"evaluation.prices.{o}" for o in overrides]
    validate(compose_config(["stage=evaluate", *prefixed]))


def test_prices_that_hold_are_accepted():
    priced("agent.input=2", "agent.cached=0.2", "agent.output=10")
    priced(*LLM_USER, "agent.input=2", "agent.output=10", "user.input=0", "user.output=0")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agent.input=-1"], r"evaluation\.prices\.agent\.input=-1\.0: a price is 0 or more"),
        (["judge.cached=nan"], r"evaluation\.prices\.judge\.cached=nan: a price is 0 or more"),
        (["judge.output=inf"], r"evaluation\.prices\.judge\.output=inf: a price is 0 or more"),
        (["agent.input=1"], r"evaluation\.prices\.agent\.output=null while .* give both"),
        (["agent.cached=1"], r"evaluation\.prices\.agent\.input=null while .* give both"),
        (
            [*LLM_USER, "agent.input=1", "agent.output=1"],
            r"evaluation\.prices\.user\.input=null while others .* 0 if it is free",
        ),
        (["agnet.input=1"], "agnet"),
        (["agent.inputs=1"], "inputs"),
        (["agent.input=cheap"], "cheap"),
    ],
)
def test_bad_prices_are_named_on_one_line_before_anything_starts(overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        priced(*overrides)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------ campaigns and reports


async def campaign(root, run, start="fresh"):
    job = Campaign(root / "evaluation" / "after.jsonl", dict(LABELS), 2, "w")
    return await run_campaign(job, run, start)


def cells(report, label):
    return dict(role_rows(report))[label]


async def test_failed_tries_cost_and_have_no_part_in_the_rates(tmp_path):
    calm, troubled = tmp_path / "calm", tmp_path / "troubled"
    table = {("e/escalate/0", 0): False}
    await campaign(calm, FakeRun(table))
    await campaign(troubled, FakeRun({**table, ("d/refund/0", 1): [BROKEN, BROKEN, True]}))
    options = ReportOptions(prices=PRICES)
    (one,), (two,) = (load_report(root, options).runs for root in (calm, troubled))
    assert one.summary == two.summary
    attempt = amounts(RoleUsage(agent=AGENT_USED), PRICES)["agent"].known
    assert one.cost.campaign().known == pytest.approx(6 * attempt)
    assert two.cost.campaign().known == pytest.approx(8 * attempt)
    assert two.cost.failed_tries().known == pytest.approx(2 * attempt)
    assert two.cost.per_dependable_task().known == pytest.approx(8 / 2 * attempt)
    assert (one.aggregate.failed_tries, two.aggregate.failed_tries) == (0, 2)


async def test_given_up_keys_that_are_repaired_later_keep_what_they_cost(tmp_path):
    await campaign(tmp_path, FakeRun({("d/refund/0", 0): BROKEN}))
    await campaign(tmp_path, FakeRun(), "repair")
    (run,) = load_report(tmp_path, ReportOptions(prices=PRICES)).runs
    assert run.coverage.exact and run.aggregate.failed_tries == 3
    assert run.aggregate.failed_usage.agent == AGENT_USED + AGENT_USED + AGENT_USED


async def test_what_nobody_counted_is_reported_as_unknown_never_as_zero(tmp_path):
    async def run(task_ref, attempt, try_):
        episode = episode_of(task_ref, scored(True))
        used = RoleUsage(agent=AGENT_USED, user=unknown(), judge=Usage.of(40, None, 1))
        return replace(episode, usage=used)

    await campaign(tmp_path, run)
    report = load_report(tmp_path, ReportOptions(prices=PRICES))
    assert cells(report, "tokens read") == ["900", "unknown", "240"]
    assert cells(report, "of these cached") == ["576 (64 %)", "unknown", "unknown"]
    assert cells(report, "cost")[1] == "unknown"
    assert effort(report.runs[0])["per_dependable"].startswith("unknown (≥ ")
    html = render(report)
    out = io.StringIO()
    print_summary(report, Console(file=out, width=200))
    for text in (html, out.getvalue()):
        assert "of 6 requests of the user, 6 without token counts" in text
        assert "of 6 requests of the judge, 6 do not say what was cached" in text
        assert "after, judge" in text and "unknown (≥ " in text


async def test_tokens_of_foreign_rows_are_known_only_where_they_are_said(tmp_path):
    said = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 30},
        "output_tokens": 9,
    }
    bare = {"input_tokens": 50, "output_tokens": 1}
    rows = [
        {"usage": [said, bare], "test_result": {"result": True}},
        {"usage": [said], "is_system_error": True},
        {"test_result": {"result": False}},
    ]
    path = tmp_path / "evaluation" / "foreign.jsonl"
    path.parent.mkdir()
    lines = [
        orjson.dumps({"uid": "t", "metadata": {"repetition": i}, **row}) + b"\n"
        for i, row in enumerate(rows)
    ]
    path.write_bytes(b"".join(lines))
    (run,) = load_report(tmp_path, ReportOptions()).runs
    known = Usage.of(100, 30, 9) + Usage.of(50, None, 1)
    assert run.aggregate.usage.agent == known + unknown()
    assert run.aggregate.failed_usage.agent == Usage.of(100, 30, 9)
