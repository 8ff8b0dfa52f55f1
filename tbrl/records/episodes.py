"""Episode files: every episode of a step in one parquet file (zstd), and back, exactly.

    with EpisodeWriter(run.episodes(step)) as writer:
        writer.append(group, "trained")          one parquet row group per episode group
    writer.sha256                                known after the file is closed

One row is one episode; `digest` is a hash of its content, `fate` the ledger's account (`trained`,
`zero_variance`, `failed`, `cancelled`). The file is written aside and renamed when closed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tbrl.errors import InvariantError
from tbrl.records.episode_rows import ARRAYS, SCHEMA, content_digest, episode_of, episode_row
from tbrl.types import EpisodeGroup


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as read back."""

    group: EpisodeGroup
    fate: str
    """Account of the ledger that it ended in."""
    digests: tuple[str, ...]
    """One per episode, as stored."""

    @property
    def digest(self) -> str:
        """The group's digest, as `append` returned it and as the step's receipt names it."""
        return group_digest(self.digests)


class EpisodeWriter:
    """Writes one step's episode file. Leaving the block with an exception leaves no file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path.with_name(path.name + ".tmp")
        self._writer = pq.ParquetWriter(
            self._aside, SCHEMA, compression="zstd", write_page_checksum=True
        )
        self.sha256 = ""

    def append(self, group: EpisodeGroup, fate: str) -> str:
        """Write one group; returns its digest."""
        rows = [episode_row(episode, fate) for episode in group.episodes]
        self._writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
        return group_digest(tuple(row["digest"] for row in rows))

    def close(self) -> None:
        self._writer.close()
        self.sha256 = file_sha256(self._aside)
        with open(self._aside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(self._aside, self._path)

    def discard(self) -> None:
        self._writer.close()
        self._aside.unlink()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def read_groups(path: Path) -> Iterator[StoredGroup]:
    """Groups in file order, one row group in memory at a time. Raises InvariantError for an
    episode whose content is not the one its digest was made of, and for a damaged file."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        if not file.schema_arrow.equals(SCHEMA):
            raise InvariantError(f"{path} is damaged or of another version: its columns differ")
        for index in range(file.num_row_groups):
            yield _group_of(file.read_row_group(index), path)
    except (pa.ArrowException, OSError) as error:
        raise InvariantError(f"{path} is damaged: {error}") from error


def group_digest(episode_digests: tuple[str, ...]) -> str:
    return hashlib.blake2b("".join(episode_digests).encode(), digest_size=16).hexdigest()


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _group_of(table: pa.Table, path: Path) -> StoredGroup:
    arrays = {name: _slices(table[name], dtype) for name, dtype in ARRAYS.items()}
    rest = table.drop_columns(list(ARRAYS)).to_pylist()
    episodes, digests = [], []
    for index, row in enumerate(rest):
        row.update({name: column[index] for name, column in arrays.items()})
        if content_digest(row) != row["digest"]:
            key = "/".join(str(row[n]) for n in ("step", "slot", "attempt", "rollout"))
            raise InvariantError(
                f"{path}: episode {key} (step/slot/attempt/rollout) is not the one recorded"
            )
        episodes.append(episode_of(row))
        digests.append(row["digest"])
    first = episodes[0]
    group = EpisodeGroup(
        first.key.step, first.key.slot, first.key.attempt, first.task_ref, tuple(episodes)
    )
    return StoredGroup(group, rest[0]["fate"], tuple(digests))


def _slices(column: pa.ChunkedArray, dtype: np.dtype[Any]) -> list[np.ndarray]:
    """One numpy array per row of a list column."""
    chunk = column.combine_chunks()
    values = chunk.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    offsets = chunk.offsets.to_numpy()
    return [values[a:b] for a, b in pairwise(offsets)]
