"""How this package declares its actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import ray
from ray.actor import ActorHandle

from tbrl.types import JsonObject


def actor(*, restarts: int = 0, concurrency: int = 0) -> Callable[[type], Any]:
    """Decorator: a Ray actor that reserves no core of its own (placement decides where it runs)
    and whose calls are never retried behind our back: a call that failed may still have run.

    `restarts=-1` lets Ray rebuild it from its constructor's arguments as often as it dies.
    """
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": restarts, "max_task_retries": 0}
    if concurrency:
        options["max_concurrency"] = concurrency
    return cast(Callable[[type], Any], ray.remote(**options))


def spawn(actor_class: Any, *arguments: Any, options: JsonObject | None = None) -> ActorHandle:
    """Start an actor. `options` are Ray's: scheduling strategy, runtime environment, ..."""
    return actor_class.options(**(options or {})).remote(*arguments)
