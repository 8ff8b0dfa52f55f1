"""A run says what it was made of, and never says a secret."""

import gzip
import subprocess

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tbrl.records.provenance import (
    describe_start,
    git_revision,
    model_hashes,
    read_starts,
    record_start,
    record_tasks,
    task_set_hash,
)
from tbrl.records.run_dir import RunDir
from tbrl.records.secrets import Leak, find_leaks
from tbrl.types import GradingSpec, PublicTask, Task, ToolInteraction

SECRET = "sk-planted-41f7"


def task(ref: str, argument: str = "a") -> Task:
    public = PublicTask(ref, "rental", "rental/compact", "hello", {}, {}, "return")
    return Task(public, GradingSpec(ref, (ToolInteraction("find", {"id": argument}),)))


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_bytes(b"tokens")
    (folder / "config.json").write_bytes(b"{}")
    return folder


def start_of(model, **changes):
    arguments = {
        "stage": "train",
        "resumed": False,
        "models": {"policy": model},
        "exclusion_files": [],
        "topology": {"name": "cpu2"},
    }
    return describe_start(**{**arguments, **changes})


def test_each_start_is_appended_with_versions_and_hashes(tmp_path, model):
    run = RunDir.create(tmp_path, "r")
    exclusions = tmp_path / "exclude.txt"
    exclusions.write_text("b\n")
    record_start(run, start_of(model))
    record_start(run, start_of(model, resumed=True, exclusion_files=[exclusions]))
    record_tasks(run, "candidate", [task("a"), task("b")])
    first, second = read_starts(run)
    assert [first["task_sets"], list(second["task_sets"])] == [{}, ["candidate"]]
    assert [first["resumed"], second["resumed"]] == [False, True]
    assert first["packages"]["numpy"] == np.__version__
    assert first["models"]["policy"]["files"].keys() == {
        "model.safetensors",
        "tokenizer.json",
        "config.json",
    }
    assert len(second["exclusions"]["exclude.txt"]) == 64
    assert first["source_sha256"] == second["source_sha256"]


def test_weights_and_tokenizer_have_hashes_of_their_own(model):
    before = model_hashes(model)
    (model / "tokenizer.json").write_bytes(b"Tokens")
    after = model_hashes(model)
    assert after["weights"] == before["weights"]
    assert after["tokenizer"] != before["tokenizer"]


def test_the_task_set_hash_ignores_order_and_sees_every_change():
    assert task_set_hash([task("a"), task("b")]) == task_set_hash([task("b"), task("a")])
    assert task_set_hash([task("a")]) != task_set_hash([task("a", "x")])
    assert task_set_hash([task("a")])["tasks"] == 1


def test_a_changed_checkout_is_marked(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert git_revision(tmp_path) == ""
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "a")
    assert git_revision(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "a").write_text("2")
    assert git_revision(tmp_path) == git("rev-parse", "HEAD") + "+changes"


def test_no_environment_value_host_or_path_reaches_the_provenance(tmp_path, model, monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", SECRET)
    run = RunDir.create(tmp_path, "r")
    record_start(run, start_of(model))
    assert find_leaks(run.root, {"JUDGE_API_KEY": SECRET}) == []
    assert str(tmp_path) not in run.provenance.read_text()
    assert orjson.loads(run.provenance.read_bytes())[0]["models"]


def test_a_planted_secret_is_found_in_every_kind_of_file(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "config.yaml").write_text(f"key: {SECRET}\n")
    (tmp_path / "log.gz").write_bytes(gzip.compress(f"x {SECRET}".encode()))
    table = pa.table({"turns": [[{"text": f"the key is {SECRET}."}]], "n": [1]})
    pq.write_table(table, tmp_path / "step.parquet", compression="zstd")
    (tmp_path / "clean.json").write_text("{}")
    (tmp_path / "empty").write_text("")
    names = ["deep/config.yaml", "log.gz", "step.parquet"]
    assert find_leaks(tmp_path, {"KEY": SECRET, "NONE": "abc"}) == [
        Leak(tmp_path / name, "KEY") for name in names
    ]
