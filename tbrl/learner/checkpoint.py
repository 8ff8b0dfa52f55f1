"""Sharded checkpoints that are whole or absent.

    <root>/step-12.tmp/          being written: never read
    <root>/step-12/              complete: renamed after every byte was hashed and synced
        __0_0.distcp ...         torch.distributed.checkpoint shards, one writer a rank
        .metadata                what lies where
        manifest.json            step, sha256 and size of each file, the caller's own data

A writer killed at any moment leaves a .tmp folder, which is ignored and later removed.
Asynchronous saves copy the state, then write on a thread; their collectives use a process group
of their own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from tbrl.errors import ConfigError
from tbrl.learner.distributed import Ranks
from tbrl.types import JsonObject

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)")

State = dict[str, dict[str, Tensor]]
Shapes = Mapping[str, tuple[int, ...]]
"""True shapes of parameters that are stored flattened."""

NOT_FLAT: Shapes = MappingProxyType({})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What manifest.json says."""

    step: int
    files: dict[str, tuple[str, int]]
    """{file name: (sha256, bytes)}"""
    extra: JsonObject
    """The caller's: schedule cursor, versions, parity hash, ..."""
    flat_shapes: Shapes


class Checkpointer:
    """Writes and finds the checkpoints of one run. Used by all ranks alike."""

    def __init__(
        self, root: str | Path, ranks: Ranks, keep: int = 2, asynchronous: bool = False
    ) -> None:
        self.root, self.ranks, self.keep = Path(root), ranks, keep
        self.thread = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self.pending: Future[Path] | None = None

    def save(
        self, step: int, state: State, extra: JsonObject, flat_shapes: Shapes = NOT_FLAT
    ) -> Future[Path]:
        """Write `<root>/step-<step>`; the result is its path. Collective.

        Waits for the save before it. Asynchronous: returns once the state is copied.
        """
        self.wait()
        if self.thread is None:
            done: Future[Path] = Future()
            done.set_result(self._write(step, state, extra, flat_shapes))
            return done
        copied = {
            kind: {name: tensor.detach().clone().to("cpu") for name, tensor in tensors.items()}
            for kind, tensors in state.items()
        }
        self.pending = self.thread.submit(self._write, step, copied, extra, flat_shapes)
        return self.pending

    def wait(self) -> None:
        """Until the pending save is complete; raises what it raised."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            pending.result()

    def close(self) -> None:
        """Finish the pending save and stop the thread."""
        self.wait()
        if self.thread is not None:
            self.thread.shutdown()

    # ------------------------------------------------------------ writing

    def _write(self, step: int, state: State, extra: JsonObject, flat_shapes: Shapes) -> Path:
        final, aside = self.root / f"step-{step}", self.root / f"step-{step}.tmp"
        if self.ranks.rank == 0:
            self.root.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
        self._barrier()
        writer = dcp.FileSystemWriter(aside, sync_files=True, overwrite=False)
        alone = self.ranks.world == 1
        with _quiet():
            dcp.save(
                state,
                storage_writer=writer,
                no_dist=alone,
                process_group=self.ranks.checkpoint_group,
            )
        hashes = self._gather({p.name: _hash_file(p) for p in self._own_files(aside)})
        if self.ranks.rank == 0:
            manifest = {"step": step, "files": hashes, "extra": extra}
            manifest["flat_shapes"] = dict(flat_shapes)
            _write_synced(aside / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True))
            _sync_folder(aside)
            # The same step again, after a resume: the older one gives way only now.
            shutil.rmtree(final, ignore_errors=True)
            os.rename(aside, final)
            _sync_folder(self.root)
            self._prune()
        self._barrier()
        return final

    def _own_files(self, folder: Path) -> list[Path]:
        """This rank's shards; rank 0 also takes what no rank's name is on."""
        files = [p for p in folder.iterdir() if p.is_file()]
        mine = [p for p in files if p.name.startswith(f"__{self.ranks.rank}_")]
        common = [p for p in files if not p.name.startswith("__")] if self.ranks.rank == 0 else []
        return sorted(mine + common)

    def _gather(self, mine: dict[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
        if self.ranks.world == 1:
            return mine
        parts: list[Any] = [None] * self.ranks.world
        dist.all_gather_object(parts, mine, group=self.ranks.checkpoint_group)
        return {name: value for part in parts for name, value in part.items()}

    def _barrier(self) -> None:
        if self.ranks.world > 1:
            dist.barrier(group=self.ranks.checkpoint_group)

    def _prune(self) -> None:
        """Keep the newest `keep`; drop what a killed writer left."""
        for path in list_checkpoints(self.root)[self.keep :] if self.keep > 0 else []:
            shutil.rmtree(path)
        for path in self.root.glob("step-*.tmp"):
            shutil.rmtree(path, ignore_errors=True)


def load_state(
    folder: str | Path, state: State, ranks: Ranks, flat_shapes: Shapes = NOT_FLAT
) -> Manifest:
    """Load a checkpoint into live tensors, in place, whatever the rank count that wrote it.

    Raises ConfigError when the folder is not a complete checkpoint of this model and this engine.
    Collective.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if bool(manifest.flat_shapes) != bool(flat_shapes):
        raise ConfigError(
            f"checkpoint {folder} is of the other learner engine; resume with "
            f"topology.learner_engine={'zero3' if manifest.flat_shapes else 'fsdp2'}"
        )
    try:
        with _quiet():
            dcp.load(state, checkpoint_id=folder, no_dist=ranks.world == 1)
    except CheckpointException as error:  # not an Exception: it would pass most handlers by
        raise ConfigError(
            f"checkpoint {folder} does not fit this model or is damaged: {_first_line(error)}"
        ) from None
    return manifest


