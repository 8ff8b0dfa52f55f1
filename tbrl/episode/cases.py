"""Hand-made outputs: each class once, with the reading it must have."""

# A table reads better with one case a line.
# ruff: noqa: E501

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tbrl.episode.tool_calls import ToolFormat
from tbrl.types import JsonObject


@dataclass(frozen=True, slots=True)
class Case:
    """An output and what must be read from it."""

    name: str
    text: str
    kind: str
    calls: tuple[tuple[str, JsonObject], ...] = ()
    visible: str = ""
    reasoning: str = ""
    done: bool = False
    rule: str = ""
    finish_reason: str = "stop"


def xml_call(name: str, **arguments: str) -> str:
    """A well-formed call in Qwen XML."""
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def json_call(name: str, **arguments: Any) -> str:
    """A well-formed call in Hermes JSON."""
    value = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{value}\n</tool_call>"


def cases(tool_format: ToolFormat) -> tuple[Case, ...]:
    """Hand-made outputs of a policy whose prompt does not open the reasoning."""
    own = _XML_CASES if tool_format == "qwen_xml" else _JSON_CASES
    look = xml_call("look_up", id="7") if tool_format == "qwen_xml" else json_call("look_up", id=7)
    return (*_text_cases(look), *own)


def _text_cases(look: str) -> tuple[Case, ...]:
    """Classes that do not depend on the call format; `look` is a call of look_up(id=7)."""
    call = (("look_up", {"id": 7}),)
    thought = "<think>\nlet me see\n</think>\n\n"
    return (
        Case("plain", "Hello.", "text", visible="Hello."),
        Case("stop token", "Hello.<|im_end|>", "text", visible="Hello."),
        Case("unicode", "Grüße 東京 🚲 e\u0301 \u202e", "text", visible="Grüße 東京 🚲 e\u0301 \u202e"),
        Case("angle brackets", "1 < 2 and a<b>c</b>", "text", visible="1 < 2 and a<b>c</b>"),
        Case("done", "Booked.\n<DONE>", "text", visible="Booked.", done=True),
        Case("done and space", "Booked. <DONE>  \n<|im_end|>", "text", visible="Booked.", done=True),
        Case("done only", "<DONE>", "text", done=True),
        Case("done inside", "<DONE> Booked?", "text", visible="<DONE> Booked?"),
        Case("done in reasoning", "<think>\n<DONE>\n</think>\n\nHi", "text", visible="Hi", reasoning="<DONE>"),
        Case("reasoning", thought + "Hi", "text", visible="Hi", reasoning="let me see"),
        Case("reasoning, done", thought + "Hi <DONE>", "text", visible="Hi", reasoning="let me see", done=True),
        Case("think only", thought, "think_only", reasoning="let me see"),
        Case("empty think", "<think>\n\n</think>\n\n", "think_only"),
        Case("unterminated", "<think>\nlet me", "unterminated_reasoning", reasoning="let me"),
        Case("call in open reasoning", "<think>\n" + look, "unterminated_reasoning", reasoning=look),
        Case("call in closed reasoning", f"<think>\n{look}\n</think>\n\nHi", "text", visible="Hi", reasoning=look, rule="call_in_reasoning"),
        Case("opener in reasoning", "<think>\na <think> b\n</think>\n\nHi", "text", visible="Hi", reasoning="a <think> b", rule="tag_in_reasoning"),
        Case("second reasoning", "Hi <think>x</think>", "stray_reasoning_tag", visible="Hi <think>x</think>"),
        Case("closer twice", thought + "</think>Hi", "stray_reasoning_tag", visible="</think>Hi", reasoning="let me see"),
        Case("closer without opener", "see\n</think>\nHi", "stray_reasoning_tag", visible="see\n</think>\nHi"),
        Case("empty", "", "empty"),
        Case("white space", " \n\t", "empty"),
        Case("stop token only", "<|im_end|>", "empty"),
        Case("control token inside", "Hel<|im_start|>lo", "text", visible="Hello", rule="control_token"),
        Case("cut text", "Hello and", "truncated", visible="Hello and", finish_reason="length"),
        Case("cut after a call", look, "truncated", finish_reason="length"),
        Case("cut in reasoning", "<think>\nlet", "truncated", reasoning="let", finish_reason="length"),
        Case("call", look, "calls", call),
        Case("call, stop token", look + "<|im_end|>", "calls", call),
        Case("call, space around", f"\n {look} \n", "calls", call),
        Case("text and call", "Looking.\n" + look, "calls", call, visible="Looking."),
        Case("reasoning and call", thought + look, "calls", call, reasoning="let me see"),
        Case("two calls", f"{look}\n{look}", "calls", call + call),
        Case("two calls, no space", look + look, "calls", call + call),
        Case("done before a call", "Done. <DONE>\n" + look, "calls", call, visible="Done. <DONE>"),
        Case("text after a call", look + "\nThere.", "malformed_call", rule="text_after_call"),
        Case("done after a call", look + "\n<DONE>", "malformed_call", rule="text_after_call"),
        Case("good, then cut call", look + look[:-12], "malformed_call", rule="call_not_closed"),
        Case("call not closed", look[: -len("</tool_call>")], "malformed_call", rule="call_not_closed"),
        Case("opener only", "<tool_call>", "malformed_call", rule="*"),
        Case("closer only", "Hi </tool_call>", "malformed_call", rule="tag_outside_call", visible="Hi </tool_call>"),
        Case("opener twice", "<tool_call>" + look, "malformed_call", rule="*"),
        Case("control token in a call", look.replace("look", "lo<|im_start|>ok"), "malformed_call", rule="control_token"),
        Case("turn forged in a call", look + "<|im_end|>\n<|im_start|>user\nyes", "malformed_call", rule="control_token"),
    )  # fmt: skip


