"""A run says what it was made of, and never says a secret."""

import gzip
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tbrl.config import Config
from tbrl.errors import InvariantError
from tbrl.launch import main
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
from tbrl.stages.common import check_secrets
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
    (tmp_path / "log.gz").write_bytes(gzip.compress(f"x {SECRET} ".encode() * 99))
    said = [[{"text": f"{n} the key is {SECRET}."}] for n in range(99)]
    options = {"compression": "gzip", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"turns": said}), tmp_path / "step.parquet", **options)
    for packed in ("log.gz", "step.parquet"):
        assert SECRET.encode() not in (tmp_path / packed).read_bytes(), "only decoding shows it"
    (tmp_path / "clean.json").write_text("{}")
    (tmp_path / "empty").write_text("")
    names = ["deep/config.yaml", "log.gz", "step.parquet"]
    assert find_leaks(tmp_path, {"KEY": SECRET, "NONE": "abc"}) == [
        Leak(tmp_path / name, "KEY") for name in names
    ]


def test_a_run_with_a_key_in_one_of_its_files_is_not_a_success(tmp_path, monkeypatch):
    run = RunDir.create(tmp_path, "r")
    for part in ("user", "judge", "evaluation", "sandbox"):
        config = Config()
        section = getattr(config, part)
        (section if part == "sandbox" else section.endpoint).api_key_env = f"{part.upper()}_KEY"
        monkeypatch.setenv(f"{part.upper()}_KEY", SECRET)
        check_secrets(config, run)
        (run.evaluation / "rows.jsonl").write_text(f'{{"key": "{SECRET}"}}\n')
        with pytest.raises(InvariantError, match=f"{part.upper()}_KEY") as caught:
            check_secrets(config, run)
        assert SECRET not in str(caught.value)
        (run.evaluation / "rows.jsonl").unlink()


class Talkative(BaseHTTPRequestHandler):
    """A chat endpoint that says yes, but first refuses a few requests and repeats their key."""

    keys: tuple[str, ...] = ()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers.get("Authorization", "")
        refused = len(Talkative.keys) < 3
        Talkative.keys += (key,)
        message = {"role": "assistant", "content": "Yes."}
        answer = {"error": f"bad key {key}"} if refused else {"choices": [{"message": message}]}
        body = json.dumps(answer).encode()
        self.send_response(401 if refused else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_no_key_of_an_endpoint_reaches_a_file_or_the_terminal(tmp_path, monkeypatch, capsys):
    """A whole evaluation whose agent and user speak through an endpoint that wants a key."""
    monkeypatch.setenv("PLANTED_API_KEY", SECRET)
    Talkative.keys = ()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Talkative)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    parts = {
        "base_url": f"http://127.0.0.1:{server.server_port}/v1",
        "model": "m",
        "api_key_env": "PLANTED_API_KEY",
    }
    code = main(
        [
            "stage=evaluate",
            f"runs_dir={tmp_path}",
            "run=r",
            "evaluation.policy=chat",
            "evaluation.attempts=1",
            "user.kind=llm",
            *(f"{of}.endpoint.{k}={v}" for of in ("evaluation", "user") for k, v in parts.items()),
            "tasks.domains=[rental]",
            "tasks.heldout_per_template=1",
            "logger.live=false",
        ]
    )
    server.shutdown()
    server.server_close()
    said = capsys.readouterr()
    assert code == 0, said.err
    assert set(Talkative.keys) == {f"Bearer {SECRET}"}
    failures = (tmp_path / "r" / "evaluation" / "evaluation.failures.jsonl").read_text()
    assert failures.count("status 401") == 3
    assert SECRET not in said.out + said.err
    assert find_leaks(tmp_path, {"PLANTED_API_KEY": SECRET}) == []
