"""Canonical state, its hash, effects and patches: pairs that are equal, pairs that are not."""

from __future__ import annotations

import random
import sqlite3
import types
import unicodedata
from typing import Any

import pytest
from fixture_domain import LIBRARY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tbrl.domains.base import Domain
from tbrl.errors import ConfigError
from tbrl.sandbox.effects import effects, json_effects
from tbrl.sandbox.snapshot import Snapshot
from tbrl.sandbox.state import json_state_hash, state_hash

SNAPSHOT = Snapshot(LIBRARY)
TABLES = SNAPSHOT.tables.values()


def changed(*statements: str | tuple[str, tuple[Any, ...]]) -> sqlite3.Connection:
    """A clone after some SQL."""
    conn = SNAPSHOT.clone({})
    for statement in statements:
        sql, values = (statement, ()) if isinstance(statement, str) else statement
        conn.execute(sql, values)
    return conn


def hash_of(conn: sqlite3.Connection) -> str:
    return state_hash(conn, TABLES, LIBRARY.excluded_columns)


def effects_of(conn: sqlite3.Connection) -> tuple[Any, ...]:
    return effects(SNAPSHOT.clone({}), conn, TABLES, LIBRARY.excluded_columns)


def log(*values: Any) -> sqlite3.Connection:
    return changed(("INSERT INTO log VALUES (?, ?)", values))


