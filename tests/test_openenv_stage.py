"""stage=openenv as a user starts it, and what it says to wrong settings."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("openenv", reason="openenv-core is not installed: pip install 'tbrl[openenv]'")

from tbrl.launch import main
from tbrl.serving.openenv.client import BusinessEnv


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("openenv.port=70000", "openenv.port=70000: must be 0 to 65535"),
        ("openenv.split=test", "openenv.split='test' is unknown; choose one of candidate, heldout"),
        ("openenv.host=0.0.0.0", "openenv.host=0.0.0.0: other machines reach it"),
        ("openenv.api_key_env=TBRL_UNSET", "openenv.api_key_env=TBRL_UNSET: that environment"),
        ("sandbox.session_lease_s=0", "sandbox.session_lease_s=0: must be above 0"),
        ("sandbox.max_sessions=0", "sandbox.max_sessions=0: must be at least 1"),
        ("tasks.domains=[none]", "none"),
    ],
)
def test_wrong_settings_are_one_line(
    override: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stage=openenv", "openenv.port=0", override]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and said in lines[0]


def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["stage=openenv", f"openenv.port={port}"]) == 2
    assert f"openenv.port={port} on openenv.host=127.0.0.1" in capsys.readouterr().err


@pytest.fixture
def stage() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server's process and the address that it prints."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tbrl.launch", "stage=openenv", "openenv.port=0"),
            *("tasks.domains=[rental]", "tasks.per_template=1", "openenv.api_key_env=DOOR"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DOOR": "open sesame"},
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    yield process, next(line for line in lines if line.startswith("url")).split()[1]
    process.kill()
    process.wait()


def test_the_stage_serves_and_ends_in_good_order(
    stage: tuple[subprocess.Popen[str], str],
) -> None:
    process, url = stage
    with BusinessEnv(url, "open sesame").sync() as env:
        assert env.reset(seed=0).observation.task_ref.startswith("embedded/rental/compact/")
        assert env.say("<DONE>").reward in (0.0, 1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_a_killed_server_leaves_no_process_behind(
    stage: tuple[subprocess.Popen[str], str],
) -> None:
    process, _ = stage
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.kill()
    deadline = time.monotonic() + 20
    while any(alive(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
