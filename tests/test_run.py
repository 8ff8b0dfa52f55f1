"""Whole runs of the real system: real engine, learner, sandbox, MCP and Ray, in real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import orjson
import polars as pl
import pytest
from run_helpers import SMALL, cleanup, kill_when, launch, processes, tokens

from tbrl.records.jsonl import read_jsonl
from tbrl.records.receipts import StepReceipt
from tbrl.records.secrets import find_leaks

STEPS = 4
SECRETS = {"TBRL_PLANTED_KEY": "planted-credential-4711", "SOME_TOKEN": "unnamed-credential-0815"}
NAMED = [f"{part}.endpoint.api_key_env=TBRL_PLANTED_KEY" for part in ("user", "judge")]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def finished(runs: Path) -> Path:
    """A run that nothing disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        done = launch(*SMALL, *NAMED, f"runs_dir={runs}", "run=finished")
    assert done.returncode == 0, done.stderr + done.stdout
    assert not any(value in done.stdout + done.stderr for value in SECRETS.values())
    return runs / "finished"


def receipts(run: Path) -> list[StepReceipt]:
    return [StepReceipt.from_json(row) for row in read_jsonl(run / "receipts.jsonl")]


def what_moved(r: StepReceipt) -> tuple[object, ...]:
    """Version, weights and stream positions after a step."""
    positions = [(s.slot, s.attempt, s.position, s.task_ref, s.rewards) for s in r.slots]
    return r.policy_version_after, r.parameter_digest_after, positions


def test_a_run_leaves_files_that_agree_with_each_other(finished: Path) -> None:
    rows = read_jsonl(finished / "ledger.jsonl")
    assert [row["step"] for row in rows] == list(range(STEPS))
    for row in rows:
        accounts = row["accounts"].values()
        assert sum(a["groups"] for a in accounts) == row["dispatched_groups"]
        assert row["accounts"]["trained"]["groups"] == 2
    for index, receipt in enumerate(receipts(finished)):
        receipt.verify()
        assert receipt.policy_version_after == index + 1
        assert receipt.engine_digests == {"0": receipt.parameter_digest_after}
    metrics = read_jsonl(finished / "metrics.jsonl")
    phases = {"rollout", "reward", "learner", "weight_sync", "idle"}
    assert all(phases <= set(row["seconds"]) for row in metrics)
    # The learner, with the weights that sampled them, gives the tokens the sampler's logprobs.
    assert all(row["mismatch_kl"] < 1e-6 for row in metrics)
    for row in metrics:
        episodes = pl.read_parquet(finished / "episodes" / f"step-{row['step']:06d}.parquet")
        agent = episodes["usage"].struct.field("agent").struct.unnest()
        assert row["prompt_tokens"] == agent["input"].sum()
        assert row["generated_tokens"] == agent["output"].sum()
        assert row["usage"]["agent"]["unknown"] == 0
        # A group shares its prompt, and every turn but the first repeats the one before.
        assert row["cache_hit_share"] == row["cached_tokens"] / row["prompt_tokens"] > 0.3
    page = (finished / "report.html").read_text()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_finished_run_is_not_overwritten(finished: Path) -> None:
    again = launch(*SMALL, f"runs_dir={finished.parent}", "run=finished")
    assert again.returncode == 2
    assert "already exists; continue it with resume=true" in again.stderr


def test_a_recorded_run_replays_equal_sampling_included(finished: Path) -> None:
    done = launch("stage=replay", f"runs_dir={finished.parent}", "run=finished")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{STEPS} steps replayed: all equal" in done.stdout
    assert done.stdout.count("sampling") == STEPS


def test_a_changed_episode_file_is_found(finished: Path) -> None:
    copy = finished.parent / "tampered"
    shutil.copytree(finished, copy)
    path = copy / "episodes" / "step-000001.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    arguments = ("stage=replay", f"runs_dir={copy.parent}", "run=tampered")
    done = launch(*arguments, "replay.sampling=false")
    assert done.returncode == 1
    # Where a trained group is hit, the steps after it cannot be shown equal either.
    assert "steps [1" in done.stderr
    assert "step 0  file            1 compared  equal" in done.stdout
    assert "step 1  file            1 compared  1 DIFFERENCES" in done.stdout


def test_every_recorded_output_is_read_the_same_by_the_serving_stack(finished: Path) -> None:
    done = launch("stage=verify", f"runs_dir={finished.parent}", "run=finished")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences" in done.stdout
    compared = int(done.stdout.split(" well-formed")[0].split()[-1])
    assert compared > 20


