"""Curation in one function: candidates + probes -> selection lists, aggregates, audit, manifest.

Deterministic and idempotent: the same inputs give the same bytes, so running it again changes
nothing and the manifest's hashes prove what a training pool was made of.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml

from tbrl.curation.expected_yield import PoolYield, mixed_probability, pool_yield
from tbrl.curation.posterior import (
    BANDS,
    UNPROBED,
    band_masses,
    more_probes_until_certain,
    posterior,
)
from tbrl.curation.probes import Probes, read_probes
from tbrl.curation.selection import Rule, Screen, Verdict, select
from tbrl.curation.split import stratified_split
from tbrl.errors import ConfigError
from tbrl.tasks.guard import refuse_eval_only
from tbrl.tasks.load import read_refs
from tbrl.types import PublicTask, Task


@dataclass(frozen=True, slots=True)
class CurationRequest:
    """Everything a curation depends on."""

    tasks: Sequence[Task]
    """Candidates."""
    probe_files: tuple[Path, ...]
    rule: Rule
    group_size: int
    groups_per_step: int
    screen_files: tuple[Path, ...] = ()
    """Probes of the reference policy; empty = no solvability screen."""
    screen: Screen = field(default_factory=Screen)
    fields: dict[str, str] = field(default_factory=dict)
    """Dotted field names of foreign probe files."""
    excluded: Collection[str] = ()
    exclusion_files: tuple[Path, ...] = ()
    test_share: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Curation:
    """What a curation decided."""

    verdicts: tuple[Verdict, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]
    expected: PoolYield
    """Of the training half."""
    out: Path


def curate(request: CurationRequest, out: Path) -> Curation:
    """Decide and write `selection.yaml`, `selection_test.yaml`, `aggregates.jsonl`, `audit.json`,
    `manifest.json` into `out`. ConfigError for evaluation-only candidates, malformed probes, and
    an empty selection."""
    refuse_eval_only(request.tasks, "stage=curate")
    by_ref = {task.task_ref: task.public for task in request.tasks}
    if len(by_ref) != len(request.tasks):
        raise ConfigError("curate: a task_ref occurs twice among the candidates")
    probes = read_probes(request.probe_files, request.fields)
    excluded = set(request.excluded).union(*map(read_refs, request.exclusion_files))
    verdicts = select(
        list(by_ref),
        probes,
        request.rule,
        excluded,
        request.screen if request.screen_files else None,
        read_probes(request.screen_files, request.fields),
    )
    kept = [verdict for verdict in verdicts if verdict.kept]
    if not kept:
        raise ConfigError(f"curate: nothing is kept of {len(by_ref)} candidates: {_why(verdicts)}")
    train, test = stratified_split(
        {v.task_ref: (by_ref[v.task_ref].domain, by_ref[v.task_ref].template) for v in kept},
        request.test_share,
        request.seed,
    )
    in_train = set(train)
    expected = pool_yield(
        [(v.k, v.n) for v in kept if v.task_ref in in_train],
        request.group_size,
        request.groups_per_step,
    )
    result = Curation(tuple(verdicts), tuple(train), tuple(test), expected, out)
    _write(request, result, by_ref, probes)
    return result


def _why(verdicts: Sequence[Verdict]) -> str:
    reasons = Counter(v.band if v.reason == "band" else v.reason for v in verdicts)
    return ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())


# ---------------------------------------------------------------- files


def _write(
    request: CurationRequest,
    result: Curation,
    by_ref: dict[str, PublicTask],
    probes: dict[str, Probes],
) -> None:
    files = {
        "selection.yaml": _yaml_list(result.train),
        "selection_test.yaml": _yaml_list(result.test),
        "aggregates.jsonl": b"".join(
            orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
            for row in _aggregates(request, result, by_ref)
        ),
        "audit.json": _json(_audit(result, by_ref, probes)),
    }
    files["manifest.json"] = _json(_manifest(request, files))
    result.out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (result.out / name).write_bytes(content)


def _aggregates(
    request: CurationRequest, result: Curation, by_ref: dict[str, PublicTask]
) -> list[dict[str, Any]]:
    """One row per candidate; what depends on (k, n) alone is computed once per pair."""
    split = {ref: "train" for ref in result.train} | {ref: "test" for ref in result.test}
    difficulty = {
        pair: _difficulty(request, *pair) for pair in {(v.k, v.n) for v in result.verdicts}
    }
    return [
        {
            **asdict(v),
            "domain": by_ref[v.task_ref].domain,
            "template": by_ref[v.task_ref].template,
            "knobs": by_ref[v.task_ref].knobs,
            "split": split.get(v.task_ref, ""),
            **difficulty[v.k, v.n],
        }
        for v in result.verdicts
    ]


def _difficulty(request: CurationRequest, k: int, n: int) -> dict[str, Any]:
    boundaries = request.rule.boundaries
    return {
        "posterior": posterior(k, n),
        "masses": dict(zip(BANDS, band_masses(k, n, boundaries).tolist(), strict=True)),
        "mixed_probability": mixed_probability(k, n, request.group_size),
        "more_probes": more_probes_until_certain(k, n, boundaries),
    }


def _audit(
    result: Curation, by_ref: dict[str, PublicTask], probes: dict[str, Probes]
) -> dict[str, Any]:
    """Balance: what selection and split did to the mix of domains and templates."""

    def counts(refs: Collection[str], level: str) -> dict[str, int]:
        return dict(sorted(Counter(getattr(by_ref[ref], level) for ref in refs).items()))

    kept = [v.task_ref for v in result.verdicts if v.kept]
    bands = Counter(v.band for v in result.verdicts)
    return {
        "candidates": len(by_ref),
        "kept": len(kept),
        "reasons": dict(sorted(Counter(v.reason for v in result.verdicts).items())),
        "bands": {band: bands[band] for band in (*BANDS, UNPROBED)},
        "balance": {
            level: {
                "candidates": counts(by_ref, level),
                "kept": counts(kept, level),
                "train": counts(result.train, level),
                "test": counts(result.test, level),
            }
            for level in ("domain", "template")
        },
        "lost_strata": sorted(
            {f"{t.domain}/{t.template}" for t in by_ref.values()}
            - {f"{by_ref[ref].domain}/{by_ref[ref].template}" for ref in kept}
        ),
        "probes": {
            "clean": sum(v.n for v in result.verdicts),
            "errors": sum(v.errors for v in result.verdicts),
            "of_unknown_tasks": sorted(set(probes) - set(by_ref)),
        },
        "expected": asdict(result.expected),
    }


def _manifest(request: CurationRequest, files: dict[str, bytes]) -> dict[str, Any]:
    tasks = sorted(request.tasks, key=lambda task: task.task_ref)
    return {
        "rule": asdict(request.rule),
        "screen": asdict(request.screen) if request.screen_files else None,
        "fields": request.fields,
        "group_size": request.group_size,
        "groups_per_step": request.groups_per_step,
        "test_share": request.test_share,
        "seed": request.seed,
        "inputs": {
            "candidates": _sha256(
                orjson.dumps([asdict(t) for t in tasks], option=orjson.OPT_SORT_KEYS)
            ),
            "excluded": _sha256(orjson.dumps(sorted(request.excluded))),
            "probe_files": _hashes(request.probe_files),
            "screen_files": _hashes(request.screen_files),
            "exclusion_files": _hashes(request.exclusion_files),
        },
        "outputs": {name: _sha256(content) for name, content in sorted(files.items())},
    }


def _yaml_list(refs: Sequence[str]) -> bytes:
    return yaml.safe_dump(list(refs), default_flow_style=False, allow_unicode=True).encode()


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hashes(paths: Sequence[Path]) -> list[dict[str, str]]:
    """By name and content: the folder a file lies in is no part of what was curated."""
    return [{"name": path.name, "sha256": _sha256(path.read_bytes())} for path in paths]
