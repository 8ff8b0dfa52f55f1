"""The served engine's process: awaited with a deadline, ended with all it started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tbrl.config import EngineConfig, ModelConfig, TopologyConfig
from tbrl.errors import BackendFailure, ConfigError
from tbrl.serving.backend import Backend, server_command
from tbrl.serving.server import api_key

NOWHERE = "http://127.0.0.1:9"
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
child.wait()
"""


def start(code: str, tmp_path: Path) -> Backend:
    return Backend([sys.executable, "-u", "-c", code], NOWHERE, {}, tmp_path / "log")


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.seconds += seconds


def runs(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_server_that_ends_while_starting_is_reported_with_its_last_line(tmp_path: Path) -> None:
    backend = start("print('loading'); raise SystemExit('no such model')", tmp_path)
    with backend, pytest.raises(BackendFailure, match=r"ended with code 1.*no such model"):
        backend.wait_ready(60)


def test_server_that_never_answers_meets_its_deadline(tmp_path: Path) -> None:
    clock = Clock()
    with start("import signal; signal.pause()", tmp_path) as backend:
        with pytest.raises(BackendFailure, match="did not answer in 30 s"):
            backend.wait_ready(30, clock.now, clock.pause)
        assert backend.alive
    assert clock.seconds >= 30 and not backend.alive


def test_stopping_ends_what_the_server_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    backend = start(PARENT, tmp_path)
    while not log.read_text().strip():
        os.sched_yield()
    child = int(log.read_text())
    assert runs(child)
    backend.stop()
    backend.stop()
    assert not backend.alive and not runs(child)


def test_command_sizes_the_cache_and_never_cuts_a_prefill() -> None:
    cpu = server_command(
        "/m", "policy", 8001, ModelConfig(), EngineConfig(kv_cache_mib=3), TopologyConfig()
    )
    assert cpu[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert {"--kv-cache-memory-bytes=3145728", "--no-enable-chunked-prefill"} <= set(cpu)
    assert {"--host=127.0.0.1", "--port=8001", "--dtype=float32", "--enforce-eager"} <= set(cpu)
    gpu = server_command("/m", "p", 1, ModelConfig(), EngineConfig(), TopologyConfig(device="cuda"))
    assert "--gpu-memory-utilization=0.8" in gpu
    assert not any("kv-cache-memory" in option for option in gpu)


def test_api_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVE_KEY", "s3")
    assert api_key("SERVE_KEY") == "s3" and api_key("") == ""
    monkeypatch.setenv("SERVE_KEY", "")
    with pytest.raises(ConfigError, match=r"serve\.api_key_env=SERVE_KEY.*empty"):
        api_key("SERVE_KEY")
