"""Tasks on disk, their load checks, the evaluation-only guard, and foreign formats."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from fixture_domain import DOMAINS, LIBRARY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tbrl.config import TasksConfig
from tbrl.domains.names import SPLITS, names_of
from tbrl.domains.registry import all_domains
from tbrl.errors import ConfigError
from tbrl.rewards.golden import GoldenReplay
from tbrl.tasks import guard
from tbrl.tasks.check import check_tasks, problems_of
from tbrl.tasks.embedded import generate_tasks
from tbrl.tasks.guard import content_hash, query_hash, ref_hash, refuse_eval_only, why_eval_only
from tbrl.tasks.load import load_tasks, read_source
from tbrl.tasks.schema import FIELDS, read_tasks, row_of, save_tasks, task_of
from tbrl.types import GradingSpec, PublicTask, Task, ToolInteraction

REPLAY = GoldenReplay(DOMAINS)
TASKS = [
    drafted.task
    for drafted in generate_tasks([LIBRARY], "compact", 4, 0, "candidate", names_of("candidate"))
]
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=8),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
ANY_TASK = st.builds(
    lambda ref, texts, context, rows, calls, rubrics, knobs, flags: Task(
        PublicTask(
            ref, texts[0], texts[1], texts[2], context, rows, texts[3], knobs, texts[4], flags[0]
        ),
        GradingSpec(ref, tuple(ToolInteraction(*call) for call in calls), tuple(rubrics), flags[1]),
    ),
    st.text(min_size=1, max_size=8),
    st.tuples(*[st.text(max_size=12)] * 5),
    st.one_of(OBJECTS, st.fixed_dictionaries({"text": st.text(max_size=12)})),
    st.dictionaries(st.text(max_size=5), st.lists(OBJECTS, max_size=2), max_size=2),
    st.lists(st.tuples(st.text(max_size=5), OBJECTS), max_size=3),
    st.lists(st.text(max_size=8), max_size=2),
    OBJECTS,
    st.tuples(st.booleans(), st.booleans()),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANY_TASK)
def test_a_row_holds_the_whole_task(task: Task) -> None:
    row = row_of(task)
    assert list(row) == list(FIELDS)
    assert task_of(row, "here") == task


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".yaml"])
def test_every_form_on_disk_gives_the_tasks_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tasks{suffix}"
    prose = replace(TASKS[0].public, task_ref="prose", user_context={"text": "I am\nAda: \u00e9"})
    saved = [*TASKS, Task(prose, replace(TASKS[0].grading, task_ref="prose", null_passes=True))]
    save_tasks(path, saved)
    assert read_tasks(path) == saved


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": None}, "no field 'query'"),
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"query": 5}, "query must be str"),
        ({"eval_only": "yes"}, "eval_only must be bool"),
        ({"initial_state_patch_json": "{"}, "initial_state_patch_json is not JSON"),
        ({"initial_state_patch_json": "[]"}, "must hold a JSON dict"),
        ({"initial_state_patch_json": '{"books": 5}'}, "must be a list of rows"),
        ({"expected_tool_interactions_json": '[{"name": "x"}]'}, "is {tool, parameters}"),
        ({"rubrics_json": "{}"}, "must hold a JSON list"),
        ({"user_context": "{nope"}, "user_context is not JSON"),
    ],
)
def test_a_bad_row_is_named_in_one_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "tasks.jsonl"
    good = row_of(TASKS[0])
    rows = [good, {**good, "task_ref": "second", **change}]
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    with pytest.raises(ConfigError) as caught:
        read_tasks(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, row 2: ") and words in message and "\n" not in message


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", "", "unknown form '.csv'"),
        ("t.jsonl", "{", "cannot be read"),
        ("t.yaml", "a: [", "cannot be read"),
        ("t.yaml", "a: 1", "must be a list of tasks"),
        ("t.parquet", "x", "cannot be read"),
        ("gone.jsonl", None, "no such file"),
    ],
)
def test_a_bad_file_is_named_in_one_line(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        read_tasks(path)
    assert "\n" not in str(caught.value)


def test_a_task_ref_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    save_tasks(tmp_path / "t.jsonl", [TASKS[0], TASKS[0]])
    with pytest.raises(ConfigError, match="occurs twice"):
        read_tasks(tmp_path / "t.jsonl")


def changed(task: Task, **changes: Any) -> Task:
    public = {k: v for k, v in changes.items() if k in PublicTask.__dataclass_fields__}
    grading = {k: v for k, v in changes.items() if k in GradingSpec.__dataclass_fields__}
    return Task(replace(task.public, **public), replace(task.grading, **grading))


READ = ("get_member", {"member_id": 1})


def calls(*pairs: tuple[str, Any]) -> dict[str, Any]:
    return {"expected_tool_interactions": tuple(ToolInteraction(*pair) for pair in pairs)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"initial_state_patch": {"boks": [{}]}}, "no table 'boks'"),
        ({"initial_state_patch": {"books": [{"code": "B1", "hue": 1}]}}, "no column 'hue'"),
        ({"scenario_id": "library/huge"}, "no size 'huge'"),
        ({"scenario_id": "museum/compact"}, "no domain 'museum'"),
        (calls(("fly", {})), "golden call 1 (fly): there is no tool 'fly'"),
        (calls(READ, ("lend", {"member_id": 1})), "golden call 2 (lend): missing argument 'code'"),
        (calls(("lend", {"member_id": 1, "code": "B2"})), "golden call 1 (lend): refused by the"),
        (calls(READ), "change nothing"),
        (calls(), "change nothing"),
        ({"null_passes": True}, "marked null_passes, but"),
        ({"query": " "}, "the query is empty"),
    ],
)  # fmt: skip
def test_each_defect_of_a_task_is_named_in_one_line(change: dict[str, Any], words: str) -> None:
    task = changed(TASKS[0], **change)
    problems = problems_of(task, REPLAY)
    assert len(problems) == 1 and words in problems[0] and "\n" not in problems[0]
    assert problems[0].startswith(task.task_ref)
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_tasks([TASKS[1], task], REPLAY)


def test_doing_nothing_is_a_valid_golden_where_it_is_marked() -> None:
    marked = changed(TASKS[0], **calls(READ), null_passes=True)
    assert problems_of(marked, REPLAY) == []
    check_tasks(TASKS, REPLAY)


def test_a_broken_tool_in_a_golden_replay_is_a_defect_of_the_task() -> None:
    broken = calls(("write_then_break", {"how": "bug"}))
    task = changed(TASKS[0], scenario_id="library/hostile", **broken)
    assert "golden call 1 (write_then_break): ZeroDivisionError" in problems_of(task, REPLAY)[0]


# ---------------------------------------------------------------- evaluation only


def test_a_task_marked_for_evaluation_never_trains() -> None:
    refuse_eval_only(TASKS, "stage=train")
    with pytest.raises(ConfigError, match=r"stage=train: task .* \(marked eval_only\)"):
        refuse_eval_only([*TASKS, changed(TASKS[0], eval_only=True)], "stage=train")


def test_a_benchmark_task_is_known_by_name_by_content_and_by_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = "Hello, order 17 has a scratch on its left side and I would like another one, please."
    secret = changed(TASKS[0], task_ref="group1.py:test_x", query=query)
    hashes = {ref_hash(secret.task_ref), content_hash(secret), query_hash(query)}
    monkeypatch.setattr(guard, "benchmark_hashes", lambda: frozenset(hashes))
    assert "task_ref" in why_eval_only(changed(TASKS[1], task_ref="retail/group1.py:test_x"))
    renamed = changed(secret, task_ref="mine", query=query.upper().replace(",", " -"))
    assert "query" in why_eval_only(renamed) and "query" in why_eval_only(renamed.public)
    hashes.discard(query_hash(query))
    assert "content" in why_eval_only(renamed)
    assert why_eval_only(changed(renamed, query="Something else")) == ""
    assert why_eval_only(TASKS[1]) == ""


def test_content_does_not_depend_on_spelling() -> None:
    rows = {"books": [{"code": "B1", "price": 5, "title": "caf\u00e9"}], "log": []}
    other = {"books": [{"title": "cafe\u0301", "price": 5.0, "code": "B1", "x": None}]}
    one = changed(TASKS[0], query="Hi,  THERE!", initial_state_patch=rows)
    two = changed(TASKS[0], query="hi there", initial_state_patch=other)
    assert content_hash(one) == content_hash(two)
    moved = changed(one, initial_state_patch={**rows, "books": [{"code": "B2"}]})
    assert content_hash(one) != content_hash(moved)


def test_the_shipped_hashes_are_507_tasks_and_nothing_else() -> None:
    lines = Path(guard.__file__).with_name("eval_only_hashes.txt").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert len(rows) == 507 and len({row[0] for row in rows}) == 507
    assert all(re.fullmatch("[0-9a-f]{64}", word) for row in rows for word in row)
    assert {len(row) for row in rows} == {2, 3}
    assert guard.benchmark_hashes() >= {row[0] for row in rows}


def test_an_evaluation_only_file_loads_for_evaluation_and_is_refused_for_training(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.jsonl"
    kept = [changed(t, eval_only=True, scenario_id="far/away", split="") for t in TASKS]
    save_tasks(path, kept)
    config = TasksConfig(source=str(path))
    assert load_tasks(config, "heldout") == kept
    for split in ("candidate", "warmstart"):
        with pytest.raises(ConfigError, match="is for evaluation only"):
            load_tasks(config, split)


# ---------------------------------------------------------------- generated tasks


def test_generation_is_a_function_of_its_arguments() -> None:
    def drawn(seed: int, split: str, count: int = 4) -> list[Task]:
        made = generate_tasks([LIBRARY], "compact", count, seed, split, names_of(split))
        return [drafted.task for drafted in made]

    assert drawn(0, "candidate") == TASKS == drawn(0, "candidate")
    assert drawn(0, "candidate", 2) == [TASKS[0], TASKS[1], TASKS[4], TASKS[5]]
    every = [t for s in SPLITS for seed in (0, 1) for t in drawn(seed, s)]
    assert len({t.task_ref for t in every}) == len(every)
    assert len({content_hash(t) for t in every}) == len(every)
    assert all(t.public.eval_only == (t.public.split == "heldout") for t in every)


def test_a_template_that_cannot_give_so_many_distinct_tasks_says_so() -> None:
    names = replace(names_of("candidate"), first=("A",), last=("B",))
    with pytest.raises(ConfigError, match="gives only 300 distinct tasks"):
        generate_tasks([LIBRARY], "compact", 301, 0, "candidate", names)


def test_splits_share_no_name_and_no_id() -> None:
    every = [names_of(split) for split in SPLITS]
    words = [word for names in every for word in (*names.first, *names.last)]
    assert len(words) == len(set(words))
    ids = [number for names in every for number in range(*names.ids)]
    assert len(ids) == len(set(ids)) and set(ids) == set(range(100, 1000))
    with pytest.raises(ConfigError, match="split='test'"):
        names_of("test")


# ---------------------------------------------------------------- one entry


def test_embedded_splits_are_disjoint_and_held_out_domains_never_train() -> None:
    config = TasksConfig(per_template=2)
    loaded = {split: load_tasks(config, split) for split in SPLITS}
    training = {domain.name for domain in all_domains() if domain.training}
    for split in ("candidate", "warmstart"):
        assert {t.public.domain for t in loaded[split]} == training
        assert not any(t.public.eval_only for t in loaded[split])
    heldout = loaded["heldout"]
    assert all(t.public.eval_only for t in heldout)
    assert {t.public.split for t in heldout if t.public.domain in training} == {"heldout"}
    assert {t.public.split for t in heldout if t.public.domain not in training} <= {"transfer"}
    contents = [content_hash(t) for tasks in loaded.values() for t in tasks]
    assert len(contents) == len(set(contents))


def test_a_file_gives_the_tasks_of_its_split_without_the_excluded_ones(tmp_path: Path) -> None:
    refs = [task.task_ref for task in TASKS]
    moved = [changed(t, split="heldout" if n == 0 else "") for n, t in enumerate(TASKS)]
    far = [changed(task, scenario_id="elsewhere") for task in moved]
    save_tasks(tmp_path / "t.parquet", far)
    (tmp_path / "no.txt").write_text(f"# not these\n{refs[1]}\n")
    (tmp_path / "no.yaml").write_text(yaml.safe_dump([refs[2]]))
    config = TasksConfig(
        source=str(tmp_path / "t.parquet"),
        exclude=[str(tmp_path / "no.txt"), str(tmp_path / "no.yaml")],
    )
    assert [t.task_ref for t in load_tasks(config, "candidate")] == refs[3:]
    assert [t.task_ref for t in load_tasks(config, "heldout")] == refs
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump([refs[5], refs[3]]))
    config.pool = str(tmp_path / "pool.yaml")
    assert [t.task_ref for t in load_tasks(config, "candidate")] == [refs[5], refs[3]]
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump([refs[1]]))
    with pytest.raises(ConfigError, match="is excluded"):
        load_tasks(config, "candidate")


@pytest.mark.parametrize(
    ("config", "split", "words"),
    [
        (TasksConfig(), "test", "split='test' is unknown"),
        (TasksConfig(domains=["museum"]), "candidate", "'museum' does not exist"),
        (TasksConfig(size="tiny"), "candidate", "tasks.size='tiny'"),
        (TasksConfig(source="/no/such.jsonl"), "candidate", "no such file"),
        (TasksConfig(exclude=["/no/list.txt"]), "candidate", "no such file of task_refs"),
        (TasksConfig(pool="/no/list.yaml"), "candidate", "no such file of task_refs"),
    ],
)
def test_a_bad_configuration_is_one_clear_line(config: TasksConfig, split: str, words: str) -> None:
    config.per_template = 1
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        load_tasks(config, split)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- ThinkingBox formats

MODULE = '''
"""Ordinary module docstring."""
from somewhere import validate_database

"""!
scenario: shop_v1
tags: ["domain: Shop"]
"""

def helper(x):
    raise SystemExit("never run")

def test_case_1(x, judge):
    """!
    query: "Where is \\\\"order 5\\\\"?"
    user_context: |-
      - Name: Ada
    init:
      shop_v1:
        data_patch: {orders: [{id: '5', total: 33.0}], notes: []}
        golden_test_case:
          tool_interactions:
          - {tool: close, parameters: {id: '5'}}
        rubrics_yesno: ["Is it polite? (Yes = good, No = bad)"]
    """
    validate_database(x)
    validate_rubrics_yesno(x, judge)

def test_case_2(x):
    """!
    query: Second
    scenario: shop_v2
    """
    validate_database(x)
'''


def dataset(tmp_path: Path, module: str = MODULE) -> Path:
    folder = tmp_path / "dataset" / "test_case" / "shop"
    folder.mkdir(parents=True)
    (folder / "shop_group1.py").write_text(module)
    (folder / "conftest.py").write_text("raise SystemExit")
    return tmp_path / "dataset"


def test_a_dataset_folder_is_read_without_running_it(tmp_path: Path) -> None:
    first, second = read_source(dataset(tmp_path))
    assert first.task_ref == "shop_group1.py:test_case_1"
    assert first.public.query == 'Where is "order 5"?'
    assert (first.public.domain, first.public.scenario_id) == ("Shop", "shop_v1")
    assert first.public.user_context == {"text": "- Name: Ada"}
    assert first.public.initial_state_patch == {"orders": [{"id": "5", "total": 33.0}], "notes": []}
    assert first.grading.expected_tool_interactions == (ToolInteraction("close", {"id": "5"}),)
    assert first.grading.rubrics == ("Is it polite? (Yes = good, No = bad)",)
    assert (second.public.scenario_id, second.public.query) == ("shop_v2", "Second")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("    validate_rubrics_yesno(x, judge)", "    import os", "cannot be graded from data"),
        ("    validate_rubrics_yesno(x, judge)", "    exec('1')", "cannot be graded from data"),
        ("scenario: shop_v1", "colour: red", "field 'colour' is not supported"),
        ("scenario: shop_v1", "tags: []", "scenario and query must be text"),
        ("query: Second", "history: [x]", "field 'history' is not supported"),
        ("query: Second", "query: [", "YAML cannot be read"),
        ("def helper(x):", "def helper(x:", "not Python"),
        ("query: Second", "query: x\n    init: {a: {}, b: {}}", "init must name one server"),
    ],
)
def test_a_test_case_that_data_cannot_say_is_refused_by_name(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        read_source(dataset(tmp_path, MODULE.replace(old, new)))
    assert "shop_group1.py" in str(caught.value)


def test_dumped_tests_are_the_tasks_of_the_folder(tmp_path: Path) -> None:
    world = {
        "data_patch": {"orders": [{"id": "5", "total": 33.0}], "notes": []},
        "golden_test_case": {"tool_interactions": [{"tool": "close", "parameters": {"id": "5"}}]},
        "rubrics_yesno": ["Is it polite? (Yes = good, No = bad)"],
    }
    row = {
        "uid": "shop_group1.py:test_case_1",
        "agent": "think",
        "scenario": "shop_v1",
        "query": 'Where is "order 5"?',
        "test_code": MODULE,
        "user_context": "- Name: Ada",
        "init": {"shop_v1": world},
        "tags": {"domain": "Shop"},
        "metadata": {},
    }
    path = tmp_path / "dump.jsonl"
    path.write_bytes(orjson.dumps(row) + b"\n")
    assert read_source(path) == read_source(dataset(tmp_path))[:1]
    path.write_bytes(orjson.dumps({**row, "uid": "shop_group1.py:test_case_9"}))
    with pytest.raises(ConfigError, match="no function 'test_case_9'"):
        read_source(path)