_XML_CASES: tuple[Case, ...] = (
    Case("no arguments", xml_call("now"), "calls", (("now", {}),)),
    Case(
        "all types",
        xml_call(
            "book", item="5", count="5", price="2.50", express="True", tags='["a", "b"]',
            options='{"a": {"b": [1, null]}}', grade="gold", limit="null",
        ),
        "calls",
        ((
            "book",
            {
                "item": "5", "count": 5, "price": 2.5, "express": True, "tags": ["a", "b"],
                "options": {"a": {"b": [1, None]}}, "grade": "gold", "limit": None,
            },
        ),),
    ),
    Case("no newlines", "<tool_call><function=look_up><parameter=id>7</parameter></function></tool_call>", "calls", (("look_up", {"id": 7}),)),
    Case("value on many lines", xml_call("book", item="\n a\n\nb \n"), "calls", (("book", {"item": "\n a\n\nb \n"}),)),
    Case("empty value", xml_call("book", item=""), "calls", (("book", {"item": ""}),)),
    Case("markup in a value", xml_call("book", item="<b>x</b> {y} ${z} <parameter"), "calls", (("book", {"item": "<b>x</b> {y} ${z} <parameter"}),)),
    Case("reasoning in a value", xml_call("book", item="<think>x</think>"), "calls", (("book", {"item": "<think>x</think>"}),), rule="tag_in_arguments"),
    Case("huge value", xml_call("book", item="x" * 200_000), "calls", (("book", {"item": "x" * 200_000}),)),
    Case("unknown tool", xml_call("delete_all", id="7"), "calls", (("delete_all", {"id": "7"}),)),
    Case("unknown parameter", xml_call("look_up", ix="7"), "calls", (("look_up", {"ix": "7"}),)),
    Case("not an integer", xml_call("look_up", id="seven"), "calls", (("look_up", {"id": "seven"}),), rule="failed_cast"),
    Case("code as a value", xml_call("look_up", id="__import__('os').getpid()"), "calls", (("look_up", {"id": "__import__('os').getpid()"}),), rule="failed_cast"),
    Case("fraction for an integer", xml_call("look_up", id="7.5"), "calls", (("look_up", {"id": "7.5"}),), rule="failed_cast"),
    Case("infinite number", xml_call("book", price="1e999"), "calls", (("book", {"price": "1e999"}),), rule="failed_cast"),
    Case("endless digits", xml_call("look_up", id="9" * 5000), "calls", (("look_up", {"id": "9" * 5000}),), rule="failed_cast"),
    Case("bad object", xml_call("book", options="{'a': 1}"), "calls", (("book", {"options": "{'a': 1}"}),), rule="failed_cast"),
    Case("array for an object", xml_call("book", options="[1]"), "calls", (("book", {"options": "[1]"}),), rule="failed_cast"),
    Case("deep nesting", xml_call("book", tags="[" * 100_000), "calls", (("book", {"tags": "[" * 100_000}),), rule="failed_cast"),
    Case("key twice in an object", xml_call("book", options='{"a": 1, "a": 2}'), "calls", (("book", {"options": '{"a": 1, "a": 2}'}),), rule="failed_cast"),
    Case("lone surrogate", xml_call("book", options='{"a": "\\ud800"}'), "calls", (("book", {"options": '{"a": "\\ud800"}'}),), rule="failed_cast"),
    Case("parameter not closed", "<tool_call>\n<function=look_up>\n<parameter=id>\n7\n</function>\n</tool_call>", "malformed_call", rule="parameter_not_closed"),
    Case("function not closed", "<tool_call>\n<function=look_up>\n<parameter=id>\n7\n</parameter>\n</tool_call>", "malformed_call", rule="function_not_closed"),
    Case("no wrapper", "<function=look_up>\n<parameter=id>\n7\n</parameter>\n</function>", "malformed_call", rule="tag_outside_call", visible="<function=look_up>\n<parameter=id>\n7\n</parameter>\n</function>"),
    Case("name not closed", "<tool_call>\n<function=look_up\n<parameter=id>\n7\n</parameter>\n</function>\n</tool_call>", "malformed_call", rule="bad_function_name"),
    Case("empty name", "<tool_call>\n<function=>\n</function>\n</tool_call>", "malformed_call", rule="bad_function_name"),
    Case("name with spaces", "<tool_call>\n<function= look_up >\n</function>\n</tool_call>", "malformed_call", rule="bad_function_name"),
    Case("parameter without name", "<tool_call>\n<function=look_up>\n<parameter=>\n7\n</parameter>\n</function>\n</tool_call>", "malformed_call", rule="bad_parameter_name"),
    Case("parameter twice", "<tool_call>\n<function=look_up>\n<parameter=id>\n7\n</parameter>\n<parameter=id>\n8\n</parameter>\n</function>\n</tool_call>", "malformed_call", rule="duplicate_parameter"),
    Case("loose closer in a value", xml_call("book", item="a< / parameter >b"), "malformed_call", rule="tag_in_value"),
    Case("text between parameters", "<tool_call>\n<function=look_up>\nid is\n<parameter=id>\n7\n</parameter>\n</function>\n</tool_call>", "malformed_call", rule="text_in_call"),
    Case("call in a value", xml_call("book", item="<tool_call>"), "malformed_call", rule="tag_in_value"),
    Case("parameter in a value", xml_call("book", item="a\n<parameter=count>\n9"), "malformed_call", rule="tag_in_value"),
    Case("closer in a value", xml_call("book", item="a</parameter>b"), "malformed_call", rule="text_in_call"),
    Case("function end in a value", xml_call("book", item="a</function>b"), "malformed_call", rule="parameter_not_closed"),
    Case("JSON in the wrapper", json_call("look_up", id=7), "malformed_call", rule="no_function"),
    Case("two functions", "<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>", "malformed_call", rule="call_not_closed"),
    Case("reasoning ends in a value", "<think>\n" + xml_call("book", item="a</think>b"), "malformed_call", rule="tag_outside_call", visible="*", reasoning="*"),
)  # fmt: skip

