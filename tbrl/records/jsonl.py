"""JSON lines: appended durably, recovered after a kill, decoded with one clear line on error."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from tbrl.errors import ConfigError, InvariantError
from tbrl.types import JsonObject

_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class JsonlWriter:
    """Appends rows. A row survives a killed process as soon as `write` returns, and a killed
    machine once synced: with every row, or every `sync_s` seconds and at close where rows are
    many. NaN is written as null: missing evidence, not a number."""

    def __init__(self, path: Path, sync_s: float = 0.0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.torn_bytes = recover_tail(path)
        """Bytes of a half-written last line that were moved aside to `<file>.torn`."""
        self._sync_s = sync_s
        self._file = path.open("ab")
        self._synced_at = time.monotonic()

    def write(self, row: JsonObject) -> None:
        self._file.write(orjson.dumps(row, option=_OPTIONS))
        self._file.flush()
        if time.monotonic() - self._synced_at >= self._sync_s:
            self.sync()

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced_at = time.monotonic()

    def close(self) -> None:
        self.sync()
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def recover_tail(path: Path) -> int:
    """A process killed within a write leaves a last line without its newline. Move those bytes to
    `<file>.torn` (kept, never parsed), so that appending goes on cleanly; returns their number."""
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return 0
        content = path.read_bytes()
        keep = content.rfind(b"\n") + 1
        with Path(f"{path}.torn").open("ab") as torn:
            torn.write(content[keep:] + b"\n")
        file.truncate(keep)
        return len(content) - keep


def read_jsonl(path: Path) -> list[JsonObject]:
    """All complete rows of a file of ours. A torn last line is left out; a broken line before it
    raises InvariantError with its number."""
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


def decode_line(line: bytes, where: str) -> Any:
    """JSON of one line of a file that may be anybody's, or one clear ConfigError."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as not_utf8:
            raise ConfigError(
                f"{where}: not UTF-8 (byte {not_utf8.start} of the line is"
                f" 0x{line[not_utf8.start]:02x}); re-encode the file"
            ) from None
        if not line.endswith(b"\n"):
            raise ConfigError(
                f"{where}: truncated: the last line ends within a row;"
                " evaluation.repair=true runs the missing attempts"
            ) from None
        raise ConfigError(f"{where}: not JSON ({error}); is this a results file?") from None
