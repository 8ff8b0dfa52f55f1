"""Tasks drawn from the embedded domains' templates: the same arguments give the same tasks, on any
machine and in any process."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from tbrl.domains.base import Domain, Drafted, Names, Template
from tbrl.errors import ConfigError
from tbrl.tasks.guard import content_hash

_DRAWS_PER_TASK = 20
"""Tries to draw a task that no earlier one equals."""


def generate_tasks(
    domains: Iterable[Domain],
    size: str,
    per_template: int,
    seed: int,
    split: str,
    names: Names,
) -> list[Drafted]:
    """`per_template` distinct tasks of every template of the domains that have this size, ordered
    by domain, template and number. Everything but `candidate` and `warmstart` tasks of training
    domains is marked eval_only.

    Raises ConfigError when a template cannot give so many distinct tasks.
    """
    drafted: list[Drafted] = []
    for domain in domains:
        if size not in domain.sizes:
            continue
        eval_only = split == "heldout" or not domain.training
        for template in domain.sizes[size].templates:
            prefix = f"embedded/{domain.name}/{size}/{template.name}/{split}"
            drafted += [
                _marked(draft, split, eval_only)
                for draft in _distinct(template, prefix, per_template, seed, names)
            ]
    return drafted


def _distinct(
    template: Template, prefix: str, count: int, seed: int, names: Names
) -> Iterable[Drafted]:
    seen: set[str] = set()
    number = 0
    for draw in range(count * _DRAWS_PER_TASK):
        if number == count:
            return
        rng = random.Random(f"{prefix}/{seed}/{draw}")
        drafted = template.make(rng, f"{prefix}/{seed}.{number}", names)
        content = content_hash(drafted.task)
        if content not in seen:
            seen.add(content)
            number += 1
            yield drafted
    if number < count:
        raise ConfigError(
            f"tasks.per_template={count}: template {prefix!r} gives only {number} distinct tasks"
        )


def _marked(drafted: Drafted, split: str, eval_only: bool) -> Drafted:
    task = drafted.task
    public = replace(task.public, split=split, eval_only=eval_only or task.public.eval_only)
    return replace(drafted, task=replace(task, public=public))
