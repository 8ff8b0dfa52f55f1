"""Arguments of tool calls: what is wrong is answered in words, nothing crashes the world."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from fixture_domain import DOMAINS, LIBRARY, library_task
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tbrl.errors import ModelError
from tbrl.sandbox.arguments import MAX_TEXT, ArgumentCheck
from tbrl.sandbox.embedded import EmbeddedSandbox
from tbrl.types import ToolResult

TOOLS = {tool.spec.name: tool for tool in LIBRARY.sizes["compact"].tools}
DEEP: Any = "x"
for _ in range(40):
    DEEP = [DEEP]


def check(tool: str, arguments: Any) -> Any:
    return ArgumentCheck(TOOLS[tool].spec)(arguments)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("lend", {}, "missing argument 'member_id', 'code'"),
        (
            "lend",
            {"member_id": 1, "code": "B1", "colour": 1},
            "unknown argument 'colour'; known: member_id, code, note",
        ),
        (
            "lend",
            {"member_id": "1", "code": "B1"},
            "argument 'member_id': must be an integer, got '1'",
        ),
        (
            "lend",
            {"member_id": True, "code": "B1"},
            "argument 'member_id': must be an integer, got true",
        ),
        (
            "lend",
            {"member_id": 1.5, "code": "B1"},
            "argument 'member_id': must be an integer, got 1.5",
        ),
        (
            "lend",
            {"member_id": None, "code": "B1"},
            "argument 'member_id': must be an integer, got null",
        ),
        ("lend", {"member_id": 1, "code": ["B1"]}, "argument 'code': must be a string, got a list"),
        (
            "lend",
            {"member_id": 1, "code": "B1", "note": 3},
            "argument 'note': must be a string or null, got 3",
        ),
        (
            "set_loan",
            {"loan_id": 1, "status": "gone"},
            "must be one of 'open', 'returned', 'lost', got 'gone'",
        ),
        (
            "set_loan",
            {"loan_id": 1, "status": "lost", "tags": ["a", 2]},
            "argument 'tags[1]': must be a string, got 2",
        ),
        (
            "set_loan",
            {"loan_id": 1, "status": "lost", "fine": "2"},
            "argument 'fine': must be a number, got '2'",
        ),
        (
            "set_loan",
            {"loan_id": 1, "status": "lost", "fine": math.nan},
            "argument 'fine': nan is not a number JSON can hold",
        ),
        ("set_loan", {"loan_id": 1, "status": "lost", "fine": -math.inf}, "-inf is not a number"),
        ("lend", {"member_id": 2**63, "code": "B1"}, "the integer is too large (64 bits at most)"),
        ("lend", {"member_id": 1e300, "code": "B1"}, "the number is too large (64 bits at most)"),
        (
            "lend",
            {"member_id": 10**5000, "code": "B1"},
            "the integer is too large (64 bits at most)",
        ),
        (
            "lend",
            {"member_id": 1, "code": "B\x001"},
            "argument 'code': text must not hold a NUL character",
        ),
        (
            "lend",
            {"member_id": 1, "code": "\ud83d"},
            "argument 'code': text holds half of a character pair",
        ),
        (
            "lend",
            {"member_id": 1, "code": "x" * (MAX_TEXT + 1)},
            f"text of {MAX_TEXT + 1} characters, at most {MAX_TEXT}",
        ),
        ("lend", {"member_id": 1, "code": DEEP}, "is nested deeper than 16 levels"),
        ("lend", {"member_id": 1, "code": ["x"] * 5000}, "too many values"),
        ("lend", {"member_id": 1, "code": b"B1"}, "bytes is not a JSON value"),
        ("lend", {"member_id": 1, 2: 3}, "argument names must be strings, got 2"),
        ("lend", "B1", "arguments of lend must be an object, got 'B1'"),
        ("lend", None, "arguments of lend must be an object, got null"),
    ],
)
def test_the_answer_names_the_argument_and_what_is_wanted(
    tool: str, arguments: Any, words: str
) -> None:
    with pytest.raises(ModelError) as caught:
        check(tool, arguments)
    assert words in str(caught.value)
    str(caught.value).encode()


def test_an_integral_float_is_an_integer_and_everything_else_is_passed_on() -> None:
    given_arguments = {"loan_id": 3.0, "status": "lost", "fine": 2, "tags": ["b"]}
    passed = check("set_loan", given_arguments)
    assert passed == given_arguments
    assert type(passed["loan_id"]) is int and type(passed["fine"]) is int


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=20),
    st.sampled_from(
        ["\x00", "\ud800", "'; DROP TABLE loans; --", "x" * 9000, 2**63, -(2**70), "B1"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.one_of(
    st.sampled_from(["member_id", "loan_id", "code", "status", "fine", "tags", "text", "note"]),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=6),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*TOOLS, "no_such_tool"]), st.dictionaries(NAMES, VALUES, max_size=5))
def test_any_call_is_answered_and_leaves_the_world_usable(
    name: str, arguments: dict[str, Any]
) -> None:
    async def call() -> tuple[ToolResult, ToolResult]:
        session = await SANDBOX[0].open(library_task())
        first = await session.call_tool(name, arguments)
        second = await session.call_tool("get_member", {"member_id": 1})
        await session.close()
        return first, second

    first, second = asyncio.run(call())
    first.text.encode()
    assert not second.is_error


SANDBOX = [EmbeddedSandbox(DOMAINS)]
