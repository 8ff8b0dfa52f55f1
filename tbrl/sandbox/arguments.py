"""Arguments of a tool call against the tool's JSON schema, in words that a model can act on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from tbrl.errors import ModelError
from tbrl.types import JsonObject, ToolSpec

MAX_TEXT = 8192
"""Characters of one string."""
MAX_NODES = 2048
"""Values in one call, nested ones counted."""
MAX_DEPTH = 16
_INT64 = 2**63
_KINDS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


class ArgumentCheck:
    """Compiled once per tool."""

    __slots__ = ("_integers", "_spec", "_validator")

    def __init__(self, spec: ToolSpec) -> None:
        Draft202012Validator.check_schema(spec.parameters)
        self._spec = spec
        self._validator = Draft202012Validator(spec.parameters)
        properties = spec.parameters.get("properties", {})
        self._integers = frozenset(n for n, s in properties.items() if s.get("type") == "integer")

    def __call__(self, arguments: Any) -> JsonObject:
        """The arguments for the tool function. Raises ModelError naming the argument, what is wrong
        with it and what is wanted."""
        if not isinstance(arguments, dict):
            raise ModelError(
                f"arguments of {self._spec.name} must be an object, got {_shown(arguments)}"
            )
        check_values(arguments)
        errors = sorted(self._validator.iter_errors(arguments), key=_order)
        if errors:
            raise ModelError("; ".join(self._explain(error) for error in errors[:3]))
        # JSON has one number type: 3.0 is the integer 3
        return {
            name: int(value) if name in self._integers and isinstance(value, float) else value
            for name, value in arguments.items()
        }

    def _explain(self, error: ValidationError) -> str:
        while error.validator == "anyOf" and (closer := _closer(error)):
            error = closer
        place = _place(error.absolute_path)
        if error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return f"missing argument {', '.join(map(repr, missing))}{_inside(place)}"
        if error.validator == "additionalProperties":
            known = error.schema.get("properties", {})
            extra = sorted(set(error.instance) - set(known))
            return (
                f"unknown argument {', '.join(repr(_cut(name)) for name in extra)}{_inside(place)};"
                f" known: {', '.join(known) or 'none'}"
            )
        return f"argument {place!r}: {_wanted(error)}, got {_shown(error.instance)}"


def _closer(error: ValidationError) -> ValidationError | None:
    """Of an optional or union argument, the error inside the alternative of the right type."""
    inside = [e for e in error.context if e.validator != "type" or len(e.relative_path)]
    return min(inside, key=_order, default=None)


def check_values(arguments: JsonObject) -> None:
    """What no schema says: values that JSON, SQLite or UTF-8 cannot hold, and sizes. Raises
    ModelError."""
    waiting: list[tuple[str, Any, int]] = [("", arguments, 0)]
    seen = 0
    while waiting:
        place, value, depth = waiting.pop()
        seen += 1
        if seen > MAX_NODES:
            raise ModelError(f"too many values: at most {MAX_NODES} in one call")
        if depth > MAX_DEPTH:
            raise ModelError(f"argument {place!r} is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            for name, member in value.items():
                if not isinstance(name, str):
                    raise ModelError(f"argument names must be strings, got {_shown(name)}")
                _check_text("name of an argument", name)
                waiting.append((f"{place}.{name}" if place else name, member, depth + 1))
        elif isinstance(value, list):
            waiting += [(f"{place}[{i}]", member, depth + 1) for i, member in enumerate(value)]
        else:
            _check_scalar(place, value)


def _check_scalar(place: str, value: Any) -> None:
    if isinstance(value, str):
        _check_text(f"argument {place!r}", value)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise ModelError(f"argument {place!r}: the integer is too large (64 bits at most)")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ModelError(f"argument {place!r}: {value} is not a number JSON can hold")
        if value.is_integer() and not -_INT64 <= value < _INT64:
            raise ModelError(f"argument {place!r}: the number is too large (64 bits at most)")
    else:
        raise ModelError(f"argument {place!r}: {type(value).__name__} is not a JSON value")


def _check_text(what: str, text: str) -> None:
    if len(text) > MAX_TEXT:
        raise ModelError(f"{_cut(what)}: text of {len(text)} characters, at most {MAX_TEXT}")
    if "\x00" in text:
        raise ModelError(f"{_cut(what)}: text must not hold a NUL character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ModelError(f"{_cut(what)}: text holds half of a character pair") from None


def _order(error: ValidationError) -> tuple[str, str]:
    return (_place(error.absolute_path), str(error.validator))


def _place(path: Iterable[str | int]) -> str:
    place = ""
    for step in path:
        place += f"[{step}]" if isinstance(step, int) else (f".{step}" if place else step)
    return place


def _inside(place: str) -> str:
    return f" in {place!r}" if place else ""


def _wanted(error: ValidationError) -> str:
    if error.validator == "type":
        kinds = error.validator_value
        kinds = [kinds] if isinstance(kinds, str) else kinds
        return f"must be {' or '.join(_KINDS[kind] for kind in kinds)}"
    if error.validator == "enum":
        return f"must be one of {', '.join(repr(value) for value in error.validator_value)}"
    if error.validator == "anyOf":
        kinds = [s.get("type", "") for s in error.validator_value]
        options = [repr(v) for s in error.validator_value for v in s.get("enum", [])]
        if options:
            return f"must be one of {', '.join(options)}{' or null' if 'null' in kinds else ''}"
        return f"must be {' or '.join(_KINDS.get(kind, 'as in the schema') for kind in kinds)}"
    return f"must satisfy {error.validator} = {error.validator_value}"


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{_KINDS['object' if isinstance(value, dict) else 'array']}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return "a huge integer"
    return _cut(repr(value))


def _cut(text: str) -> str:
    """At most 60 characters, and nothing that cannot be encoded."""
    return (text if len(text) <= 60 else text[:57] + "...").encode(errors="replace").decode()
