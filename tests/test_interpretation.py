"""Interpretation: every class of output has one reading; nothing malformed is ever acted on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import toy_tokenizer

from tbrl.episode import cases, corpus
from tbrl.episode.interpretation import KINDS, Interpreter, Reading
from tbrl.episode.typing import CastError, allowed_types, cast
from tbrl.errors import ConfigError
from tbrl.types import ToolCall, ToolSpec

XML = Interpreter(toy_tokenizer("chatml_xml"), corpus.TOOLS)
JSON = Interpreter(toy_tokenizer("qwen3"), corpus.TOOLS)
READERS = {"qwen_xml": XML, "hermes_json": JSON}
CASES = [(fmt, case) for fmt in READERS for case in cases.cases(fmt)]


@pytest.mark.parametrize(
    ("fmt", "case"), CASES, ids=[f"{fmt}-{case.name}".replace(" ", "_") for fmt, case in CASES]
)
def test_hand_made_output_has_its_reading(fmt: str, case: cases.Case) -> None:
    reading = READERS[fmt].read_text(case.text, case.finish_reason)
    assert reading.kind == case.kind
    assert reading.calls == tuple(ToolCall(name, arguments) for name, arguments in case.calls)
    assert reading.done == case.done
    assert case.rule in (reading.rule, "*")
    if case.kind != "malformed_call" or case.visible:
        assert case.visible in (reading.text, "*")
        assert case.reasoning in (reading.reasoning, "*")
    assert (reading.error is None) == (case.kind in ("text", "calls", "truncated"))


def test_types_of_true_and_one_are_kept_apart() -> None:
    call = XML.read_text(cases.xml_call("book", count="1", express="1"), "stop").calls[0]
    assert call.arguments["count"] is not True and call.arguments["express"] is True


def assert_never_acts_on_malformed(reading: Reading) -> None:
    assert reading.kind in KINDS
    assert (reading.kind == "calls") == bool(reading.calls)
    if reading.error is not None or reading.kind == "truncated":
        assert reading.calls == () and not reading.done
    for call in reading.calls:
        json.dumps(call.arguments, allow_nan=False, ensure_ascii=False).encode()


@given(st.integers(0, 2**32), st.sampled_from(["stop", "length"]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_mutated_output_is_never_a_crash_nor_a_wrong_call(
    seed: int, finish: str, reasons: bool
) -> None:
    turn = corpus.Corpus(seed, reasons).assistant()
    for fmt, reader in READERS.items():
        text = spelled(turn, fmt)
        for mutated in corpus.mutations(text, seed, 3):
            assert_never_acts_on_malformed(reader.read_text(mutated, finish))


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_has_a_reading(text: str) -> None:
    for reader in READERS.values():
        assert_never_acts_on_malformed(reader.read_text(text, "stop"))


@given(st.lists(st.sampled_from(
    ["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=p>", "</parameter>",
     "<think>", "</think>", "<|im_end|>", "\n", "x", '{"name": "f", "arguments": {}}', "<DONE>"]
), max_size=12))  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_only_whole_calls_in_grammatical_order_are_acted_on(pieces: list[str]) -> None:
    text = "".join(pieces)
    for reader in READERS.values():
        reading = reader.read_text(text, "stop")
        assert_never_acts_on_malformed(reading)
        if reading.calls:
            rest = text.partition("</think>")[2] if reading.reasoning else text
            assert rest.count("<tool_call>") == rest.count("</tool_call>") == len(reading.calls)


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=200, deadline=None)
def test_well_formed_turn_is_read_back_as_it_was(seed: int, reasons: bool) -> None:
    turn = corpus.Corpus(seed, reasons).assistant()
    for fmt, reader in READERS.items():
        reading = reader.read_text(spelled(turn, fmt) + "<|im_end|>", "stop")
        assert reading.error is None
        assert reading.text == turn["content"]
        assert reading.reasoning == turn["reasoning_content"]
        wanted = [call["function"] for call in turn.get("tool_calls", ())]
        assert [{"name": c.name, "arguments": c.arguments} for c in reading.calls] == wanted


def spelled(turn: dict, fmt: str) -> str:
    """The turn in its call format, written independently of any template."""
    thought = turn["reasoning_content"]
    parts = [f"<think>\n{thought}\n</think>\n\n{turn['content']}" if thought else turn["content"]]
    for call in turn.get("tool_calls", ()):
        function = call["function"]
        if fmt == "hermes_json":
            parts.append(cases.json_call(function["name"], **function["arguments"]))
            continue
        texts = {
            k: v if isinstance(v, str) else json.dumps(v) for k, v in function["arguments"].items()
        }
        parts.append(cases.xml_call(function["name"], **texts))
    return "\n".join(part for part in parts if part)


def test_sampled_ids_are_read_as_their_text() -> None:
    tokenizer = toy_tokenizer("chatml_xml")
    text = "Looking.\n" + cases.xml_call("look_up", id="12") + "<|im_end|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert XML.read(ids, "stop") == XML.read_text(text, "stop")
    assert XML.read(ids, "stop").calls == (ToolCall("look_up", {"id": 12}),)


def test_preopened_reasoning_is_split_without_its_opener() -> None:
    reader = Interpreter(toy_tokenizer("qwen35"), corpus.TOOLS, reasoning_preopened=True)
    assert reader.tool_format == "qwen_xml"
    reading = reader.read_text("plan\n</think>\n\n" + cases.xml_call("now"), "stop")
    assert (reading.reasoning, reading.kind) == ("plan", "calls")
    assert reader.read_text("plan", "stop").kind == "unterminated_reasoning"
    assert reader.read_text("<think>plan</think>Hi", "stop").reasoning == "plan"
    assert reader.read_text(cases.xml_call("now"), "stop").calls == ()


def test_other_tools_change_the_types_only() -> None:
    text = ToolSpec("look_up", "", {"type": "object", "properties": {"id": {"type": "string"}}})
    other = XML.with_tools((text,))
    output = cases.xml_call("look_up", id="7")
    assert other.read_text(output, "stop").calls[0].arguments == {"id": "7"}
    assert XML.read_text(output, "stop").calls[0].arguments == {"id": 7}


def test_unknown_format_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"model\.tool_format='yaml'"):
        Interpreter(toy_tokenizer("chatml_xml"), (), "yaml")
    with pytest.raises(ConfigError, match=r"model\.tool_format=auto"):
        Interpreter(toy_tokenizer("plain_text"), ())


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, ("string",)),
        ({"type": "integer"}, ("integer",)),
        ({"type": ["string", "null"]}, ("null", "string")),
        ({"type": "string", "nullable": True}, ("null", "string")),
        ({"enum": [1, "a", None]}, ("null", "integer", "string")),
        ({"const": True}, ("boolean",)),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, ("null", "array")),
        ({"oneOf": [{"type": "number"}, {"type": "string"}]}, ("number", "string")),
        ({"allOf": [{"type": "object"}]}, ("object",)),
        ({"$ref": "#/x"}, ("string",)),
    ],
)
def test_schema_allows_its_types(schema: dict, types: tuple[str, ...]) -> None:
    assert allowed_types(schema) == types


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_cast_restores_what_json_wrote(value: object) -> None:
    kinds = {
        type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string",
        list: "array", dict: "object",
    }  # fmt: skip
    kind = kinds[type(value)]
    text = value if isinstance(value, str) else json.dumps(value)
    assert cast(text, (kind,)) == value


def test_text_that_fits_no_type_is_an_error_for_cast() -> None:
    with pytest.raises(CastError, match="integer"):
        cast("three", ("integer",))
