"""Append-only JSON lines: one object a line, on disk before `write` returns."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import orjson

from tbrl.errors import InvariantError
from tbrl.types import JsonObject

_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class JsonlWriter:
    """Appends rows to one file. NaN is written as null: missing evidence, not a number.

    A torn last line (the process was killed while writing it) is dropped on opening, so that the
    next row starts on a line of its own.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            _drop_torn_line(path)
        self._file = open(path, "ab")  # noqa: SIM115

    def write(self, row: JsonObject) -> None:
        self._file.write(orjson.dumps(row, option=_OPTIONS))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def read_jsonl(path: Path) -> list[JsonObject]:
    """All complete rows. A torn last line is left out; a broken line before it raises
    InvariantError with its number."""
    lines = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise InvariantError(f"{path} line {number} is not JSON: {error}") from error
    return rows


def rewrite_jsonl(path: Path, rows: Iterable[JsonObject]) -> None:
    """Replace the file's content, written aside and renamed."""
    aside = path.with_name(path.name + ".tmp")
    with open(aside, "wb") as file:
        for row in rows:
            file.write(orjson.dumps(row, option=_OPTIONS))
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def _drop_torn_line(path: Path) -> None:
    content = path.read_bytes()
    complete = content.rfind(b"\n") + 1
    if complete < len(content):
        os.truncate(path, complete)
