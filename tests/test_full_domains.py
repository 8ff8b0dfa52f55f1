"""What full sizes promise: valid goldens, true knobs, a search that only reads, users who know."""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tbrl.domains
from tbrl.config import EndpointConfig, SandboxConfig
from tbrl.domains.base import DemoTurn, Domain, Drafted
from tbrl.domains.desk import read_articles
from tbrl.domains.names import SPLITS, names_of
from tbrl.domains.registry import all_domains, heldout_domains, training_domains
from tbrl.endpoint import ChatEndpoint, Said
from tbrl.errors import ConfigError
from tbrl.rewards.golden import GoldenReplay
from tbrl.rewards.grader import StateGrader
from tbrl.rewards.judge import LocalJudge
from tbrl.sandbox.backend import Backend
from tbrl.tasks.check import check_tasks
from tbrl.tasks.embedded import generate_tasks
from tbrl.types import PublicTask, Scored, TerminalState, Turn
from tbrl.usage import NOTHING
from tbrl.users.llm import LlmUser
from tbrl.users.scripted import DONE, reply_to

DOMAINS = {domain.name: domain for domain in all_domains()}
SIZES = [(domain, size) for domain in all_domains() for size in domain.sizes]
FULL = [domain for domain in all_domains() if "full" in domain.sizes]
REPLAY = GoldenReplay(DOMAINS)
each_size = pytest.mark.parametrize(
    ("domain", "size"), SIZES, ids=[f"{d.name}-{size}" for d, size in SIZES]
)
each_full = pytest.mark.parametrize("domain", FULL, ids=lambda d: d.name)


@cache
def drafts(
    name: str, size: str = "full", count: int = 5, split: str = "candidate"
) -> list[Drafted]:
    return generate_tasks([DOMAINS[name]], size, count, 0, split, names_of(split))


def backend(domain: Domain, public: PublicTask | None = None) -> Backend:
    patch = public.initial_state_patch if public else {}
    return Backend(REPLAY.scenario(f"{domain.name}/full"), patch, SandboxConfig())


def graded(draft: Drafted, terminal: TerminalState, final: str) -> Scored:
    grader = StateGrader([draft.task], REPLAY, LocalJudge())
    outcome = asyncio.run(grader.grade(draft.task.task_ref, terminal, final)).outcome
    assert isinstance(outcome, Scored)
    return outcome


def test_a_training_and_a_heldout_domain_have_a_full_size() -> None:
    assert any("full" in domain.sizes for domain in training_domains())
    assert any("full" in domain.sizes for domain in heldout_domains())


@each_size
def test_tasks_of_every_size_are_valid_and_not_passed_by_doing_nothing(
    domain: Domain, size: str
) -> None:
    found = drafts(domain.name, size)
    check_tasks([draft.task for draft in found], REPLAY)
    assert not any(draft.task.grading.null_passes for draft in found)
    for draft in found:
        untouched = REPLAY.replay(draft.task.public, ())
        outcome = graded(draft, untouched, "All done. <DONE>")
        assert (outcome.reward, outcome.attribution) == (0.0, "nothing_done")


@each_full
def test_a_full_size_is_what_a_language_model_should_meet(domain: Domain) -> None:
    size = domain.sizes["full"]
    schemas = [s for t in size.tools for s in t.spec.parameters["properties"].values()]
    types = {m["type"] for s in schemas for m in s.get("anyOf", [s])}
    assert 10 <= len(size.tools) <= 15
    assert all(tool.spec.description for tool in size.tools)
    assert {"string", "integer", "number", "array"} <= types
    assert any("enum" in s for s in schemas)
    assert 900 <= len(size.policy.split()) <= 2300
    assert sum(template.ordinary for template in size.templates) >= 8
    assert len({str(d.task.public) for d in drafts(domain.name, count=30)}) >= 300


