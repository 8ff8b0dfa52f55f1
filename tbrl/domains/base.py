"""What a business domain is: one folder with a schema, seed rows, typed tools, policies, templates.

    domains/rental/
        __init__.py    DOMAIN = Domain(...)
        schema.sql     real constraints and foreign keys
        seed.py        rows of the shared world (not of any task)
        tools.py       functions marked @tool; the first argument is the World
        policy.md      the rules for the agent, one file per size (policy_compact.md, ...)
        templates.py   task templates
        full/          the same again for a size with a world of its own, and articles.md

A tool is a plain synchronous function on the session's own database. Its JSON schema is derived
from its type hints, once, when the domain is loaded. It returns JSON-serialisable data; an
expected refusal is `raise ModelError("...")`, which the policy sees. Any other exception is a
backend failure.
"""

from __future__ import annotations

import inspect
import random
import sqlite3
import types as pytypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tbrl.types import JsonObject, Task, ToolSpec

FROZEN_NOW = "2026-03-02T09:00:00Z"
"""The world's clock. It never moves during an episode: a frozen world has no wall clock."""


class World:
    """What a tool may touch: the session's database, its frozen clock, its id counter."""

    __slots__ = ("conn", "now")

    def __init__(self, conn: sqlite3.Connection, now: str = FROZEN_NOW) -> None:
        self.conn = conn
        self.now = now

    def one(self, sql: str, *args: Any) -> dict[str, Any] | None:
        """First row as a dict, or None."""
        cursor = self.conn.execute(sql, args)
        row = cursor.fetchone()
        return (
            None if row is None else dict(zip([c[0] for c in cursor.description], row, strict=True))
        )

    def all(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        """All rows as dicts. Give an ORDER BY: replies must not depend on storage order."""
        cursor = self.conn.execute(sql, args)
        names = [c[0] for c in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def run(self, sql: str, *args: Any) -> int:
        """Execute one writing statement; returns the number of rows changed."""
        return self.conn.execute(sql, args).rowcount

    def next_id(self, table: str, column: str = "id", first: int = 1) -> int:
        """Largest id + 1: part of the world state, so the same calls give the same ids."""
        row = self.conn.execute(f'SELECT MAX("{column}") FROM "{table}"').fetchone()
        return first if row[0] is None else int(row[0]) + 1


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool and the function behind it."""

    spec: ToolSpec
    call: Callable[..., Any]
    writes: bool


def tool(
    *, writes: bool = False, ends_turn: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function as a tool. First docstring line = description; `Annotated[T, "text"]` =
    parameter description (an empty description is left out: compact domains save tokens)."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__tbrl_tool__ = (writes, ends_turn)  # type: ignore[attr-defined]
        return function

    return mark


def compile_tools(namespace: Mapping[str, Any]) -> tuple[Tool, ...]:
    """All marked functions of a module, in definition order."""
    return tuple(
        _compile(function, *function.__tbrl_tool__)
        for function in namespace.values()
        if callable(function) and hasattr(function, "__tbrl_tool__")
    )


def _compile(function: Callable[..., Any], writes: bool, ends_turn: bool) -> Tool:
    hints = get_type_hints(function, include_extras=True)
    properties: dict[str, JsonObject] = {}
    required: list[str] = []
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        properties[name] = _schema_of(hints[name])
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    description = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    return Tool(ToolSpec(function.__name__, description, parameters, ends_turn), function, writes)


_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _schema_of(hint: Any) -> JsonObject:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema = _schema_of(args[0])
        return {**schema, "description": args[1]} if args[1] else schema
    if origin is Literal:
        return {"type": _SCALARS[type(args[0])], "enum": list(args)}
    if origin in (list, tuple):
        return {"type": "array", "items": _schema_of(args[0])}
    if origin in (Union, pytypes.UnionType):
        members = [_schema_of(a) for a in args if a is not type(None)]
        if type(None) in args:
            members.append({"type": "null"})
        return members[0] if len(members) == 1 else {"anyOf": members}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if hint is dict or origin is dict:
        return {"type": "object"}
    raise TypeError(f"tool parameter type {hint!r} has no JSON schema here")


# ---------------------------------------------------------------- demonstrations and templates


@dataclass(frozen=True, slots=True)
class DemoTurn:
    """One assistant turn of an expert: reasoning, visible text and/or calls."""

    text: str = ""
    calls: tuple[tuple[str, JsonObject], ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """A point where the expert must choose. `right` continues the golden path; each of
    `wrong` is a whole alternative rest of the conversation (it ends the demonstration).
    Noisy demonstrations take a wrong one with a set probability, so a policy warm-started on
    them is right only sometimes; reinforcement learning then has something to learn."""

    name: str
    right: tuple[DemoTurn | Decision, ...]
    wrong: tuple[tuple[DemoTurn | Decision, ...], ...]


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a template returns: a task and how an expert would do it."""

    task: Task
    demo: tuple[DemoTurn | Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """A family of tasks: `make(rng, task_ref)` is deterministic in its arguments."""

    name: str
    make: Callable[[random.Random, str, Names], Drafted]
    ordinary: bool = True
    """False for the few templates where one shared rule (stop and escalate) decides: reports
    show ordinary templates apart, so that one easy rule cannot carry a headline."""


@dataclass(frozen=True, slots=True)
class Names:
    """Entity names and id ranges that a split may use. Splits have disjoint ones, so held-out
    tasks hold names and ids that training never saw."""

    split: str
    first: tuple[str, ...]
    last: tuple[str, ...]
    ids: tuple[int, int]
    """Half-open range of record ids."""


@dataclass(frozen=True, slots=True)
class Size:
    """One size of a domain: the tools and policy text an agent gets."""

    policy: str
    tools: tuple[Tool, ...]
    templates: tuple[Template, ...]
    schema_sql: str = ""
    """This size's own schema; empty = the domain's. A full size has records and documents that a
    compact session should not have to carry."""
    seed: Mapping[str, list[JsonObject]] = field(default_factory=dict)
    """Rows of its own schema; not read without one."""


@dataclass(frozen=True, slots=True)
class Domain:
    """A business domain. Scenario ids are `<name>/<size>`."""

    name: str
    title: str
    schema_sql: str
    seed: Mapping[str, list[JsonObject]]
    """{table: rows} inserted once into the scenario's snapshot, in this order."""
    sizes: Mapping[str, Size]
    """`compact` always; `full` where a real LLM should meet it."""
    training: bool
    """False for held-out domains: their tasks never enter training."""
    excluded_columns: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """{table: columns} that grading does not compare (free text such as a ticket's subject)."""
    ticket_tables: frozenset[str] = frozenset()
    """Tables of the helpdesk side: reports split ticket-only from business writes."""

    def at(self, size: str) -> Domain:
        """The domain as this size sees it: with the size's own schema and seed, if it has any."""
        own = self.sizes[size]
        return replace(self, schema_sql=own.schema_sql, seed=own.seed) if own.schema_sql else self
