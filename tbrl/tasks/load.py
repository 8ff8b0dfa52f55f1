"""Tasks from wherever the configuration says, checked: the one entry of this package.

candidate  may train (embedded training domains; a file's candidates)
warmstart  demonstrations (embedded only)
heldout    evaluation of trained domains: names and ids that training never saw; with it, as
           split `transfer`, tasks of domains that never train
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson
import yaml

from tbrl.config import TasksConfig
from tbrl.domains.base import Domain
from tbrl.domains.names import names_of
from tbrl.domains.registry import all_domains, domain_of, training_domains
from tbrl.errors import ConfigError
from tbrl.rewards.golden import GoldenReplay
from tbrl.tasks.check import check_tasks
from tbrl.tasks.embedded import generate_tasks
from tbrl.tasks.guard import refuse_eval_only
from tbrl.tasks.schema import read_tasks
from tbrl.tasks.thinkingbox import is_dataset_folder, is_dump_row, read_dataset_folder, read_dump
from tbrl.types import Task

SPLITS = ("candidate", "warmstart", "heldout")
_EMBEDDED = "embedded"


def load_tasks(config: TasksConfig, split: str) -> list[Task]:
    """Tasks of a split, valid and unique by task_ref. For `candidate` and `warmstart` nothing that
    is for evaluation only, without `exclude`d task_refs, and only the `pool` where one is named.

    Raises ConfigError: unknown split, domain, file or size, an invalid task, an evaluation-only
    task where one would train, a pool that names a task that is not there, no task left.
    """
    if split not in SPLITS:
        raise ConfigError(f"split={split!r} is unknown; choose one of {', '.join(SPLITS)}")
    if config.source == _EMBEDDED:
        tasks = _embedded(config, split)
    else:
        wanted = ("", "heldout", "transfer") if split == "heldout" else ("", split)
        tasks = [t for t in read_source(Path(config.source)) if t.public.split in wanted]
    if split != "heldout":
        refuse_eval_only(tasks, f"tasks.source={config.source}")
        tasks = _selected(tasks, config)
    if not tasks:
        raise ConfigError(f"tasks.source={config.source}: no task is left for split {split!r}")
    domains = {domain.name: domain for domain in all_domains()}
    local = [task for task in tasks if task.public.scenario_id.partition("/")[0] in domains]
    check_tasks(local, GoldenReplay(domains))
    return tasks


def read_source(path: Path) -> list[Task]:
    """Tasks of a file of our schema, a ThinkingBox dataset folder or a `dump-tests` JSONL, as they
    are. Raises ConfigError."""
    if path.is_dir():
        if not is_dataset_folder(path):
            raise ConfigError(f"tasks.source={path}: the folder holds no test cases")
        return read_dataset_folder(path)
    if path.suffix == ".jsonl" and path.is_file() and is_dump_row(_first_row(path)):
        return read_dump(path)
    return read_tasks(path)


def read_refs(path: Path) -> list[str]:
    """task_refs of a file, one a line or a YAML list; `#` begins a comment. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of task_refs")
    if path.suffix in (".yaml", ".yml"):
        found = yaml.safe_load(path.read_text()) or []
    else:
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
        found = [line for line in lines if line]
    if not isinstance(found, list) or not all(isinstance(ref, str) for ref in found):
        raise ConfigError(f"{path}: must be a list of task_refs")
    return found


def _embedded(config: TasksConfig, split: str) -> list[Task]:
    names = names_of(split)
    if split == "heldout":
        trained, never = _evaluated(config)
        drafted = generate_tasks(
            trained, config.size, config.heldout_per_template, config.seed, "heldout", names
        ) + generate_tasks(
            never, config.size, config.heldout_domain_per_template, config.seed, "transfer", names
        )
    else:
        drafted = generate_tasks(
            _trained(config), config.size, config.per_template, config.seed, split, names
        )
    return [draft.task for draft in drafted]


def _trained(config: TasksConfig) -> Iterable[Domain]:
    """The chosen domains that may train: held-out ones among them are for evaluation only."""
    chosen = [domain_of(name) for name in config.domains] or list(training_domains())
    trained = [domain for domain in chosen if domain.training]
    if not trained:
        raise ConfigError(
            f"tasks.domains={config.domains}: all of them are held out and never train; add one "
            f"of {[domain.name for domain in training_domains()]}"
        )
    return _sized(trained, config.size)


def _evaluated(config: TasksConfig) -> tuple[Iterable[Domain], Iterable[Domain]]:
    """Domains that train, domains that never do."""
    chosen = _sized([domain_of(name) for name in config.domains] or all_domains(), config.size)
    return [d for d in chosen if d.training], [d for d in chosen if not d.training]


def _sized(domains: Iterable[Domain], size: str) -> list[Domain]:
    found = [domain for domain in domains if size in domain.sizes]
    if not found:
        known = sorted({name for domain in all_domains() for name in domain.sizes})
        raise ConfigError(f"tasks.size={size!r}: no chosen domain has it; sizes: {known}")
    return found


def _selected(tasks: list[Task], config: TasksConfig) -> list[Task]:
    excluded = {ref for name in config.exclude for ref in read_refs(Path(name))}
    kept = {task.task_ref: task for task in tasks if task.task_ref not in excluded}
    if not config.pool:
        return list(kept.values())
    refs = read_refs(Path(config.pool))
    for ref in refs:
        if ref not in kept:
            why = "is excluded" if ref in excluded else f"is not in {config.source}"
            raise ConfigError(f"tasks.pool={config.pool}: task {ref!r} {why}")
    return [kept[ref] for ref in dict.fromkeys(refs)]


def _first_row(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        try:
            row = orjson.loads(file.readline())
        except orjson.JSONDecodeError:
            return {}
    return row if isinstance(row, dict) else {}
