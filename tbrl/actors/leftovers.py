"""What a killed driver leaves behind: worker processes without an owner, shared memory, sessions.

    python -m tbrl.actors.leftovers          (launch/cleanup.sh)

A process is ours when it has a file of this virtual environment mapped (Ray rewrites titles and
Python's executable is a link out of the environment, so neither name nor path would do). It is a
leftover when it is a worker by its command line and no driver is left among its ancestors. A
cluster started by launch/ray_head.sh has no driver above it either, and is ended too.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 5.0
_WORKER = re.compile(
    r"\braylet\b|\bgcs_server\b|/ray/dashboard/|/ray/_private/|/ray/util/|^ray::|"
    r"VLLM::|EngineCore|multiprocessing\.(spawn|resource_tracker|forkserver)|"
    r"-m tbrl\.(sandbox|serving)"
)
_DRIVER = re.compile(r"\btbrl\.launch\b")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this user."""

    pid: int
    parent: int
    command: str
    """Command line, blanks between arguments."""
    ours: bool
    """Has a file of the virtual environment mapped."""


def read_processes(environment: Path, proc: Path = Path("/proc")) -> list[Process]:
    """All of this user's processes. One that ends while it is read is left out."""
    mark = f" {environment}/"
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != os.getuid():
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            ours = mark in (entry / "maps").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        found.append(Process(int(entry.name), parent, command.strip(), ours))
    return found


def leftovers(processes: Iterable[Process]) -> list[Process]:
    """Workers of this environment without a living driver, and everything below them."""
    by_pid = {process.pid: process for process in processes}

    def ancestors(process: Process) -> Iterable[Process]:
        while process.parent in by_pid:
            process = by_pid[process.parent]
            yield process

    def worker(process: Process) -> bool:
        return process.ours and _WORKER.search(process.command) is not None

    def owned(process: Process) -> bool:
        return any(above.ours and not worker(above) for above in ancestors(process))

    roots = {p.pid for p in by_pid.values() if worker(p) and not owned(p)}
    return [
        process
        for process in by_pid.values()
        if process.pid in roots or any(above.pid in roots for above in ancestors(process))
    ]


def alive(processes: Iterable[Process]) -> bool:
    """Whether anything of this user may still use shared memory or a Ray session: a driver or a
    worker, of any environment."""
    return any(_DRIVER.search(p.command) or _WORKER.search(p.command) for p in processes)


def end(processes: list[Process], environment: Path) -> None:
    """SIGTERM, then SIGKILL after GRACE_S seconds for those that stay."""
    for process in processes:
        _signal(process.pid, signal.SIGTERM)
    pids = {process.pid for process in processes}
    deadline = time.monotonic() + GRACE_S
    while pids and time.monotonic() < deadline:
        time.sleep(0.05)
        pids &= {process.pid for process in read_processes(environment)}
    for pid in pids:
        _signal(pid, signal.SIGKILL)


def remove_files(shm: Path, temporary: Path) -> list[Path]:
    """Weight files in shared memory and Ray's session folders. Only called while nothing is
    `alive`; files of other users stay."""
    removed = []
    for path in [*shm.glob("tbrl-*"), *temporary.glob("tbrl-ray*")]:
        if path.lstat().st_uid == os.getuid():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            removed.append(path)
    return removed


def main() -> None:
    environment = Path(sys.prefix)
    found = leftovers(read_processes(environment))
    end(found, environment)
    for process in found:
        print(f"ended {process.pid}: {process.command[:90]}")
    if alive(read_processes(environment)):
        print("a run is alive, here or in another checkout: files are left alone")
        return
    for path in remove_files(Path("/dev/shm"), Path(tempfile.gettempdir())):
        print(f"removed {path}")
    print(f"{len(found)} leftover processes")


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