EQUAL = {
    "row order": (
        changed("INSERT INTO log VALUES ('a', 1)", "INSERT INTO log VALUES ('b', 2)"),
        changed("INSERT INTO log VALUES ('b', 2)", "INSERT INTO log VALUES ('a', 1)"),
    ),
    "row order with a key": (
        changed(
            "INSERT INTO members (id, name) VALUES (7, 'x')",
            "INSERT INTO members (id, name) VALUES (5, 'y')",
        ),
        changed(
            "INSERT INTO members (id, name) VALUES (5, 'y')",
            "INSERT INTO members (id, name) VALUES (7, 'x')",
        ),
    ),
    "int and float": (log("w", 33), log("w", 33.0)),
    "number as text in a numeric column": (
        changed("UPDATE books SET price = 33"),
        changed("UPDATE books SET price = '33.00'"),
    ),
    "bool and int": (log("w", True), log("w", 1)),
    "negative zero": (log("w", 0.0), log("w", -0.0)),
    "order of additions": (log("w", 0.1 + 0.2 + 0.3), log("w", 0.3 + 0.2 + 0.1)),
    "NULL and not named": (
        changed("INSERT INTO members (id, name, email) VALUES (5, 'y', NULL)"),
        changed("INSERT INTO members (id, name) VALUES (5, 'y')"),
    ),
    "timestamp offset": (log("2026-03-02T09:00:00Z", 0), log("2026-03-02 10:00:00+01:00", 0)),
    "timestamp fraction": (log("2026-03-02T09:00:00.500Z", 0), log("2026-03-02T09:00:00.5", 0)),
    "timestamp without seconds": (log("2026-03-02T09:00:00Z", 0), log("2026-03-02T09:00", 0)),
    "unicode form": (log("caf\u00e9", 0), log("cafe\u0301", 0)),
    "JSON key order and spacing": (log('{"a":1,"b":[2]}', 0), log('{ "b": [2.0], "a": 1 }', 0)),
    "JSON null member": (log('{"a":1,"b":null}', 0), log('{"a":1}', 0)),
    "an excluded column": (
        changed("INSERT INTO tickets VALUES (1, 'broken', 'low')"),
        changed("INSERT INTO tickets VALUES (1, 'does not work', 'low')"),
    ),
    "deleted and inserted again": (
        changed(),
        changed(
            "DELETE FROM books WHERE code = 'B2'", "INSERT INTO books VALUES ('B2', 'Emma', 0, 33)"
        ),
    ),
    "full-text documents": (changed(), changed("INSERT INTO docs VALUES ('new words')")),
}
DIFFERENT = {
    "one row twice": (log("a", 1), changed("INSERT INTO log VALUES ('a', 1), ('a', 1)")),
    "values swapped between rows": (
        changed("INSERT INTO log VALUES ('a', 1), ('b', 2)"),
        changed("INSERT INTO log VALUES ('a', 2), ('b', 1)"),
    ),
    "text that looks like a number": (log("007", 0), log("7", 0)),
    "text and number": (log("x", "33 euros"), log("x", 33)),
    "NULL and empty": (log(None, 0), log("", 0)),
    "NULL and zero": (log("a", None), log("a", 0)),
    "case": (log("Open", 0), log("open", 0)),
    "trailing space": (log("open", 0), log("open ", 0)),
    "date and midnight": (log("2026-03-02", 0), log("2026-03-02T00:00:00Z", 0)),
    "a second later": (log("2026-03-02T09:00:00Z", 0), log("2026-03-02T09:00:01Z", 0)),
    "nanoseconds": (log("2026-03-02T09:00:00.000000001Z", 0), log("2026-03-02T09:00:00Z", 0)),
    "not a date": (log("2026-02-31T09:00:00Z", 0), log("2026-03-03T09:00:00Z", 0)),
    "JSON list order": (log("[1,2]", 0), log("[2,1]", 0)),
    "JSON and a null list member": (log("[1,null]", 0), log("[1]", 0)),
    "large integers": (
        changed(("UPDATE books SET copies = ?", (2**53 + 1,))),
        changed(("UPDATE books SET copies = ?", (2**53,))),
    ),
    "infinity and NULL": (log("a", float("inf")), log("a", None)),
    "generated ids": (
        changed("INSERT INTO tickets VALUES (1, '', 'low')"),
        changed("INSERT INTO tickets VALUES (2, '', 'low')"),
    ),
    "blob and text": (log(b"ab", 0), log("ab", 0)),
    "deep JSON differs as text": (log("[" * 80 + "]" * 80, 0), log("[" * 80 + " " + "]" * 80, 0)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_one_state_in_two_spellings_has_one_hash_and_one_set_of_effects(name: str) -> None:
    left, right = EQUAL[name]
    assert hash_of(left) == hash_of(right)
    assert effects_of(left) == effects_of(right)


@pytest.mark.parametrize("name", DIFFERENT)
def test_two_states_have_two_hashes_and_two_sets_of_effects(name: str) -> None:
    left, right = DIFFERENT[name]
    assert hash_of(left) != hash_of(right)
    assert effects_of(left) != effects_of(right)


WORDS = st.sampled_from(
    ["a", "b", "", None, "\u00e9", "e\u0301", "2026-03-02T09:00:00Z", '{"x": 1}', '{"x": 1.0}']
)
NUMBERS = st.sampled_from([0, 1, 1.0, -1, 0.5, None, 2**60, "x"])
WRITES = st.lists(
    st.one_of(
        st.tuples(st.just("INSERT INTO log VALUES (?, ?)"), st.tuples(WORDS, NUMBERS)),
        st.tuples(st.just("DELETE FROM log WHERE word IS ?"), st.tuples(WORDS)),
        st.tuples(st.just("UPDATE log SET amount = ? WHERE word IS ?"), st.tuples(NUMBERS, WORDS)),
        st.tuples(st.just("UPDATE members SET email = ?"), st.tuples(WORDS)),
        st.tuples(
            st.just("INSERT OR REPLACE INTO books VALUES (?, 't', 1, ?)"),
            st.tuples(WORDS.filter(bool), NUMBERS),
        ),
    ),
    max_size=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WRITES, WRITES)
def test_effects_are_equal_exactly_when_hashes_are(one: list[Any], other: list[Any]) -> None:
    left, right, untouched = changed(*one), changed(*other), changed()
    assert (hash_of(left) == hash_of(right)) == (effects_of(left) == effects_of(right))
    assert (hash_of(left) == hash_of(untouched)) == (not effects_of(left))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WRITES, st.randoms(use_true_random=False))
def test_the_hash_does_not_depend_on_storage_order(writes: list[Any], rng: random.Random) -> None:
    conn = changed(*writes)
    rows = conn.execute("SELECT word, amount FROM log").fetchall()
    rng.shuffle(rows)
    shuffled = changed(*[w for w in writes if " log" not in w[0]])
    shuffled.executemany("INSERT INTO log VALUES (?, ?)", rows)
    assert hash_of(conn) == hash_of(shuffled)


@given(st.text(max_size=12))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_text_in_any_normal_form_is_one_state(text: str) -> None:
    if "\x00" in text:
        return
    forms = {hash_of(log(unicodedata.normalize(f, text), 0)) for f in ("NFC", "NFD")}
    assert len(forms) == 1


def test_effects_name_table_key_column_and_values() -> None:
    conn = changed(
        "UPDATE books SET copies = 1 WHERE code = 'B1'",
        "INSERT INTO tickets VALUES (4, 'hidden', 'high')",
        "DELETE FROM log",
    )
    shown = [(e.table, e.key, e.kind, e.column, e.before, e.after) for e in effects_of(conn)]
    assert shown == [
        ("books", '["B1"]', "updated", "copies", "2", "1"),
        ("tickets", "[4]", "inserted", "id", "", "4"),
        ("tickets", "[4]", "inserted", "priority", "", '"high"'),
    ]


def test_a_deleted_row_is_one_change_per_column() -> None:
    found = effects_of(changed("DELETE FROM books WHERE code = 'B2'"))
    assert {(e.kind, e.column, e.after) for e in found} == {
        ("deleted", column, "") for column in ("code", "title", "copies", "price")
    }


JSON_STATE = {"orders": [{"id": 1, "total": 33.0, "note": None}, {"id": 2}], "log": [{"w": "a"}]}


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        ({"log": [{"w": "a"}], "orders": [{"id": 2}, {"total": 33, "id": 1}]}, True),
        ({"log": [{"w": "a"}], "orders": [{"id": 2, "total": 33}, {"id": 1}]}, False),
        ({"log": [{"w": "a"}, {"w": "a"}], "orders": [{"id": 2}, {"total": 33, "id": 1}]}, False),
        ({"log": [{"w": "a", "hidden": 5}], "orders": [{"id": 2}, {"total": 33, "id": 1}]}, True),
    ],
)
def test_a_state_given_as_json_follows_the_same_rules(other: Any, equal: bool) -> None:
    excluded = {"log": frozenset({"hidden"})}
    assert (json_state_hash(JSON_STATE, excluded) == json_state_hash(other, excluded)) == equal
    assert (json_effects(JSON_STATE, other, excluded) == ()) == equal