@each_full
def test_a_full_world_does_not_burden_the_compact_one(domain: Domain) -> None:
    full, compact = (REPLAY.scenario(f"{domain.name}/{size}") for size in ("full", "compact"))
    assert {"verifications", "customers"} <= set(full.snapshot.tables)
    assert "verifications" not in compact.snapshot.tables
    assert len(compact.snapshot.data) < len(full.snapshot.data)


@each_full
def test_knobs_are_true(domain: Domain) -> None:
    for draft in drafts(domain.name):
        task, knobs = draft.task, draft.task.public.knobs
        assert knobs["records"] == len(task.public.initial_state_patch[knobs["of"]]) >= 2
        assert knobs["steps"] == len(task.grading.expected_tool_interactions)
        assert knobs["turns"] == len(draft.demo)
        assert knobs["facts"]


@each_full
def test_ordinary_templates_have_several_facts_that_decide(domain: Domain) -> None:
    for template in domain.sizes["full"].templates:
        tasks = [d.task for d in drafts(domain.name, count=30)]
        mine = [t for t in tasks if t.public.template == template.name]
        deciding = {fact for t in mine for fact in t.public.knobs["facts"]}
        goldens = {tuple(call.tool for call in t.grading.expected_tool_interactions) for t in mine}
        assert not template.ordinary or (len(deciding) >= 2 and len(goldens) >= 3), template.name


@each_full
def test_most_goldens_write_more_than_one_table(domain: Domain) -> None:
    found = drafts(domain.name)
    tables = [{change.table for change in REPLAY.golden(draft.task).effects} for draft in found]
    assert all("verifications" in t or "tickets" in t for t in tables)
    assert sum(len(t) >= 2 for t in tables) > 0.8 * len(tables)
    assert any(len(t) >= 4 for t in tables)


def play(domain: Domain, draft: Drafted) -> tuple[TerminalState, list[str]]:
    """The demonstration on the real backend with the scripted user: the state that it ends in and
    what the user said."""
    world = backend(domain, draft.task.public)
    said: list[str] = []
    heard: list[str] = []
    for turn in draft.demo:
        assert isinstance(turn, DemoTurn)
        for name, arguments in turn.calls:
            assert not world.execute(name, arguments).is_error
        said.append(turn.text)
        if not turn.calls and not turn.text.endswith(DONE):
            heard.append(reply_to(draft.task.public.user_context, said))
    terminal = world.terminal()
    world.close()
    return terminal, heard


@each_full
def test_the_user_answers_whatever_the_expert_asks_and_the_expert_is_paid(domain: Domain) -> None:
    for draft in drafts(domain.name, split="heldout"):
        terminal, heard = play(domain, draft)
        context, last = draft.task.public.user_context, draft.demo[-1]
        assert heard or draft.task.public.template == "third_party"
        assert not [text for text in heard if context["unknown"] in text or DONE in text]
        assert isinstance(last, DemoTurn) and last.text.endswith(DONE)
        assert graded(draft, terminal, last.text).reward == 1.0


ONLY_IF_ASKED = {"name", "vehicle", "address", "claim", "reason"}
"""Facts that the expert has no need to ask for."""


@each_full
def test_every_private_fact_comes_out_when_the_expert_needs_it(domain: Domain) -> None:
    told: set[tuple[str, str]] = set()
    known: set[tuple[str, str]] = set()
    for draft in drafts(domain.name, count=10):
        public = draft.task.public
        if public.template == "third_party":
            continue
        heard = " ".join(play(domain, draft)[1])
        for fact, value in public.user_context["facts"].items():
            known.add((public.template, fact))
            if value in heard:
                told.add((public.template, fact))
    assert {pair for pair in known - told if pair[1] not in ONLY_IF_ASKED} == set()


@each_full
def test_a_final_text_without_the_amount_fails_its_rubric(domain: Domain) -> None:
    asked = [d for d in drafts(domain.name) if d.task.grading.rubrics]
    assert len(asked) >= 5
    for draft in asked:
        assert all(LocalJudge.reads(rubric) for rubric in draft.task.grading.rubrics)
        calls = draft.task.grading.expected_tool_interactions
        terminal = REPLAY.replay(draft.task.public, calls)
        assert graded(draft, terminal, "All done. <DONE>").attribution == "rubric"


