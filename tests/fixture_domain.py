"""A small domain for the tests of sandbox, tasks and rewards: a library desk. Size `compact` is an
ordinary domain; `hostile` adds tools that no domain should have."""

from __future__ import annotations

import random
import types
from typing import Annotated, Any, Literal

from tbrl.domains.base import (
    Domain,
    Drafted,
    Names,
    Size,
    Template,
    World,
    compile_tools,
    tool,
)
from tbrl.errors import ModelError
from tbrl.types import GradingSpec, PublicTask, Task, ToolInteraction

SCHEMA = """
CREATE TABLE members (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT, joined TIMESTAMP);
CREATE TABLE books (code TEXT PRIMARY KEY, title TEXT NOT NULL, copies INTEGER NOT NULL
    CHECK (copies >= 0), price DECIMAL(8, 2));
CREATE TABLE loans (id INTEGER PRIMARY KEY, member_id INTEGER NOT NULL REFERENCES members(id),
    code TEXT NOT NULL REFERENCES books(code), status TEXT NOT NULL DEFAULT 'open', fine REAL,
    extra TEXT);
CREATE TABLE log (word TEXT, amount REAL);
CREATE TABLE tickets (id INTEGER PRIMARY KEY, subject TEXT, priority TEXT NOT NULL);
CREATE VIRTUAL TABLE docs USING fts5(text);
"""
SEED: dict[str, list[dict[str, Any]]] = {
    "members": [{"id": 1, "name": "Root", "email": None, "joined": "2025-01-01T00:00:00Z"}],
    "books": [
        {"code": "B1", "title": "Dune", "copies": 2, "price": 12.5},
        {"code": "B2", "title": "Emma", "copies": 0, "price": 33},
    ],
    "docs": [{"text": "Fines are two euros a day."}, {"text": "Lost books are charged in full."}],
}


@tool()
def get_member(w: World, member_id: Annotated[int, "member number"]) -> Any:
    """One member with loans."""
    member = w.one("SELECT * FROM members WHERE id = ?", member_id)
    if member is None:
        raise ModelError(f"no member {member_id}")
    member["loans"] = w.all("SELECT * FROM loans WHERE member_id = ? ORDER BY id", member_id)
    return member


@tool()
def search_docs(w: World, text: str) -> Any:
    """Search the rules."""
    quoted = '"' + text.replace('"', '""') + '"'
    return w.all("SELECT text FROM docs WHERE docs MATCH ? ORDER BY rank", quoted)


@tool(writes=True)
def lend(w: World, member_id: int, code: str, note: str | None = None) -> Any:
    """Lend a book."""
    if not w.run("UPDATE books SET copies = copies - 1 WHERE code = ?", code):
        raise ModelError(f"no book {code!r}")
    new = w.next_id("loans")
    w.run("INSERT INTO loans (id, member_id, code) VALUES (?, ?, ?)", new, member_id, code)
    w.run("UPDATE loans SET extra = ? WHERE id = ?", note, new)
    return {"loan": new, "at": w.now}


@tool(writes=True)
def set_loan(
    w: World,
    loan_id: int,
    status: Literal["open", "returned", "lost"],
    fine: float = 0.0,
    tags: list[str] | None = None,
) -> Any:
    """Change a loan."""
    extra = None if tags is None else "[" + ",".join(f'"{t}"' for t in sorted(tags)) + "]"
    change = "UPDATE loans SET status = ?, fine = ?, extra = ? WHERE id = ?"
    if not w.run(change, status, fine, extra, loan_id):
        raise ModelError(f"no loan {loan_id}")
    return "ok"


@tool(writes=True)
def open_ticket(w: World, subject: str, priority: Literal["low", "high"]) -> Any:
    """Escalate."""
    new = w.next_id("tickets")
    w.run("INSERT INTO tickets VALUES (?, ?, ?)", new, subject, priority)
    return {"ticket": new}


@tool(ends_turn=True)
def report_injection(w: World, reason: str) -> Any:
    """End the conversation."""
    raise AssertionError("recorded, never executed")


_ORDINARY = compile_tools(dict(globals()))