def test_killed_and_resumed_equals_the_run_that_nothing_disturbed(
    runs: Path, finished: Path
) -> None:
    killed = runs / "killed"
    arguments = [*SMALL, f"runs_dir={runs}", "run=killed"]

    def third_step_recorded() -> bool:
        path = killed / "ledger.jsonl"
        return path.exists() and len(path.read_bytes().splitlines()) >= 3

    kill_when(third_step_recorded, *arguments)
    assert processes("ray::") == []
    assert processes("VLLM::") == []
    done = launch(*arguments, "resume=true")
    assert done.returncode == 0, done.stderr + done.stdout
    for step in range(STEPS):
        assert tokens(killed, step) == tokens(finished, step)
    assert list(map(what_moved, receipts(killed))) == list(map(what_moved, receipts(finished)))
    assert len(orjson.loads((killed / "provenance.json").read_bytes())) == 2


def test_dying_engines_and_learners_leave_no_trace_in_the_data(runs: Path, finished: Path) -> None:
    """kill -9 of an engine core and then of the learner, in the middle of training."""
    run = runs / "chaos"
    ledger = run / "ledger.jsonl"
    killed: list[str] = []

    def recorded() -> int:
        return len(ledger.read_bytes().splitlines()) if ledger.exists() else 0

    def chaos() -> None:
        for title, after in (("VLLM::EngineCore", 1), ("ray::LearnerRank", 2)):
            while recorded() < after:
                time.sleep(0.05)
            for pid in processes(title):
                os.kill(pid, signal.SIGKILL)
                killed.append(title)

    thread = threading.Thread(target=chaos, daemon=True)
    thread.start()
    done = launch(*SMALL, f"runs_dir={runs}", "run=chaos", timeout_s=500)
    assert done.returncode == 0, done.stderr + done.stdout
    assert set(killed) == {"VLLM::EngineCore", "ray::LearnerRank"}
    for step in range(STEPS):
        assert tokens(run, step) == tokens(finished, step)
    assert receipts(run)[-1].parameter_digest_after == receipts(finished)[-1].parameter_digest_after


def test_other_numbers_of_workers_and_ranks_train_on_the_same_groups(
    runs: Path, finished: Path
) -> None:
    arguments = [
        *SMALL,
        "stage=train",
        f"runs_dir={runs}",
        "run=wide",
        f"tasks.pool={finished / 'curation' / 'selection.yaml'}",
        "topology=cpu2x2",
        "topology.rollout_workers=2",
    ]
    done = launch(*arguments, "algorithm.steps=1", timeout_s=500)
    assert done.returncode == 0, done.stderr + done.stdout
    resumed = launch(*arguments, "algorithm.steps=2", "resume=true", timeout_s=500)
    assert resumed.returncode == 0, resumed.stderr + resumed.stdout
    # Sums of two ranks round as those of one process: even the weights of the second step agree.
    for step in range(2):
        assert tokens(runs / "wide", step) == tokens(finished, step)
    one, two = (read_jsonl(r / "metrics.jsonl")[0] for r in (finished, runs / "wide"))
    for name in ("loss", "grad_norm", "entropy"):
        assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-7)


def test_an_exported_policy_is_refused_where_its_words_would_be_read_differently(
    runs: Path, finished: Path
) -> None:
    out = runs / "exported"
    done = launch("stage=export", f"runs_dir={runs}", "run=finished", f"output={out}")
    assert done.returncode == 0, done.stderr
    record = orjson.loads((out / "tbrl.json").read_bytes())
    assert record["step"] == STEPS
    (out / "tbrl.json").write_bytes(orjson.dumps({**record, "parity": "another"}))
    refused = launch(
        *SMALL, "stage=evaluate", f"runs_dir={runs}", "run=refused", f"model.path={out}"
    )
    assert refused.returncode == 2
    assert "trained under parity hash another" in refused.stderr


def test_interrupted_by_the_user_it_stops_after_the_step_and_says_how_to_go_on(
    runs: Path, finished: Path
) -> None:
    run = runs / "interrupted"
    driver = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tbrl.launch",
            *SMALL,
            "stage=train",
            f"runs_dir={runs}",
            "run=interrupted",
            f"tasks.pool={finished / 'curation' / 'selection.yaml'}",
            "algorithm.steps=1000",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ledger = run / "ledger.jsonl"
    deadline = time.monotonic() + 280
    while not (ledger.exists() and ledger.stat().st_size):
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=120)
    assert driver.returncode == 130
    assert "resume=true" in err
    steps = len(read_jsonl(ledger))
    assert (run / "checkpoints" / f"step-{steps}" / "manifest.json").is_file()


def test_no_secret_of_the_environment_reaches_a_file(
    runs: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`finished` ran with the secret in its environment, named by its configuration."""
    assert find_leaks(finished, SECRETS) == []
    assert "TBRL_PLANTED_KEY" in (finished / "config.yaml").read_text()
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    dry = launch(*SMALL, *NAMED, f"runs_dir={runs}", "run=dry", "dry_run=true")
    assert "TBRL_PLANTED_KEY" in dry.stdout
    assert not any(value in dry.stdout + dry.stderr for value in SECRETS.values())


def teardown_module() -> None:
    cleanup()
