"""Cleanup ends what a killed driver left, and nothing that still has an owner."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tbrl.actors.leftovers import Process, alive, end, leftovers, read_processes, remove_files


def process(pid, parent, command, ours=True):
    return Process(pid, parent, command, ours)


LIVE = [
    process(10, 1, "bash", ours=False),
    process(11, 10, "python -m tbrl.launch"),
    process(12, 11, "/v/ray/core/src/ray/raylet/raylet --x"),
    process(13, 12, "ray::RolloutWorker.run"),
    process(14, 13, "VLLM::EngineCore"),
]
DEAD = [
    process(22, 1, "/v/ray/core/src/ray/raylet/raylet --x"),
    process(23, 22, "ray::RolloutWorker.run"),
    process(24, 23, "VLLM::EngineCore"),
    process(25, 23, "external-mcp-server --stdio", ours=False),
    process(26, 7, "/v/ray/core/src/ray/gcs/gcs_server --y"),
    process(7, 1, "/sbin/reaper", ours=False),
]


def test_workers_of_a_dead_driver_go_with_everything_below_them():
    assert {p.pid for p in leftovers(LIVE + DEAD)} == {22, 23, 24, 25, 26}


def test_workers_of_a_living_driver_or_another_environment_stay():
    other = [process(30, 1, "/w/ray/raylet/raylet", ours=False), process(31, 30, "ray::X", False)]
    assert leftovers(LIVE + other) == []


@pytest.mark.parametrize(
    "command", ["python -m pytest", "python train.py", "python -m tbrl.launch"]
)
def test_a_driver_is_never_a_leftover(command):
    assert leftovers([process(11, 1, command)]) == []


def test_files_stay_while_a_driver_or_worker_of_any_checkout_lives():
    idle = [process(1, 0, "init", False), process(2, 1, "bash", False)]
    assert not alive(idle)
    assert alive([*idle, process(3, 1, "python -m tbrl.launch run=x", False)])
    assert alive([*idle, process(3, 1, "/w/ray/core/src/ray/raylet/raylet --x", False)])
    assert alive([*idle, process(3, 2, "VLLM::EngineCore", False)])


@pytest.fixture
def environment(tmp_path):
    """A folder that plays the virtual environment: a shell as driver, `sleep` as Ray worker."""
    for name, source in (("driver", "bash"), ("raylet", "sleep")):
        shutil.copy(os.path.realpath(str(shutil.which(source))), tmp_path / name)
    return tmp_path


def start(environment):
    driver = subprocess.Popen(
        [environment / "driver", "-c", '"$WORKER" 60 & echo $!; wait'],
        env={**os.environ, "WORKER": str(environment / "raylet")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    return driver, int(driver.stdout.readline())


def test_a_real_orphan_is_ended_and_an_owned_worker_is_not(environment):
    dead, orphan = start(environment)
    alive, owned = start(environment)
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        found = leftovers(read_processes(environment))
        assert [p.pid for p in found] == [orphan]
        end(found, environment)
        left = {p.pid for p in read_processes(environment) if p.ours}
        assert left == {alive.pid, owned}
    finally:
        os.kill(owned, signal.SIGKILL)
        alive.kill()
        alive.wait()


def test_only_our_files_are_removed(tmp_path):
    shm, temporary = tmp_path / "shm", tmp_path / "tmp"
    (temporary / "tbrl-ray" / "session").mkdir(parents=True)
    shm.mkdir()
    for name in ("tbrl-run-0", "tbrl-run-1.tmp", "other"):
        (shm / name).write_bytes(b"x")
    assert len(remove_files(shm, temporary)) == 3
    assert [p.name for p in Path(shm).iterdir()] == ["other"]
    assert list(temporary.iterdir()) == []