def consolidate(folder: str | Path, kind: str = "model") -> dict[str, Tensor]:
    """Whole float32 tensors of a checkpoint by Hugging Face name, in one process, without ranks.

    A tied head is not there twice, and nothing is flat. Raises ConfigError when the folder is not a
    checkpoint.
    """
    folder = Path(folder)
    shapes = read_manifest(folder).flat_shapes
    metadata = dcp.FileSystemReader(folder).read_metadata()
    prefix = f"{kind}."
    state = {
        kind: {
            name.removeprefix(prefix): torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in metadata.state_dict_metadata.items()
            if name.startswith(prefix) and isinstance(entry, TensorStorageMetadata)
        }
    }
    with _quiet():
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    return {
        name: tensor.view(shapes.get(name, tensor.shape)) for name, tensor in state[kind].items()
    }


def read_manifest(folder: str | Path) -> Manifest:
    """Raises ConfigError when there is none."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise ConfigError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}")
    data = json.loads(path.read_text())
    files = {name: (digest, size) for name, (digest, size) in data["files"].items()}
    shapes = {name: tuple(shape) for name, shape in data.get("flat_shapes", {}).items()}
    return Manifest(data["step"], files, data["extra"], shapes)


def broken_file(folder: str | Path) -> str:
    """Name of the first file that is missing or differs from the manifest; empty when whole."""
    for name, (digest, size) in read_manifest(folder).files.items():
        path = Path(folder) / name
        if not path.is_file() or path.stat().st_size != size or _hash_file(path)[0] != digest:
            return name
    return ""


def list_checkpoints(root: str | Path) -> list[Path]:
    """Renamed checkpoints, newest step first; not verified."""
    found = [(int(m[1]), p) for p in Path(root).glob("step-*") if (m := _NAME.fullmatch(p.name))]
    return [path for _, path in sorted(found, reverse=True)]


def latest_complete(root: str | Path) -> Path | None:
    """The newest checkpoint whose every byte matches its manifest; broken ones are skipped."""
    for path in list_checkpoints(root):
        broken = broken_file(path) if (path / MANIFEST).is_file() else MANIFEST
        if not broken:
            return path
        _log.warning("checkpoint %s skipped: %s is missing or damaged", path, broken)
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """A single process is meant: no warning that there is no process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _hash_file(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size


def _write_synced(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
