"""What an object leads to: a walk over everything that the garbage collector can reach from it."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable
from typing import Any


def reachable(roots: Iterable[Any]) -> list[Any]:
    """All objects but modules, classes and module namespaces (those lead to the whole process)."""
    seen: dict[int, Any] = {}
    waiting = list(roots)
    while waiting:
        item = waiting.pop()
        if id(item) in seen or item is seen or isinstance(item, type | types.ModuleType):
            continue
        if isinstance(item, dict) and "__builtins__" in item:
            continue
        seen[id(item)] = item
        waiting += gc.get_referents(item)
    return list(seen.values())
