"""What a run leaves on disk comes back exactly, and a changed byte is found."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbrl.errors import ConfigError, InvariantError
from tbrl.records.episode_rows import content_digest, episode_row
from tbrl.records.episodes import EpisodeWriter, file_sha256, read_groups
from tbrl.records.jsonl import JsonlWriter, read_jsonl
from tbrl.records.receipts import SlotReceipt, StepReceipt
from tbrl.records.run_dir import RunDir, write_text
from tbrl.types import (
    Episode,
    EpisodeGroup,
    EpisodeKey,
    Failed,
    RowChange,
    Sampling,
    Scored,
    ToolCall,
    Turn,
)
from tbrl.usage import RoleUsage, Usage

text = st.text(max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
changes = st.lists(
    st.builds(RowChange, text, text, st.sampled_from(["inserted", "updated"]), text, text, text),
    max_size=2,
).map(tuple)
calls = st.lists(
    st.builds(ToolCall, text, st.dictionaries(text, json_values, max_size=2)), max_size=2
)
counts = st.integers(0, 2**40)
usages = st.builds(Usage, counts, counts, counts, counts, counts, counts)
turns = st.builds(
    Turn,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    text=text,
    reasoning=text,
    tool_calls=calls.map(tuple),
    is_error=st.booleans(),
    start=st.integers(0, 100),
    end=st.integers(0, 100),
    seed=st.integers(-1, 2**63 - 1),
    usage=st.none() | usages,
)
outcomes = st.builds(
    Scored,
    reward=st.sampled_from([0.0, 1.0]),
    state_equal=st.booleans(),
    rubrics_passed=st.lists(st.booleans(), max_size=2).map(tuple),
    attribution=text,
    differences=changes,
) | st.builds(Failed, st.just("backend"), text, text, st.integers(0, 2**40))


@st.composite
def episodes(draw, rollout=0):
    length = draw(st.integers(0, 6))
    int32 = st.integers(-(2**31), 2**31 - 1)
    ids = draw(st.lists(int32, min_size=length, max_size=length))
    mask = draw(st.lists(st.booleans(), min_size=length, max_size=length))
    logprobs = draw(
        st.lists(st.floats(width=32, allow_nan=False), min_size=length, max_size=length)
    )
    return Episode(
        key=EpisodeKey(3, 1, 2, rollout),
        task_ref="rental/return/7",
        domain="rental",
        template="return",
        policy_version=2,
        prompt_ids=np.array(draw(st.lists(int32, max_size=4)), np.int32),
        response_ids=np.array(ids, np.int32),
        action_mask=np.array(mask, bool),
        behaviour_logprobs=np.array(logprobs, np.float32),
        turns=tuple(draw(st.lists(turns, max_size=3))),
        finish_reason="done",
        outcome=draw(outcomes),
        sampling=Sampling(draw(st.floats(0.1, 2)), 20, 0.95),
        effects=draw(changes),
        state_hash="ab12",
        tries=draw(st.integers(1, 3)),
        malformed_turns=1,
        seconds=draw(st.dictionaries(text, st.floats(0, 1e3), max_size=3)),
        segments=tuple(draw(st.lists(st.integers(0, 50), max_size=2))),
        usage=draw(st.builds(RoleUsage, usages, usages, usages)),
    )


def group_of(*members: Episode) -> EpisodeGroup:
    return EpisodeGroup(3, 1, 2, "rental/return/7", members)


def identical(left: Episode, right: Episode) -> bool:
    for name in ("prompt_ids", "response_ids", "action_mask", "behaviour_logprobs"):
        a, b = getattr(left, name), getattr(right, name)
        if a.dtype != b.dtype or a.tobytes() != b.tobytes():
            return False
    empty = np.zeros(0)
    blank = {n: empty for n in ("prompt_ids", "response_ids", "action_mask", "behaviour_logprobs")}
    return repr(replace(left, **blank)) == repr(replace(right, **blank))


def plain_episode(rollout: int = 0, reward: float = 1.0) -> Episode:
    turn = Turn("assistant", "ok", "think", (ToolCall("find", {"id": 2**70}),), seed=2**63 - 1)
    return Episode(
        key=EpisodeKey(3, 1, 2, rollout),
        task_ref="rental/return/7",
        domain="rental",
        template="return",
        policy_version=2,
        prompt_ids=np.arange(50, dtype=np.int32),
        response_ids=np.arange(40, dtype=np.int32),
        action_mask=np.arange(40) % 3 > 0,
        behaviour_logprobs=-np.arange(40, dtype=np.float32) / 7,
        turns=(turn,) * 4,
        finish_reason="done",
        outcome=Scored(reward, bool(reward)),
        sampling=Sampling(1.0, 20, 0.95),
    )


# ------------------------------------------------------------ episode files


@settings(max_examples=40, deadline=None)
@given(first=st.lists(episodes(), min_size=1, max_size=3), second=episodes())
def test_episodes_come_back_exactly(tmp_path_factory, first, second):
    path = tmp_path_factory.mktemp("e") / "step-000003.parquet"
    written = [(group_of(*first), "trained"), (group_of(second), "zero_variance")]
    with EpisodeWriter(path) as writer:
        digests = [writer.append(group, fate) for group, fate in written]
    stored = list(read_groups(path))
    assert [(s.group.task_ref, s.fate) for s in stored] == [(g.task_ref, f) for g, f in written]
    for (group, _), back in zip(written, stored, strict=True):
        assert len(group.episodes) == len(back.group.episodes)
        assert all(map(identical, group.episodes, back.group.episodes))
    assert [s.digest for s in stored] == digests
    assert file_sha256(path) == writer.sha256


def test_every_flipped_byte_of_the_file_is_found(tmp_path):
    """By a page checksum, a content digest, or at the latest by the hash in the receipt."""
    path = tmp_path / "step-000003.parquet"
    with EpisodeWriter(path) as writer:
        writer.append(group_of(plain_episode(0), plain_episode(1, 0.0)), "trained")
    content = path.read_bytes()
    silent = 0
    for position in range(0, len(content), 97):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :]
        )
        assert file_sha256(path) != writer.sha256
        try:
            list(read_groups(path))
            silent += 1
        except InvariantError:
            pass
    assert silent < len(content) / 97  # statistics and names in the footer: only the hash sees them


@pytest.mark.parametrize("column", ["response_ids", "behaviour_logprobs", "state_hash", "seconds"])
def test_a_value_changed_behind_the_digest_is_found(tmp_path, column):
    """A consistent parquet file with another content, as an editor of tables would write it."""
    path = tmp_path / "step-000003.parquet"
    with EpisodeWriter(path) as writer:
        writer.append(group_of(plain_episode()), "trained")
    table = pq.read_table(path)
    row = table.to_pylist()[0]
    row[column] = {
        "response_ids": [*row["response_ids"][:-1], 8],
        "behaviour_logprobs": [-1e-7, *row["behaviour_logprobs"][1:]],
        "state_hash": "x",
        "seconds": [("grade", 0.5)],
    }[column]
    pq.write_table(type(table).from_pylist([row], schema=table.schema), path)
    with pytest.raises(InvariantError, match=r"episode 3/1/2/0 .* is not the one recorded"):
        list(read_groups(path))


@given(episodes(), st.sampled_from(["trained", "failed"]))
@settings(max_examples=30, deadline=None)
def test_the_digest_covers_every_column(episode, fate):
    row = episode_row(episode, fate)
    names = set(row) - {"digest"}
    changed = {
        name: content_digest({**row, name: np.append(row[name], 1)})
        if isinstance(row[name], np.ndarray)
        else content_digest({**row, name: [row[name], 1]})
        for name in names
    }
    assert len({row["digest"], *changed.values()}) == len(names) + 1


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "step-000003.parquet"
    with EpisodeWriter(path) as writer:
        writer.append(group_of(plain_episode()), "trained")
    with pytest.raises(RuntimeError), EpisodeWriter(path) as again:
        again.append(group_of(plain_episode(5)), "trained")
        raise RuntimeError
    assert file_sha256(path) == writer.sha256
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


# ------------------------------------------------------------ JSON lines


def test_rows_are_on_disk_when_write_returns_and_nan_is_missing(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonlWriter(path)
    writer.write({"step": 1, "reward": float("nan"), "lengths": np.array([1, 2])})
    assert read_jsonl(path) == [{"step": 1, "reward": None, "lengths": [1, 2]}]
    writer.close()


def test_a_torn_last_line_is_dropped_and_a_broken_one_before_it_is_reported(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2')
    assert read_jsonl(path) == [{"step": 1}]
    with JsonlWriter(path) as writer:
        writer.write({"step": 2})
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]
    path.write_bytes(b'{"step":1}\n{"step\n{"step":3}\n')
    with pytest.raises(InvariantError, match="line 2"):
        read_jsonl(path)


# ------------------------------------------------------------ the folder


def test_an_existing_run_is_never_overwritten(tmp_path):
    run = RunDir.create(tmp_path, "first")
    write_text(run.config, "stage: train\n")
    with pytest.raises(ConfigError, match=r"run=first: .* resume=true"):
        RunDir.create(tmp_path, "first")
    assert RunDir.existing(tmp_path, "first").root == run.root
    with pytest.raises(ConfigError, match="holds no run"):
        RunDir.existing(tmp_path, "second")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden"])
def test_a_run_name_stays_inside_the_runs_folder(tmp_path, name):
    with pytest.raises(ConfigError, match="folder name"):
        RunDir.create(tmp_path, name)


def test_a_resumed_run_writes_repeated_steps_once(tmp_path):
    run = RunDir.create(tmp_path, "r")
    for path in (run.metrics, run.ledger, run.receipts):
        with JsonlWriter(path) as writer:
            for step in (1, 2, 3, 4):
                writer.write({"step": step})
            writer.write({"event": "note"})
    for step in (1, 2, 3, 4):
        run.episodes(step).write_bytes(b"x")
    run.rewind(3)
    rows = [{"step": 1}, {"step": 2}, {"event": "note"}]
    assert [read_jsonl(p) for p in (run.metrics, run.ledger, run.receipts)] == [rows] * 3
    assert run.recorded_steps() == [1, 2]


# ------------------------------------------------------------ receipts

RECEIPT = StepReceipt(
    step=4,
    seed_root=0,
    policy_version_before=3,
    policy_version_after=4,
    parameter_digest_before="aa",
    parameter_digest_after="bb",
    engine_versions={"0": 4, "1": 4},
    engine_digests={"0": "bb", "1": "bb"},
    cache_reset=True,
    action_tokens=1200,
    episodes=8,
    groups=1,
    slots=(SlotReceipt(0, 2, 36, "rental/return/7", "cc", (1.0, 0.0)),),
    no_op=False,
    probe_logprob_gap=None,
    episodes_sha256="dd",
)
NO_OP = replace(
    RECEIPT,
    no_op=True,
    policy_version_after=3,
    parameter_digest_after="aa",
    engine_versions={"0": 3},
    engine_digests={"0": "aa"},
    cache_reset=False,
)


def test_receipts_come_back_exactly():
    for receipt in (RECEIPT, NO_OP):
        receipt.verify()
        assert StepReceipt.from_json(json.loads(json.dumps(receipt.to_json()))) == receipt


@pytest.mark.parametrize(
    ("receipt", "message"),
    [
        (replace(RECEIPT, engine_versions={"0": 4, "1": 3}), "engine 1 serves version 3"),
        (replace(RECEIPT, engine_digests={"0": "bb", "1": "aa"}), "engine 1 echoes digest aa"),
        (replace(RECEIPT, cache_reset=False), "prefix cache"),
        (replace(RECEIPT, policy_version_after=5), "policy version 5"),
        (replace(NO_OP, parameter_digest_after="bb"), "without signal changed"),
        (replace(NO_OP, policy_version_after=4), "policy version 4"),
        (replace(RECEIPT, groups=2), "2 groups, 1 slots"),
    ],
)
def test_a_receipt_that_does_not_hold_stops_the_run(receipt, message):
    with pytest.raises(InvariantError, match=message):
        receipt.verify()
