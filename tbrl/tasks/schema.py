"""Tasks on disk: one schema, written as YAML, JSONL or parquet, with the public card's field names.

    task_ref, domain, scenario_id, query, user_context, initial_state_patch_json,
    expected_tool_interactions_json, rubrics_json        as on the card
    template, knobs_json, split, eval_only, null_passes  ours; left out = empty or false

`*_json` fields hold JSON text. `user_context` is text: JSON of an object where it begins with `{`,
else prose for an LLM user, read as {"text": ...}. Loading what was saved gives equal tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import yaml

from tbrl.errors import ConfigError
from tbrl.types import GradingSpec, JsonObject, PublicTask, Task, ToolInteraction

FIELDS = {
    "task_ref": str,
    "domain": str,
    "scenario_id": str,
    "query": str,
    "user_context": str,
    "initial_state_patch_json": str,
    "expected_tool_interactions_json": str,
    "rubrics_json": str,
    "template": str,
    "knobs_json": str,
    "split": str,
    "eval_only": bool,
    "null_passes": bool,
}
_REQUIRED = tuple(FIELDS)[:7]
FOREIGN_FIELDS = ("source_url", "release_tag")
"""Provenance on the public card; not part of a task."""


def save_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks; the suffix of the path chooses the form. Raises ConfigError for another one."""
    rows = [row_of(task) for task in tasks]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pl.DataFrame(rows, schema=FIELDS).write_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    elif path.suffix in (".yaml", ".yml"):
        path.write_text(yaml.safe_dump(rows, sort_keys=False, allow_unicode=True, width=100))
    else:
        raise ConfigError(f"{path}: unknown form {path.suffix!r}; use .parquet, .jsonl or .yaml")


def read_tasks(path: Path) -> list[Task]:
    """Read tasks. Raises ConfigError naming the file and the row for anything that is not a task
    or whose task_ref occurs twice."""
    tasks: dict[str, Task] = {}
    for number, row in enumerate(_rows(path), start=1):
        task = task_of(row, f"{path}, row {number}")
        if task.task_ref in tasks:
            raise ConfigError(f"{path}, row {number}: task_ref {task.task_ref!r} occurs twice")
        tasks[task.task_ref] = task
    return list(tasks.values())


def row_of(task: Task) -> JsonObject:
    """One task as {field: value}."""
    public, grading = task.public, task.grading
    context = public.user_context
    prose = context.get("text")
    plain = set(context) == {"text"} and isinstance(prose, str) and not prose.startswith("{")
    return {
        "task_ref": public.task_ref,
        "domain": public.domain,
        "scenario_id": public.scenario_id,
        "query": public.query,
        "user_context": prose if plain else _dump(context),
        "initial_state_patch_json": _dump(public.initial_state_patch),
        "expected_tool_interactions_json": _dump(
            [
                {"tool": call.tool, "parameters": call.arguments}
                for call in grading.expected_tool_interactions
            ]
        ),
        "rubrics_json": _dump(list(grading.rubrics)),
        "template": public.template,
        "knobs_json": _dump(public.knobs),
        "split": public.split,
        "eval_only": public.eval_only,
        "null_passes": grading.null_passes,
    }


def task_of(row: Mapping[str, Any], where: str) -> Task:
    """The task of one row. `where` names file and row in errors."""
    unknown = sorted(set(row) - set(FIELDS) - set(FOREIGN_FIELDS))
    missing = [name for name in _REQUIRED if row.get(name) is None]
    if unknown or missing:
        what = f"unknown field {unknown[0]!r}" if unknown else f"no field {missing[0]!r}"
        raise ConfigError(f"{where}: {what}; fields: {', '.join(FIELDS)}")
    for name, kind in FIELDS.items():
        if row.get(name) is not None and not isinstance(row[name], kind):
            raise ConfigError(f"{where}: {name} must be {kind.__name__}, got {row[name]!r:.60}")
    ref = row["task_ref"]
    public = PublicTask(
        task_ref=ref,
        domain=row["domain"],
        scenario_id=row["scenario_id"],
        query=row["query"],
        user_context=_context(row["user_context"], where),
        initial_state_patch=_patch(row["initial_state_patch_json"], where),
        template=row.get("template") or "",
        knobs=_load(row.get("knobs_json") or "{}", dict, "knobs_json", where),
        split=row.get("split") or "",
        eval_only=bool(row.get("eval_only")),
    )
    rubrics = _load(row.get("rubrics_json") or "[]", list, "rubrics_json", where)
    grading = GradingSpec(
        task_ref=ref,
        expected_tool_interactions=_interactions(row["expected_tool_interactions_json"], where),
        rubrics=tuple(str(rubric) for rubric in rubrics),
        null_passes=bool(row.get("null_passes")),
    )
    return Task(public, grading)


def interactions_of(calls: Any, where: str) -> tuple[ToolInteraction, ...]:
    """[{tool, parameters}] as ToolInteractions. Raises ConfigError."""
    if not isinstance(calls, list):
        raise ConfigError(f"{where}: expected tool interactions must be a list")
    found = []
    for call in calls:
        tool = call.get("tool") if isinstance(call, dict) else None
        arguments = call.get("parameters", {}) if isinstance(call, dict) else None
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise ConfigError(
                f"{where}: an expected interaction is {{tool, parameters}}: {call!r:.80}"
            )
        found.append(ToolInteraction(tool, arguments))
    return tuple(found)


def _interactions(text: str, where: str) -> tuple[ToolInteraction, ...]:
    name = "expected_tool_interactions_json"
    return interactions_of(_load(text, list, name, where), where)


def _patch(text: str, where: str) -> dict[str, list[JsonObject]]:
    patch = _load(text, dict, "initial_state_patch_json", where)
    for table, rows in patch.items():
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(
                f"{where}: initial_state_patch_json[{table!r}] must be a list of rows"
            )
    return patch


def _context(text: str, where: str) -> JsonObject:
    return _load(text, dict, "user_context", where) if text.startswith("{") else {"text": text}


def _load(text: str, kind: type, name: str, where: str) -> Any:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{where}: {name} is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise ConfigError(f"{where}: {name} must hold a JSON {kind.__name__}, got {text[:60]!r}")
    return value


def _dump(value: Any) -> str:
    return orjson.dumps(value).decode()


def _rows(path: Path) -> Iterable[Mapping[str, Any]]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path).to_dicts()
        if path.suffix == ".jsonl":
            rows = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        elif path.suffix in (".yaml", ".yml"):
            rows = yaml.safe_load(path.read_text()) or []
        else:
            raise ConfigError(f"{path}: unknown form {path.suffix!r}; use .parquet, .jsonl, .yaml")
    except (orjson.JSONDecodeError, yaml.YAMLError, pl.exceptions.PolarsError) as error:
        raise ConfigError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path}: must be a list of tasks, one object each")
    return rows