def test_a_patch_row_keeps_the_columns_it_does_not_name() -> None:
    conn = SNAPSHOT.clone(
        {
            "books": [{"code": "B1", "copies": 9}, {"code": "B9", "title": "N", "copies": 1}],
            "log": [],
        }
    )
    assert conn.execute("SELECT title, copies FROM books ORDER BY code").fetchall() == [
        ("Dune", 9),
        ("Emma", 0),
        ("N", 1),
    ]


def test_patch_tables_may_come_in_any_order_of_their_references() -> None:
    conn = SNAPSHOT.clone(
        {
            "loans": [{"id": 1, "member_id": 5, "code": "B1"}],
            "members": [{"id": 5, "name": "late"}],
        }
    )
    assert conn.execute("SELECT COUNT(*) FROM loans").fetchone() == (1,)


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"boks": [{}]}, "no table 'boks'"),
        ({"docs": [{"text": "x"}]}, "no table 'docs'"),
        ({"books": [{"code": "B1", "colour": 1}]}, "no column 'colour'"),
        ({"books": [{"title": "x"}]}, "primary key (code)"),
        ({"log": [{"word": "x"}]}, "the table has none"),
        ({"loans": [{"id": 1, "member_id": 99, "code": "B1"}]}, "FOREIGN KEY"),
        ({"books": [{"code": "B7"}]}, "NOT NULL"),
        ({"books": [{"code": "B1", "copies": -1}]}, "CHECK"),
        ({"books": [{"code": "B1", "copies": 2**70}]}, "too large"),
        ({"books": [{"code": "\ud800", "title": "x", "copies": 1}]}, "surrogates"),
    ],
)
def test_a_bad_patch_is_one_clear_line(patch: dict[str, list[dict[str, Any]]], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SNAPSHOT.clone(patch)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_sql": "CREATE TABLE x ("}, "schema or seed"),
        ({"seed": {"books": [{"code": "B1"}]}}, "NOT NULL"),
        ({"excluded_columns": {"books": frozenset({"nope"})}}, "not in the schema"),
        ({"excluded_columns": {"books": frozenset({"code"})}}, "primary key"),
    ],
)
def test_a_domain_that_does_not_load_is_one_clear_line(change: dict[str, Any], words: str) -> None:
    fields = {f: getattr(LIBRARY, f) for f in Domain.__dataclass_fields__}
    with pytest.raises(ConfigError, match=words):
        Snapshot(Domain(**{**fields, **change}))


def test_a_clone_shares_nothing_with_its_snapshot_or_its_siblings() -> None:
    one, other = SNAPSHOT.clone({}), SNAPSHOT.clone({})
    one.execute("DELETE FROM books")
    assert other.execute("SELECT COUNT(*) FROM books").fetchone() == (2,)
    assert hash_of(SNAPSHOT.clone({})) == hash_of(other)
    assert isinstance(SNAPSHOT.tables, dict | types.MappingProxyType)
