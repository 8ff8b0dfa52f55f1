"""ThinkingBox tasks without ThinkingBox: read from its dataset folder or a `dump-tests` JSONL.

A test case is a Python function whose first statement is a docstring `!` + YAML; module-level
strings of that form give defaults for the file. Nothing is imported or executed: files are parsed
to a syntax tree and the YAML is read. A test whose body checks anything but the database and yes/no
rubrics cannot be graded from data; it is refused by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import yaml

from tbrl.errors import ConfigError
from tbrl.tasks.schema import interactions_of
from tbrl.types import GradingSpec, JsonObject, PublicTask, Task

_CHECKS = {"validate_database", "validate_rubrics_yesno"}
_FIELDS = {
    "scenario", "query", "user_context", "max_user_sim_turns", "max_agent_sim_turns",
    "bot_instructions", "history", "init", "format_query", "tags",
}  # fmt: skip
_UNSUPPORTED = ("bot_instructions", "history", "format_query")
"""They change what the agent sees, in ways a PublicTask cannot say."""


def is_dataset_folder(path: Path) -> bool:
    """A folder with test cases, itself or in `test_case/`."""
    return path.is_dir() and any(_test_files(path))


def read_dataset_folder(path: Path) -> list[Task]:
    """Every test case of the folder, by file and line. Raises ConfigError naming the test."""
    tasks = [task for file in _test_files(path) for task in _read_module(file)]
    if not tasks:
        raise ConfigError(f"{path}: no test cases found")
    return tasks


def is_dump_row(row: Mapping[str, Any]) -> bool:
    """Whether a JSONL row is a `dump-tests` row rather than one of our schema."""
    return "uid" in row and "task_ref" not in row


def read_dump(path: Path) -> list[Task]:
    """The rows of `tb dump-tests`. Raises ConfigError naming the row."""
    tasks = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            tree = ast.parse(row["test_code"])
            uid = row["uid"]
        except (orjson.JSONDecodeError, SyntaxError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, row {number}: not a dumped test: {error!r}") from None
        function = _function(tree, uid.rpartition(":")[2], f"{path}, row {number}")
        _check_body(function, uid)
        tasks.append(_task(uid, {k: row.get(k) for k in _FIELDS if row.get(k) is not None}))
    return tasks


def _test_files(path: Path) -> list[Path]:
    root = path / "test_case" if (path / "test_case").is_dir() else path
    return [
        file
        for file in sorted(root.rglob("*.py"))
        if not file.name.startswith(("_", "conftest")) and '"""!' in file.read_text()
    ]


def _read_module(file: Path) -> Iterable[Task]:
    try:
        tree = ast.parse(file.read_text())
    except SyntaxError as error:
        raise ConfigError(f"{file}: not Python: {error}") from None
    shared: JsonObject = {}
    for statement in tree.body:
        text = _marked_text(statement)
        if text is not None:
            shared = _merged(shared, _yaml(text, str(file)))
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef) or not statement.body:
            continue
        text = _marked_text(statement.body[0])
        if text is None:
            continue
        uid = f"{file.name}:{statement.name}"
        _check_body(statement, uid)
        yield _task(uid, _merged(shared, _yaml(text, uid)))


def _task(uid: str, fields: JsonObject) -> Task:
    wrong = sorted(set(fields) - _FIELDS) or [f for f in _UNSUPPORTED if fields.get(f)]
    if wrong:
        raise ConfigError(f"{uid}: field {wrong[0]!r} is not supported")
    init = fields.get("init") or {}
    if not isinstance(init, dict) or len(init) > 1:
        raise ConfigError(f"{uid}: init must name one server, got {len(init)}")
    world: JsonObject = next(iter(init.values()), {}) or {}
    golden = (world.get("golden_test_case") or {}).get("tool_interactions") or []
    scenario = fields.get("scenario")
    if not isinstance(scenario, str) or not isinstance(fields.get("query"), str):
        raise ConfigError(f"{uid}: scenario and query must be text")
    public = PublicTask(
        task_ref=uid,
        domain=_domain(fields.get("tags"), scenario),
        scenario_id=scenario,
        query=fields["query"],
        user_context={"text": fields.get("user_context") or ""},
        initial_state_patch=world.get("data_patch") or {},
        template="",
    )
    rubrics = tuple(str(rubric) for rubric in world.get("rubrics_yesno") or ())
    return Task(public, GradingSpec(uid, interactions_of(golden, uid), rubrics))


def _domain(tags: Any, scenario: str) -> str:
    """The `domain:` tag, else the scenario's name."""
    if isinstance(tags, dict):
        return str(tags.get("domain") or scenario)
    for tag in tags or ():
        if str(tag).startswith("domain:"):
            return str(tag).partition(":")[2].strip()
    return scenario


def _function(tree: ast.Module, name: str, where: str) -> ast.FunctionDef:
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return statement
    raise ConfigError(f"{where}: its test code has no function {name!r}")


def _check_body(function: ast.FunctionDef, uid: str) -> None:
    """Only calls of the known checks, after the docstring."""
    for statement in function.body:
        if _marked_text(statement) is not None:
            continue
        call = statement.value if isinstance(statement, ast.Expr) else None
        name = getattr(getattr(call, "func", None), "id", "")
        if not isinstance(call, ast.Call) or name not in _CHECKS:
            raise ConfigError(
                f"{uid}: line {statement.lineno} is not one of {', '.join(sorted(_CHECKS))};"
                " such a test cannot be graded from data"
            )


def _marked_text(statement: ast.stmt) -> str | None:
    """The YAML of a string statement that begins with `!`."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return None
    text = statement.value.value
    return text[1:] if isinstance(text, str) and text.startswith("!") else None


def _yaml(text: str, where: str) -> JsonObject:
    try:
        value = yaml.safe_load(_dedented(text))
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{where}: its YAML cannot be read: {str(error).splitlines()[0]}"
        ) from None
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{where}: its YAML must be a mapping")
    return value or {}


def _dedented(text: str) -> str:
    """Without the common indentation of all lines but the first."""
    lines = text.expandtabs().split("\n")
    depths = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    depth = min(depths, default=0)
    return "\n".join([lines[0].lstrip(), *(line[depth:] for line in lines[1:])])


def _merged(shared: JsonObject, own: JsonObject) -> JsonObject:
    """The test's own fields over the file's; tags are joined."""
    tags = [*(shared.get("tags") or []), *(own.get("tags") or [])]
    return {**shared, **own, **({"tags": tags} if tags else {})}
