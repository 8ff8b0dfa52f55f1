"""Strict reading of tool calls: a block that does not follow the grammar is never executed.

    Qwen XML     <tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n...
                 </function>\\n</tool_call>
    Hermes JSON  <tool_call>\\n{"name": NAME, "arguments": {...}}\\n</tool_call>

Several blocks may follow each other; nothing but white space stands between and after them. A
VALUE loses one leading and one trailing newline and may hold any text but the format's own tags:
there a reader could only guess where the value ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from tbrl.episode.typing import allowed_types, cast_arguments, strict_json
from tbrl.errors import ConfigError
from tbrl.types import ToolCall, ToolSpec

ToolFormat = Literal["qwen_xml", "hermes_json"]
ParameterTypes = Mapping[str, tuple[str, ...]]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
XML_TAGS = (OPEN, CLOSE, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END)

_NAME = re.compile(r"[A-Za-z0-9_.:/\-]+")
# Readers that tolerate white space inside of tags would take these for tags.
_LOOSE_TAG = re.compile(r"<\s*/?\s*parameter\s*[=>]")


class MalformedCall(ValueError):
    """`rule` names the broken rule (for tables), the text is what the policy is told."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def detect_format(chat_template: str) -> ToolFormat:
    """The format a chat template teaches. Raises ConfigError where it teaches none."""
    if FUNCTION in chat_template:
        return "qwen_xml"
    if OPEN in chat_template:
        return "hermes_json"
    raise ConfigError(
        "model.tool_format=auto: the chat template shows neither <function= nor <tool_call>; "
        "set model.tool_format to qwen_xml or hermes_json"
    )


def parameter_types(tools: tuple[ToolSpec, ...]) -> dict[str, ParameterTypes]:
    """{tool: {parameter: types in the order they are tried}}."""
    return {
        tool.name: {
            name: allowed_types(schema)
            for name, schema in tool.parameters.get("properties", {}).items()
        }
        for tool in tools
    }


def stray_tag(text: str) -> str:
    """The first tag of the call format in a text; empty when there is none."""
    if "<" not in text:
        return ""
    return next((tag for tag in XML_TAGS if tag in text), "")


def read_blocks(
    text: str, tool_format: ToolFormat, types: Mapping[str, ParameterTypes]
) -> tuple[tuple[ToolCall, ...], bool]:
    """Calls of `text`, which starts with `<tool_call>`, and whether every argument fits its
    schema's types. All or nothing: raises MalformedCall."""
    calls: list[ToolCall] = []
    position, all_typed = 0, True
    while position < len(text):
        if not text.startswith(OPEN, position):
            raise MalformedCall("text_after_call", "text after a tool call")
        if tool_format == "qwen_xml":
            call, position, typed = _xml_block(text, position + len(OPEN), types)
            all_typed = all_typed and typed
        else:
            call, position = _json_block(text, position + len(OPEN))
        calls.append(call)
        position = _skip_space(text, position)
    return tuple(calls), all_typed


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _json_block(text: str, start: int) -> tuple[ToolCall, int]:
    end = text.find(CLOSE, start)
    if end < 0:
        raise MalformedCall("call_not_closed", "the tool call is not closed")
    try:
        value = strict_json(text[start:end].strip())
    except (ValueError, RecursionError):
        raise MalformedCall("bad_json", "the tool call is not valid JSON") from None
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        raise MalformedCall(
            "bad_call_object", 'a tool call is an object with exactly "name" and "arguments"'
        )
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise MalformedCall("bad_name", "the name of the tool is not valid")
    if not isinstance(arguments, dict):
        raise MalformedCall("bad_arguments", '"arguments" is not an object')
    return ToolCall(name, arguments), end + len(CLOSE)


def _xml_block(
    text: str, start: int, types: Mapping[str, ParameterTypes]
) -> tuple[ToolCall, int, bool]:
    start = _skip_space(text, start)
    if not text.startswith(FUNCTION, start):
        raise MalformedCall("no_function", "a tool call starts with its function")
    name, body_start = _tag_name(text, start + len(FUNCTION), "function")
    body_end = text.find(FUNCTION_END, body_start)
    if body_end < 0:
        raise MalformedCall("function_not_closed", f"function {name} is not closed")
    arguments = _parameters(text[body_start:body_end])
    end = _skip_space(text, body_end + len(FUNCTION_END))
    if not text.startswith(CLOSE, end):
        raise MalformedCall("call_not_closed", f"the call of {name} is not closed")
    typed, all_typed = cast_arguments(arguments, types.get(name, {}))
    return ToolCall(name, typed), end + len(CLOSE), all_typed


def _tag_name(text: str, start: int, what: str) -> tuple[str, int]:
    match = _NAME.match(text, start)
    if match is None or not text.startswith(">", match.end()):
        raise MalformedCall(f"bad_{what}_name", f"the name of a {what} is not valid")
    return match.group(), match.end() + 1


def _parameters(body: str) -> dict[str, str]:
    arguments: dict[str, str] = {}
    position = _skip_space(body, 0)
    while position < len(body):
        if not body.startswith(PARAMETER, position):
            raise MalformedCall("text_in_call", "text between the parameters of a call")
        name, start = _tag_name(body, position + len(PARAMETER), "parameter")
        end = body.find(PARAMETER_END, start)
        if end < 0:
            raise MalformedCall("parameter_not_closed", f"parameter {name} is not closed")
        if name in arguments:
            raise MalformedCall("duplicate_parameter", f"parameter {name} occurs twice")
        value = body[start:end]
        if stray_tag(value) or _LOOSE_TAG.search(value):
            raise MalformedCall("tag_in_value", f"parameter {name} holds a tag of the call format")
        arguments[name] = value.removeprefix("\n").removesuffix("\n")
        position = _skip_space(body, end + len(PARAMETER_END))
    return arguments
