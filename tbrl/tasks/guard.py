"""Keeps evaluation tasks out of training: by mark, by task_ref and by content.

The public benchmark's 507 tasks may be used for evaluation only. Their hashes, and nothing else of
them, are in eval_only_hashes.txt: a line per task with the SHA-256 of its task_ref, of its content
and, where it is long enough to be nobody else's, of its query alone. A renamed copy is found by its
content, a copy with other records or other expected calls by its query, an edited one under the old
name by its task_ref.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

import orjson

from tbrl.errors import ConfigError
from tbrl.types import PublicTask, Task

_FILE = "eval_only_hashes.txt"
QUERY_WORDS = 12
"""Shorter queries ("Hi, I need to cancel my booking.") are written by many people."""


def refuse_eval_only(tasks: Iterable[Task | PublicTask], where: str) -> None:
    """Raises ConfigError naming `where` and the first task that must not train there. A PublicTask
    is judged by mark, task_ref and query; a Task by its whole content too."""
    for task in tasks:
        reason = why_eval_only(task)
        if reason:
            ref = task.task_ref
            raise ConfigError(f"{where}: task {ref!r} is for evaluation only ({reason}); remove it")


def why_eval_only(task: Task | PublicTask) -> str:
    """Why a task must not train; empty for one that may."""
    public = task.public if isinstance(task, Task) else task
    if public.eval_only:
        return "marked eval_only"
    hashes = benchmark_hashes()
    if ref_hash(public.task_ref) in hashes:
        return "its task_ref is one of the public benchmark"
    if query_hash(public.query) in hashes:  # short queries have no hash in the file
        return "its query is one of the public benchmark"
    if isinstance(task, Task) and content_hash(task) in hashes:
        return "its content is a task of the public benchmark"
    return ""


@cache
def benchmark_hashes() -> frozenset[str]:
    """All hashes of every benchmark task."""
    text = resources.files("tbrl.tasks").joinpath(_FILE).read_text()
    return frozenset(
        word for line in text.splitlines() if not line.startswith("#") for word in line.split()
    )


def query_hash(query: str) -> str:
    """Of the words of a query: case, punctuation and white space do not change it."""
    return hashlib.sha256(_words(query).encode(errors="replace")).hexdigest()


def ref_hash(task_ref: str) -> str:
    """Of a task_ref without its folder: `retail/a.py:test_x` is `a.py:test_x`."""
    return hashlib.sha256(task_ref.strip().rpartition("/")[2].encode(errors="replace")).hexdigest()


def content_hash(task: Task) -> str:
    """Of the query (lower case, words only separated by single spaces), the initial rows and the
    expected calls. Names of fields, the order of tables and keys and the spelling of numbers do
    not change it."""
    content = [
        _words(task.public.query),
        {
            table: [_plain(row) for row in rows]
            for table, rows in task.public.initial_state_patch.items()
            if rows
        },
        [[call.tool, _plain(call.arguments)] for call in task.grading.expected_tool_interactions],
    ]
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _words(text: str) -> str:
    letters = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(c if c.isalnum() else " " for c in letters).split())


def _plain(value: Any) -> Any:
    """Integral floats as integers, text in NFC, null members left out."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, list):
        return [_plain(member) for member in value]
    if isinstance(value, dict):
        return {str(k): _plain(member) for k, member in value.items() if member is not None}
    return value