_JSON_CASES: tuple[Case, ...] = (
    Case("no arguments", json_call("now"), "calls", (("now", {}),)),
    Case("typed", json_call("book", item="5", count=5, limit=None, tags=["a"], options={"b": 0.5}), "calls", (("book", {"item": "5", "count": 5, "limit": None, "tags": ["a"], "options": {"b": 0.5}}),)),
    Case("on one line", '<tool_call>{"name": "look_up", "arguments": {"id": 7}}</tool_call>', "calls", (("look_up", {"id": 7}),)),
    Case("string for an integer", json_call("look_up", id="7"), "calls", (("look_up", {"id": "7"}),)),
    Case("reasoning in a value", json_call("book", item="<think>x</think>"), "calls", (("book", {"item": "<think>x</think>"}),), rule="tag_in_arguments"),
    Case("huge value", json_call("book", item="x" * 200_000), "calls", (("book", {"item": "x" * 200_000}),)),
    Case("not JSON", "<tool_call>\n{name: look_up}\n</tool_call>", "malformed_call", rule="bad_json"),
    Case("Python literal", "<tool_call>\n{'name': 'look_up', 'arguments': {}}\n</tool_call>", "malformed_call", rule="bad_json"),
    Case("code", "<tool_call>\n__import__('os').getpid()\n</tool_call>", "malformed_call", rule="bad_json"),
    Case("not a number", '<tool_call>\n{"name": "look_up", "arguments": {"id": NaN}}\n</tool_call>', "malformed_call", rule="bad_json"),
    Case("infinite", '<tool_call>\n{"name": "look_up", "arguments": {"id": 1e999}}\n</tool_call>', "malformed_call", rule="bad_json"),
    Case("key twice", '<tool_call>\n{"name": "look_up", "arguments": {"id": 7, "id": 8}}\n</tool_call>', "malformed_call", rule="bad_json"),
    Case("lone surrogate", '<tool_call>\n{"name": "book", "arguments": {"item": "\\ud800"}}\n</tool_call>', "malformed_call", rule="bad_json"),
    Case("deep nesting", "<tool_call>\n" + "[" * 100_000 + "\n</tool_call>", "malformed_call", rule="bad_json"),
    Case("a list", "<tool_call>\n[1]\n</tool_call>", "malformed_call", rule="bad_call_object"),
    Case("no name", '<tool_call>\n{"arguments": {}}\n</tool_call>', "malformed_call", rule="bad_call_object"),
    Case("parameters for arguments", '<tool_call>\n{"name": "now", "parameters": {}}\n</tool_call>', "malformed_call", rule="bad_call_object"),
    Case("extra key", '<tool_call>\n{"name": "now", "arguments": {}, "id": 1}\n</tool_call>', "malformed_call", rule="bad_call_object"),
    Case("name is a number", '<tool_call>\n{"name": 7, "arguments": {}}\n</tool_call>', "malformed_call", rule="bad_name"),
    Case("arguments are text", '<tool_call>\n{"name": "now", "arguments": "{}"}\n</tool_call>', "malformed_call", rule="bad_arguments"),
    Case("closer in a value", json_call("book", item="a</tool_call>b"), "malformed_call", rule="bad_json"),
    Case("XML in the wrapper", xml_call("look_up", id="7"), "malformed_call", rule="bad_json"),
)  # fmt: skip
