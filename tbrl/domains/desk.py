"""What the helpdesks of full sizes share: help articles behind a search, customers, identity.

Their schemas hold

    CREATE VIRTUAL TABLE articles USING fts5 (title, body, tokenize = 'porter unicode61');
    customers      with id, name, phone, birth_date, postcode
    verifications  (customer_id PRIMARY KEY, passed)

A full-text table and its shadow tables are no business state: grading and patches do not see them.
"""

from __future__ import annotations

import re
from typing import Any

from tbrl.domains.base import World
from tbrl.errors import ModelError
from tbrl.types import JsonObject

MAX_HITS = 5
_WORD = re.compile(r"\w+")


def read_articles(text: str) -> list[JsonObject]:
    """Rows of `articles` from a document in which each `# ` line begins an article."""
    sections = re.split(r"^# ", text, flags=re.MULTILINE)[1:]
    pairs = [section.split("\n", 1) for section in sections]
    return [{"title": title.strip(), "body": body.strip()} for title, body in pairs]


def search_articles(world: World, query: str, limit: int) -> list[JsonObject]:
    """Best articles first: those with the most and rarest of the query's words (BM25). The query
    is words only, never search syntax. Raises ModelError for a query without a word."""
    words = list(dict.fromkeys(_WORD.findall(query.lower())))[:32]
    if not words:
        raise ModelError("the query holds no word")
    if not 1 <= limit <= MAX_HITS:
        raise ModelError(f"limit must be 1 to {MAX_HITS}")
    return world.all(
        "SELECT title, body FROM articles WHERE articles MATCH ? ORDER BY rank, rowid LIMIT ?",
        " OR ".join(f'"{word}"' for word in words),
        limit,
    )


def customer_of(world: World, customer_id: int) -> dict[str, Any]:
    """Raises ModelError when there is none."""
    row = world.one("SELECT * FROM customers WHERE id = ?", customer_id)
    if row is None:
        raise ModelError(f"no customer {customer_id}")
    return row


def verify(world: World, customer_id: int, birth_date: str, postcode: str) -> bool:
    """Compare with the file and record the result: grading sees who was checked."""
    row = customer_of(world, customer_id)
    passed = birth_date.strip() == row["birth_date"] and _plain(postcode) == _plain(row["postcode"])
    world.run(
        "INSERT INTO verifications (customer_id, passed) VALUES (?, ?)"
        " ON CONFLICT (customer_id) DO UPDATE SET passed = excluded.passed",
        customer_id,
        int(passed),
    )
    return passed


def same_phone(left: str, right: str) -> bool:
    """Digits alone count."""
    return re.sub(r"\D", "", left) == re.sub(r"\D", "", right)


def _plain(postcode: str) -> str:
    return postcode.replace(" ", "").upper()
