"""What every domain's compact size promises: typed tools, varied tasks, goldens that matter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tbrl.domains.base import Decision, DemoTurn, Domain, Drafted, Template
from tbrl.domains.drafting import FIRST_ID, LAST_ID, record_number
from tbrl.domains.names import SPLITS, names_of
from tbrl.domains.registry import all_domains, domain_of, heldout_domains, training_domains
from tbrl.errors import ConfigError
from tbrl.policy.demonstrations import Expert
from tbrl.rewards.golden import GoldenReplay

DOMAINS = [d for d in all_domains() if "compact" in d.sizes]
TEMPLATES = [(d, t) for d in DOMAINS for t in d.sizes["compact"].templates]
each_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda d: d.name)
each_template = pytest.mark.parametrize(
    ("domain", "template"), TEMPLATES, ids=[f"{d.name}-{t.name}" for d, t in TEMPLATES]
)


def drafts(template: Template, count: int, split: str = "candidate") -> list[Drafted]:
    return [
        template.make(random.Random(f"{template.name}/{n}"), f"ref/{n}", names_of(split))
        for n in range(count)
    ]


def one_mistake(steps: tuple[DemoTurn | Decision, ...]) -> Iterator[tuple[DemoTurn, ...]]:
    """Every way through a demonstration with exactly one wrong decision."""
    for place, step in enumerate(steps):
        if isinstance(step, Decision):
            before = tuple(s for s in steps[:place] if isinstance(s, DemoTurn))
            for wrong in step.wrong:
                yield (*before, *(s for s in wrong if isinstance(s, DemoTurn)))
            for rest in one_mistake(step.right):
                yield (*before, *rest)


def test_training_and_heldout_domains_are_two_sets() -> None:
    assert {"rental", "lockers"} <= {d.name for d in training_domains()}
    assert "clinic" in {d.name for d in heldout_domains()}
    assert not {d.name for d in training_domains()} & {d.name for d in heldout_domains()}


def test_an_unknown_domain_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"'bakery'.*clinic.*rental"):
        domain_of("bakery")


@each_domain
def test_a_compact_domain_is_small_and_uses_every_type(domain: Domain) -> None:
    size = domain.sizes["compact"]
    schemas = [s for t in size.tools for s in t.spec.parameters["properties"].values()]
    types = {s.get("type") for s in schemas} | {
        m["type"] for s in schemas for m in s.get("anyOf", ())
    }
    optional = [
        key
        for t in size.tools
        for key in t.spec.parameters["properties"]
        if key not in t.spec.parameters["required"]
    ]
    assert 8 <= len(size.tools) <= 12
    assert {"string", "integer", "number", "boolean", "array"} <= types
    assert any("enum" in s for s in schemas)
    assert optional
    assert len(size.templates) >= 8
    assert sum(t.ordinary for t in size.templates) >= 6
    assert len(size.policy.split()) <= 100


def test_record_numbers_of_splits_are_disjoint_and_use_all_digits() -> None:
    rng = random.Random(0)
    numbers = {s: {record_number(rng, names_of(s)) for _ in range(5000)} for s in SPLITS}
    for split, found in numbers.items():
        others = set().union(*(n for s, n in numbers.items() if s != split))
        assert not found & others
        assert all(FIRST_ID <= n <= LAST_ID for n in found)
        for place in range(3):
            assert {str(n)[place] for n in found} >= set("123456789")


def test_names_of_splits_are_disjoint() -> None:
    for kind in ("first", "last"):
        names = [name for split in SPLITS for name in getattr(names_of(split), kind)]
        assert len(names) == len(set(names))


@each_template
def test_tasks_of_splits_share_no_person_and_no_record(domain: Domain, template: Template) -> None:
    def rows(split: str) -> set[str]:
        return {
            str(row[key])
            for draft in drafts(template, 20, split)
            for table, patched in draft.task.public.initial_state_patch.items()
            for row in patched
            for key in ("id", "name")
            if key in row and row[key] not in shared.get(table, ())
        }

    shared = {table: {row.get("name") for row in seeded} for table, seeded in domain.seed.items()}
    warm, candidate, heldout = (rows(split) for split in SPLITS)
    assert warm and candidate and heldout
    assert not warm & candidate
    assert not warm & heldout
    assert not candidate & heldout


@each_template
def test_a_template_is_deterministic_and_varied(domain: Domain, template: Template) -> None:
    tasks = drafts(template, 100)
    assert tasks == drafts(template, 100)
    assert len({str((d.task.public.query, d.task.public.initial_state_patch)) for d in tasks}) > 95
    assert all(d.task.public.domain == domain.name for d in tasks)


@each_template
def test_every_golden_write_is_needed(domain: Domain, template: Template) -> None:
    replay = GoldenReplay({domain.name: domain})
    writes = {t.spec.name for t in domain.sizes["compact"].tools if t.writes}
    for draft in drafts(template, 6):
        task = draft.task
        golden = replay.golden(task)
        calls = task.grading.expected_tool_interactions
        assert golden.state_hash != golden.untouched_hash
        for n, call in enumerate(calls):
            without = replay.replay(task.public, calls[:n] + calls[n + 1 :]).state_hash
            assert (without != golden.state_hash) == (call.tool in writes)


@each_template
def test_an_ordinary_expert_reads_before_it_writes(domain: Domain, template: Template) -> None:
    writes = {t.spec.name for t in domain.sizes["compact"].tools if t.writes}
    if template.ordinary:
        for draft in drafts(template, 10):
            tools = [i.tool for i in draft.task.grading.expected_tool_interactions]
            assert tools[0] not in writes


@each_template
def test_one_wrong_decision_misses_the_golden_state(domain: Domain, template: Template) -> None:
    expert = Expert([domain], noise=0.0)
    replay = GoldenReplay({domain.name: domain})
    seen = 0
    for draft in drafts(template, 8):
        golden = replay.golden(draft.task).state_hash
        for path in one_mistake(draft.demo):
            seen += 1
            walked = expert.converse(replace(draft, demo=path), random.Random(0))
            assert walked.terminal.state_hash != golden
    assert seen >= 8


@each_template
def test_clean_experts_reach_the_golden_state(domain: Domain, template: Template) -> None:
    expert = Expert([domain], noise=0.0)
    replay = GoldenReplay({domain.name: domain})
    for draft in drafts(template, 8, "heldout"):
        walked = expert.converse(draft, random.Random(0))
        assert walked.terminal.state_hash == replay.golden(draft.task).state_hash
        assert walked.messages[-1]["content"].endswith("<DONE>")


@each_template
def test_every_verdict_goes_both_ways(domain: Domain, template: Template) -> None:
    """A policy that always says yes, or always no, cannot be right."""
    if not template.ordinary:
        return
    answers: dict[str, set[str]] = {}

    def collect(steps: tuple[DemoTurn | Decision, ...]) -> None:
        for step in steps:
            if isinstance(step, Decision):
                collect(step.right)
            else:
                for line in step.reasoning.splitlines():
                    fact, _, answer = line.partition("=")
                    answers.setdefault(fact, set()).add(answer.rpartition(" ")[2])

    for draft in drafts(template, 40):
        collect(draft.demo)
    assert any(found == {"yes", "no"} for found in answers.values())