@each_full
def test_the_order_of_writes_that_do_not_need_each_other_does_not_matter(domain: Domain) -> None:
    writes = {tool.spec.name for tool in domain.sizes["full"].tools if tool.writes}
    swapped = 0
    for draft in drafts(domain.name):
        calls = list(draft.task.grading.expected_tool_interactions)
        golden = REPLAY.golden(draft.task).state_hash
        places = [n for n, call in enumerate(calls) if call.tool in writes]
        for left, right in pairwise(places):
            world = backend(domain, draft.task.public)
            order = [*calls]
            order[left], order[right] = order[right], order[left]
            refused = [world.execute(c.tool, c.arguments).is_error for c in order]
            if not any(refused):
                swapped += 1
                assert world.terminal().state_hash == golden, (draft.task.task_ref, left, right)
            world.close()
    assert swapped > 20


@each_full
def test_only_the_customers_own_data_verify_and_a_namesake_does_not(domain: Domain) -> None:
    seen = 0
    for draft in drafts(domain.name):
        public = draft.task.public
        people = public.initial_state_patch["customers"]
        told = public.user_context["facts"]
        if public.template == "wrong_identity" or len(people) < 2:
            continue
        seen += 1
        passed = []
        for person in people:
            world = backend(domain, public)
            data = {"birth_date": told["birth_date"], "postcode": told["postcode"].lower()}
            reply = world.execute("verify_identity", {"customer_id": person["id"], **data})
            passed.append("true" in reply.text)
            world.close()
        assert passed == [True] + [False] * (len(people) - 1)
    assert seen > 3


@each_full
def test_private_facts_are_in_the_prose_and_not_in_the_query(domain: Domain) -> None:
    for draft in drafts(domain.name):
        public = draft.task.public
        facts = public.user_context["facts"]
        assert all(value in public.user_context["text"] for value in facts.values())
        assert public.user_context["persona"] in public.user_context["text"]
        for name in ("birth_date", "postcode"):
            assert facts[name] not in public.query


@each_full
def test_the_language_model_that_plays_the_user_is_told_the_prose(domain: Domain) -> None:
    class Heard:
        async def complete(self, messages: list[dict[str, Any]], seed: int) -> str:
            self.messages = messages
            return Said("I see.", NOTHING)

    public = drafts(domain.name)[0].task.public
    heard = Heard()
    user = LlmUser(EndpointConfig(), cast(ChatEndpoint, heard))
    asyncio.run(user.reply(public, [Turn("user", public.query), Turn("assistant", "Yes?")], 1))
    for line in public.user_context["text"].splitlines():
        assert line in heard.messages[1]["content"]


@each_full
def test_people_and_records_of_splits_are_disjoint(domain: Domain) -> None:
    def ids(split: str) -> set[int]:
        return {
            row["id"]
            for draft in drafts(domain.name, split=split)
            for rows in draft.task.public.initial_state_patch.values()
            for row in rows
            if "id" in row
        }

    warm, candidate, heldout = (ids(split) for split in SPLITS)
    assert not warm & candidate
    assert not warm & heldout
    assert not candidate & heldout


# ---------------------------------------------------------------- help articles


def test_a_document_is_cut_into_articles() -> None:
    text = "# One\n\nFirst.\n## not a title\n\n# Two\nSecond.\n"
    assert read_articles(text) == [
        {"title": "One", "body": "First.\n## not a title"},
        {"title": "Two", "body": "Second."},
    ]


@each_full
def test_the_search_finds_each_article_by_its_title(domain: Domain) -> None:
    world = backend(domain)
    titles = [row["title"] for row in domain.sizes["full"].seed["articles"]]
    assert len(titles) >= 10
    for title in titles:
        reply = world.execute("search_help", {"query": title, "limit": 1})
        assert f'"title":"{title}"' in reply.text
    world.close()


