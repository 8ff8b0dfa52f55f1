"""Results rows, and files that are not what they should be: one clear line each."""

import tempfile
from pathlib import Path

import orjson
import pytest
from evaluation_helpers import AGENT_USED, LABELS, episode_of, scored
from hypothesis import given, settings
from hypothesis import strategies as st

from tbrl.errors import ConfigError
from tbrl.evaluation.aggregate import aggregate
from tbrl.evaluation.results import read_rows, row_of
from tbrl.records.jsonl import JsonlWriter
from tbrl.types import Failed
from tbrl.usage import RoleUsage

COMMON_FINISH_REASONS = {
    *("done", "end_turn_tool", "agent_error", "agent_limit"),
    *("user_limit", "user_done", "no_user_llm", "skipped"),
}


def row(task="d/refund/0", attempt=0, passed=True, policy="w1", version=0, **outcome):
    episode = episode_of(task, scored(passed, **outcome), version)
    return row_of(episode, attempt, LABELS[task], policy)


def file_of(tmp_path, rows, raw=b""):
    path = tmp_path / "results.jsonl"
    with JsonlWriter(path) as writer:
        for each in rows:
            writer.write(each)
    with path.open("ab") as file:
        file.write(raw)
    return path


def complaint(path):
    with pytest.raises(ConfigError) as caught:
        list(read_rows(path))
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"{path}:")
    return message


def test_a_row_comes_back_as_it_was(tmp_path):
    path = file_of(tmp_path, [row(attempt=3, passed=False, attribution="wrong_value")])
    (back,) = read_rows(path)
    assert (back.uid, back.attempt, back.passed, back.policy) == ("d/refund/0", 3, False, "w1@0")
    assert back.labels == LABELS["d/refund/0"]
    assert back.raw["tbrl"]["attribution"] == "wrong_value"
    assert RoleUsage.from_json(back.raw["tbrl"]["tokens"]) == RoleUsage(agent=AGENT_USED)
    assert [used["input_tokens_details"] for used in back.raw["usage"]] == [
        {"cached_tokens": 32},
        {"cached_tokens": 64},
    ]


@pytest.mark.parametrize("reason", ["done", "length", "agent_limit", "user_limit", "user_done"])
def test_finish_reasons_stay_within_the_common_vocabulary(reason):
    made = row_of(
        episode_of("d/refund/0", scored(True), finish_reason=reason), 0, LABELS["d/refund/0"], "w"
    )
    assert made["finish_reason"] in COMMON_FINISH_REASONS
    assert made["tbrl"]["finish_reason"] == reason


def test_messages_keep_thoughts_calls_and_replies_apart():
    kinds = [(m["T"], m.get("metadata", {}).get("tag")) for m in row()["messages"]]
    assert kinds == [
        ("Text", "text"),
        ("Text", "text"),
        ("Text", "think"),
        ("ParallelToolCall", None),
        ("ToolResponse", None),
        ("Text", "text"),
    ]


def test_a_failed_episode_has_no_row():
    with pytest.raises(TypeError, match="no results row"):
        row_of(episode_of("d/refund/0", Failed("user", "x", "y")), 0, LABELS["d/refund/0"], "w")


def test_a_minimal_foreign_row_is_read(tmp_path):
    foreign = {"uid": "f.py:t", "messages": [], "test_result": {"result": True, "reward": 1.0}}
    rows = [{**foreign, "metadata": {"repetition": r}} for r in range(2)]
    assert aggregate(file_of(tmp_path, rows)).attempts().passed.tolist() == [[True, True]]


def test_a_truncated_file_is_named(tmp_path):
    path = file_of(tmp_path, [row(), row(attempt=1)], orjson.dumps(row(attempt=2))[:-30])
    assert complaint(path).startswith(f"{path}:3: truncated")


def test_a_duplicate_is_named_with_both_lines(tmp_path):
    path = file_of(tmp_path, [row(), row(attempt=1), row()])
    assert "results.jsonl:3: duplicate of line 1: d/refund/0 attempt 0" in complaint(path)


@pytest.mark.parametrize("other", [{"policy": "w2"}, {"version": 7}])
def test_mixed_versions_are_named(tmp_path, other):
    path = file_of(tmp_path, [row(), row(attempt=1, **other)])
    assert ":2: mixed versions" in complaint(path)


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    raw = orjson.dumps(row(attempt=1)).replace(b"Policy", b"Pol\xefcy") + b"\n"
    path = file_of(tmp_path, [row()], raw)
    assert ":2: not UTF-8" in complaint(path) and "0xef" in complaint(path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"PK\x03\x04 a zip file\n", "not JSON"),
        (b"[1, 2]\n", "must be an object, this is a list"),
        (b"\n", "empty line"),
        (b'{"id": 3}\n', "uid must be a str, this is missing"),
        (b'{"uid": "a", "metadata": {"repetition": 0}}\n', "test_result is missing"),
        (b'{"uid": "a", "metadata": {"repetition": 0}, "test_result": 1}\n', "this is a int"),
        (
            b'{"uid": "a", "metadata": {"repetition": 0}, "test_result": {"result": "yes"}}\n',
            "test_result.result must be a bool, this is a str",
        ),
        (b'{"uid": "a", "test_result": {"result": true}}\n', "metadata.repetition must be"),
        (b'{"uid": "a", "tbrl": {"format": 9}}\n', "tbrl.format is 9, this version reads 2"),
    ],
)
def test_a_foreign_file_is_named(tmp_path, raw, message):
    assert message in complaint(file_of(tmp_path, [], raw))


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no such results file; run stage=evaluate"):
        list(read_rows(tmp_path / "none.jsonl"))


def test_system_errors_in_a_foreign_file_forbid_the_headline(tmp_path):
    good = {"uid": "t", "metadata": {"repetition": 0}, "test_result": {"result": True}}
    bad = {"uid": "t", "metadata": {"repetition": 1}, "is_system_error": True}
    judge = {
        "uid": "t",
        "metadata": {"repetition": 2},
        "test_result": {"result": False, "is_system_error": True},
    }
    path = file_of(tmp_path, [good, bad, judge])
    with pytest.raises(ConfigError, match=r"1 of 3 attempts scored, 2 failed .*no headline"):
        aggregate(path).attempts()


def test_rows_nobody_asked_for_forbid_the_headline(tmp_path):
    path = file_of(tmp_path, [row(), row("d/refund/1")])
    with pytest.raises(ConfigError, match=r"1 unexpected \(e.g. d/refund/1 attempt 0\)"):
        aggregate(path).attempts(["d/refund/0"], 1)


def test_a_cut_anywhere_is_an_error_or_whole_rows(tmp_path):
    content = file_of(tmp_path, [row(attempt=a) for a in range(3)]).read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    path = tmp_path / "cut.jsonl"
    for cut in {*range(0, len(content), 37), *ends, *(end - 1 for end in ends)}:
        path.write_bytes(content[:cut])
        if cut in ends or cut + 1 in ends or cut == 0:
            assert len(list(read_rows(path))) == sum(end <= cut + 1 for end in ends)
        else:
            assert ": truncated" in complaint(path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_byte_that_is_no_text_is_an_error_wherever_it_is(data):
    content = orjson.dumps(row()) + b"\n"
    place = data.draw(st.integers(0, len(content) - 2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.jsonl"
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        assert ":1: not UTF-8" in complaint(path)