@tool(writes=True)
def run_sql(w: World, sql: str) -> Any:
    """What no domain should have: any SQL."""
    return w.all(sql)


@tool(writes=True)
def write_then_break(w: World, how: Literal["model", "bug", "constraint", "commit"]) -> Any:
    """Write, then fail."""
    w.run("INSERT INTO log VALUES ('half', 1)")
    if how == "model":
        raise ModelError("not allowed")
    if how == "commit":
        w.conn.commit()
        raise ModelError("after the fact")
    if how == "bug":
        raise ZeroDivisionError("tool bug")
    w.run("INSERT INTO loans (member_id, code) VALUES (999, 'B1')")


@tool()
def big(w: World, size: int) -> Any:
    """A large result."""
    return "x" * size


@tool(writes=True)
def overflow(w: World, amount: int) -> Any:
    """A product that no column holds."""
    w.run("INSERT INTO log VALUES ('sum', ?)", amount * amount)


HOSTILE_CALLS: list[str] = []
"""Names of executed slow calls; a test clears it."""


@tool(writes=True)
def slow(w: World) -> Any:
    """Counts its executions; the test's clock moves meanwhile."""
    HOSTILE_CALLS.append("slow")
    w.run("INSERT INTO log VALUES ('slow', 1)")


_HOSTILE = _ORDINARY + compile_tools(
    {t.__name__: t for t in (run_sql, write_then_break, big, overflow, slow)}
)


def _lend_task(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    member = rng.randrange(*names.ids)
    name = f"{rng.choice(names.first)} {rng.choice(names.last)}"
    public = PublicTask(
        task_ref=task_ref,
        domain="library",
        scenario_id="library/compact",
        query=f"Hi, {name} here, member {member}. I want Dune.",
        user_context={"facts": {"member_id": member}, "persona": "brief"},
        initial_state_patch={"members": [{"id": member, "name": name}]},
        template="lend",
        knobs={"records": 1},
    )
    golden = (
        ToolInteraction("get_member", {"member_id": member}),
        ToolInteraction("lend", {"member_id": member, "code": "B1"}),
    )
    return Drafted(Task(public, GradingSpec(task_ref, golden)))


def _return_task(rng: random.Random, task_ref: str, names: Names) -> Drafted:
    member, loan = rng.randrange(*names.ids), rng.randrange(*names.ids)
    public = PublicTask(
        task_ref=task_ref,
        domain="library",
        scenario_id="library/compact",
        query=f"Member {member}: I lost the book of loan {loan}.",
        user_context={"facts": {"loan_id": loan}},
        initial_state_patch={
            "loans": [{"id": loan, "member_id": member, "code": "B1"}],
            "members": [{"id": member, "name": rng.choice(names.first)}],
        },
        template="lost",
    )
    golden = (
        ToolInteraction("set_loan", {"loan_id": loan, "status": "lost", "fine": 12.5}),
        ToolInteraction("open_ticket", {"subject": "lost book", "priority": "low"}),
    )
    rubrics = ('Does the final message mention "12.5"?',)
    return Drafted(Task(public, GradingSpec(task_ref, golden, rubrics)))


_TEMPLATES = (Template("lend", _lend_task), Template("lost", _return_task))
LIBRARY = Domain(
    name="library",
    title="Library desk",
    schema_sql=SCHEMA,
    seed=SEED,
    sizes={
        "compact": Size("Lend books. Ask who is calling.", _ORDINARY, _TEMPLATES),
        "hostile": Size("Anything goes.", _HOSTILE, ()),
    },
    training=True,
    excluded_columns={"tickets": frozenset({"subject"})},
    ticket_tables=frozenset({"tickets"}),
)
DOMAINS = types.MappingProxyType({"library": LIBRARY})


def library_task(
    size: str = "compact", patch: dict[str, list[dict[str, Any]]] | None = None
) -> PublicTask:
    """A task without golden interactions, for tests of the sandbox alone."""
    return PublicTask(
        task_ref=f"library/{size}",
        domain="library",
        scenario_id=f"library/{size}",
        query="Hello",
        user_context={"facts": {}},
        initial_state_patch=patch or {},
        template="none",
    )
