"""Text of a tool argument -> JSON value, by the tool's JSON schema.

The XML call format carries no types: every value is text. The cast follows the serving stack's
rule (first type that fits, in the order of `_ORDER`), so that a model served elsewhere calls its
tools with the same values. One rule differs on purpose: what fits no allowed type stays the text
it was, and the tool's own validation answers it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from tbrl.types import JsonObject

_ORDER = ("null", "integer", "number", "boolean", "object", "array", "string")
_TYPE_OF_VALUE = (  # bool before int: True is an int in Python
    (type(None), "null"),
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


class CastError(ValueError):
    """The text fits no type that the schema allows."""


def allowed_types(schema: Any) -> tuple[str, ...]:
    """Types a value may have, in the order they are tried; `("string",)` where nothing is said.

    Collected from `type` (a name or a list), `nullable`, the values of `enum` and `const`, and the
    members of `anyOf`, `oneOf`, `allOf`.
    """
    found: set[str] = set()
    _collect(schema, found)
    return tuple(name for name in _ORDER if name in found) or ("string",)


def _collect(schema: Any, found: set[str]) -> None:
    if not isinstance(schema, dict):
        return
    declared = schema.get("type")
    found.update([declared] if isinstance(declared, str) else declared or ())
    if schema.get("nullable") is True:
        found.add("null")
    values = list(schema.get("enum") or ())
    if "const" in schema:
        values.append(schema["const"])
    for value in values:
        found.add(next(name for kind, name in _TYPE_OF_VALUE if isinstance(value, kind)))
    for key in ("anyOf", "oneOf", "allOf"):
        for member in schema.get(key) or ():
            _collect(member, found)


def cast(text: str, types: tuple[str, ...]) -> Any:
    """The value of `text` under the first fitting type. Raises CastError where none fits."""
    for name in types:
        try:
            return _CASTS[name](text)
        except (ValueError, KeyError, RecursionError, OverflowError):
            continue  # the next type may fit
    raise CastError(f"{text[:40]!r} is none of {', '.join(types)}")


def cast_arguments(
    arguments: Mapping[str, str], types: Mapping[str, tuple[str, ...]]
) -> tuple[JsonObject, bool]:
    """Each argument cast by its parameter's types, and whether all could be. Unknown parameters
    and failed casts stay text."""
    typed: JsonObject = {}
    whole = True
    for name, text in arguments.items():
        allowed = types.get(name)
        if allowed is None or allowed == ("string",):
            typed[name] = text
            continue
        try:
            typed[name] = cast(text, allowed)
        except CastError:
            typed[name] = text
            whole = False
    return typed, whole


def _null(text: str) -> None:
    if text.lower() != "null":
        raise ValueError(text)


def _number(text: str) -> int | float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return int(value) if value == int(value) else value


def _boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower().strip()]


def _structure(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = strict_json(text)
        if not isinstance(value, kind):
            raise ValueError(text)
        return value

    return read


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
)


def strict_json(text: str) -> Any:
    """JSON without NaN, infinities, duplicate keys or lone surrogates. Raises ValueError, or
    RecursionError on absurd nesting."""
    value = _DECODER.decode(text)
    if "\\u" in text:
        # A lone surrogate has no UTF-8 form and would break whoever stores or sends it.
        json.dumps(value, ensure_ascii=False).encode()
    return value


_CASTS: dict[str, Callable[[str], Any]] = {
    "null": _null,
    "integer": int,
    "number": _number,
    "boolean": _boolean,
    "object": _structure(dict),
    "array": _structure(list),
    "string": str,
}
