"""OpenAI chat requests, checked and brought into our terms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tbrl.episode.chat_template import Message
from tbrl.types import JsonObject, ToolSpec


class RequestError(Exception):
    """The client must act: an HTTP status and OpenAI's error fields."""

    def __init__(self, status: int, message: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> JsonObject:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "code": self.code, "param": None}}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request for a completion."""

    messages: list[Message]
    tools: tuple[ToolSpec, ...]
    sampling: JsonObject
    """Sampling parameters for the backend: temperature, top_p, top_k, seed."""
    max_tokens: int | None
    stream: bool
    include_usage: bool


_READ = {
    "model", "messages", "tools", "tool_choice", "temperature", "top_p", "top_k", "seed",
    "max_tokens", "max_completion_tokens", "stream", "stream_options", "n",
}  # fmt: skip
_WITHOUT_EFFECT = {"user", "metadata", "store", "parallel_tool_calls", "service_tier"}
_NUMBERS: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0.0, 100.0),
    "top_p": (float, 0.0, 1.0),
    "top_k": (int, -1, 1 << 20),
    "seed": (int, -(1 << 63), (1 << 63) - 1),
}
_DEFAULTS = {"temperature": 1.0, "top_p": 1.0}


def parse_request(body: bytes, model: str) -> ChatRequest:
    """Raises RequestError naming the field, its value and what would do."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError(400, "the body is not JSON") from None
    if not isinstance(data, dict):
        raise RequestError(400, "the body is not a JSON object")
    for name in data.keys() - _READ - _WITHOUT_EFFECT:
        if data[name] is not None:
            raise RequestError(400, f"{name} is not supported; leave it out", "unsupported")
    if data.get("model", model) != model:
        raise RequestError(404, f"model={data['model']!r} is not served; use {model!r}", "model")
    if data.get("n") not in (None, 1):
        raise RequestError(400, f"n={data['n']!r} is not supported; send n requests", "unsupported")
    if data.get("tool_choice") not in (None, "auto", "none"):
        raise RequestError(400, "tool_choice: only auto and none are supported", "unsupported")
    options = data.get("stream_options") or {}
    tools = () if data.get("tool_choice") == "none" else parse_tools(data.get("tools") or [])
    return ChatRequest(
        messages=parse_messages(data.get("messages")),
        tools=tools,
        sampling=_sampling(data),
        max_tokens=_max_tokens(data),
        stream=bool(data.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def _sampling(data: Mapping[str, Any]) -> JsonObject:
    values: JsonObject = dict(_DEFAULTS)
    for name, (kind, low, high) in _NUMBERS.items():
        value = data.get(name)
        if value is None:
            continue
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole or (kind is float and isinstance(value, float))) or not low <= value <= high:
            raise RequestError(400, f"{name}={value!r}: give a number from {low:g} to {high:g}")
        values[name] = value
    return values


def _max_tokens(data: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = data.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RequestError(400, f"{name}={value!r}: give a positive integer")
        return value
    return None


def parse_tools(tools: Any) -> tuple[ToolSpec, ...]:
    """OpenAI function tools as ToolSpecs."""
    try:
        functions = [tool["function"] for tool in tools]
        specs = tuple(
            ToolSpec(
                f["name"], f.get("description") or "", f.get("parameters") or {"type": "object"}
            )
            for f in functions
        )
    except (TypeError, KeyError, AttributeError):
        raise RequestError(400, "tools: each is {type: function, function: {name, ...}}") from None
    for spec in specs:
        if not isinstance(spec.name, str) or not isinstance(spec.parameters, dict):
            raise RequestError(400, f"tools: {spec.name!r} needs a name and a parameters object")
    return specs


def parse_messages(messages: Any) -> list[Message]:
    """OpenAI messages as our templates take them: text contents, arguments as objects, a tool's
    name from the call that its id names."""
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, "messages: give a list of at least one message")
    names: dict[str, str] = {}
    return [_message(number, message, names) for number, message in enumerate(messages)]


def _message(number: int, message: Any, names: dict[str, str]) -> Message:
    where = f"messages[{number}]"
    if not isinstance(message, dict):
        raise RequestError(400, f"{where} is not an object")
    role = message.get("role")
    content = _text(where, message.get("content"))
    match role:
        case "system" | "developer":
            return {"role": "system", "content": content}
        case "user":
            return {"role": "user", "content": content}
        case "tool":
            name = message.get("name") or names.get(str(message.get("tool_call_id")), "")
            return {"role": "tool", "name": name, "content": content}
        case "assistant":
            return _assistant(where, message, content, names)
    raise RequestError(400, f"{where}.role={role!r}: use system, user, assistant or tool")


def _text(where: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise RequestError(400, f"{where}.content: only text is supported")


def _assistant(
    where: str, message: Mapping[str, Any], content: str, names: dict[str, str]
) -> Message:
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    parsed: Message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    calls: list[JsonObject] = []
    for call in message.get("tool_calls") or ():
        try:
            function, arguments = call["function"], call["function"]["arguments"]
            if isinstance(arguments, str):
                arguments = json.loads(arguments or "{}")
            calls.append(
                {
                    "id": call.get("id") or "",
                    "type": "function",
                    "function": {"name": function["name"], "arguments": dict(arguments)},
                }
            )
        except (TypeError, KeyError, ValueError, RecursionError):
            raise RequestError(
                400, f"{where}.tool_calls: each has a function with a name and a JSON object"
            ) from None
        names[calls[-1]["id"]] = function["name"]
    if calls:
        parsed["tool_calls"] = calls
    return parsed
