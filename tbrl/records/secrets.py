"""No secret on disk: looks for the values of environment variables in the files of a run.

Configuration names a key's variable (`api_key_env`); its value must appear in no file. Parquet and
gzip files are searched in their decoded content.
"""

from __future__ import annotations

import gzip
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

MIN_LENGTH = 6
"""Shorter values (`EMPTY`, `none`) are placeholders, and would be found everywhere."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A file that holds the value of a variable."""

    path: Path
    variable: str


def find_leaks(root: Path, secrets: Mapping[str, str]) -> list[Leak]:
    """`secrets` is {variable: value}. Searches every file below `root`, links not followed."""
    needles = {name: value.encode() for name, value in secrets.items() if len(value) >= MIN_LENGTH}
    return [
        Leak(path, name)
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
        for name in _found(path, needles)
    ]


def _found(path: Path, needles: Mapping[str, bytes]) -> set[str]:
    found: set[str] = set()
    for content in _contents(path):
        found |= {name for name, needle in needles.items() if content.find(needle) >= 0}
    return found


def _contents(path: Path) -> Iterator[bytes | mmap.mmap]:
    yield path.name.encode()
    if not path.stat().st_size:
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        yield raw
    if path.suffix == ".gz":
        yield gzip.decompress(path.read_bytes())
    if path.suffix == ".parquet":
        file_ = pq.ParquetFile(path)
        for index in range(file_.num_row_groups):
            yield repr(file_.read_row_group(index).to_pylist()).encode()