@each_full
def test_the_search_returns_as_many_documents_as_asked(domain: Domain) -> None:
    world = backend(domain)
    for limit in (1, 3, 5):
        reply = world.execute("search_help", {"query": "customers days free", "limit": limit})
        assert reply.text.count('"title"') == limit
    assert world.execute("search_help", {"query": "zyzzyva"}).text == "[]"
    assert world.execute("search_help", {"query": "free", "limit": 6}).is_error
    assert world.execute("search_help", {"query": "?!"}).is_error
    world.close()


@cache
def worlds() -> tuple[tuple[Domain, Backend], ...]:
    return tuple((domain, backend(domain)) for domain in FULL)


def articles(world: Backend) -> list[Any]:
    return world._conn.execute("SELECT title, body FROM articles ORDER BY rowid").fetchall()


SYNTAX = st.sampled_from(
    ["free NEAR days", 'title:"x', "free*", "-free", "(free", "free) OR 1", "^free", "AND", "NOT",
     "'; DROP TABLE articles; --", "articles MATCH 'x'", '" OR "', "free\"; DELETE FROM jobs; --",
     "rank:bm25(10)", "é ß 日本", "NEAR(free days, 2)"]
)  # fmt: skip


@given(st.one_of(SYNTAX, st.text(min_size=1, max_size=60)))
@settings(max_examples=80, deadline=None)
def test_no_query_breaks_the_search_or_changes_anything(query: str) -> None:
    for domain, world in worlds():
        world.execute("search_help", {"query": query})
        assert len(articles(world)) == len(domain.sizes["full"].seed["articles"])
        assert articles(world) == articles(backend(domain))
        assert world.terminal().effects == ()


@each_full
def test_articles_are_no_state_and_no_patch_reaches_them(domain: Domain) -> None:
    tables = REPLAY.scenario(f"{domain.name}/full").snapshot.tables
    assert not [table for table in tables if table.startswith("articles")]
    public = drafts(domain.name)[0].task.public
    patch = {"articles": [{"title": "Service prices", "body": "free"}]}
    with pytest.raises(ConfigError, match="no table 'articles'"):
        Backend(REPLAY.scenario(public.scenario_id), patch, SandboxConfig())


# ---------------------------------------------------------------- the documentation


def test_the_worked_example_of_the_documentation_is_a_valid_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[1] / "docs" / "domains.md").read_text()
    files = re.findall(r"^`([\w.]+)`[^\n]*\n\n```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(files) == 6
    (tmp_path / "kennel").mkdir()
    for name, content in files:
        (tmp_path / "kennel" / name).write_text(content)
    monkeypatch.setattr(tbrl.domains, "__path__", [*tbrl.domains.__path__, str(tmp_path)])
    kennel: Domain = importlib.import_module("tbrl.domains.kennel").DOMAIN
    drafted = generate_tasks([kennel], "compact", 20, 0, "candidate", names_of("candidate"))
    check_tasks([draft.task for draft in drafted], GoldenReplay({"kennel": kennel}))
    for name in [name for name in sys.modules if name.startswith("tbrl.domains.kennel")]:
        del sys.modules[name]


def test_the_table_of_the_documentation_names_every_domain_and_size() -> None:
    text = (Path(__file__).parents[1] / "docs" / "domains.md").read_text()
    rows = [[c.strip() for c in r.split("|")[1:-1]] for r in text.splitlines() if r[:2] == "| "]
    found = {}
    domain = trains = ""
    for row in rows[1:]:
        domain, trains = (row[0].split("`")[1], row[1]) if row[0] else (domain, trains)
        counts = [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", " ".join(row[3:7]))]
        found[domain, row[2]] = (trains, *counts)
    for known, size in SIZES:
        content = known.sizes[size]
        tables = REPLAY.scenario(f"{known.name}/{size}").snapshot.tables
        assert found[known.name, size] == (
            "yes" if known.training else "no",
            len(tables),
            len(content.tools),
            len(content.templates),
            sum(template.ordinary for template in content.templates),
            len(content.policy.split()),
        )
    assert len(found) == len(SIZES)
