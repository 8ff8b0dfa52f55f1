"""JSON lines: appended durably, recovered after a kill, decoded with one clear line on error."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import orjson

from tbrl.errors import ConfigError
from tbrl.types import JsonObject


class JsonlWriter:
    """Appends JSON lines. A line survives a killed process as soon as `append` returns, and a
    killed machine once synced: every `sync_s` seconds and at close."""

    def __init__(self, path: Path, sync_s: float = 1.0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.torn_bytes = recover_tail(path)
        """Bytes of a half-written last line that were moved aside to `<file>.torn`."""
        self._sync_s = sync_s
        self._file = path.open("ab")
        self._synced_at = time.monotonic()

    def append(self, row: JsonObject) -> None:
        self._file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
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


def decode_line(line: bytes, where: str) -> Any:
    """JSON of one line, or one clear ConfigError."""
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
