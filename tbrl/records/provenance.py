"""Provenance: what a run was made of. One entry per start in provenance.json, so that a run
resumed with another package, model or pool says so.

Only hashes, versions and sizes are recorded: no environment values, no host or user names, no
paths of this machine.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import orjson

import tbrl
from tbrl.config import Config
from tbrl.policy.builtin import policy_folder
from tbrl.records.episodes import file_sha256
from tbrl.records.run_dir import RunDir, write_text
from tbrl.tasks.schema import row_of
from tbrl.types import JsonObject, Task

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


@dataclass(frozen=True, slots=True)
class Start:
    """One entry of provenance.json."""

    stage: str
    resumed: bool
    python: str
    platform: str
    """System, release family and machine type, e.g. `Linux x86_64`."""
    packages: dict[str, str]
    """{distribution: version} of everything installed."""
    revision: str
    """Git revision of the checkout, `+changes` behind it where tracked files differ; empty where
    tbrl does not run from a checkout."""
    source_sha256: str
    """Of the package's Python files: says the same where there is no git."""
    models: dict[str, JsonObject]
    """{role: {files: {name: sha256}, weights: sha256, tokenizer: sha256}}"""
    exclusions: dict[str, str]
    """{exclusion file name: sha256}"""
    topology: JsonObject
    task_sets: dict[str, JsonObject] = field(default_factory=dict)
    """{set: number of tasks and their hash, whatever their order}; see `record_tasks`."""


def write_provenance(run: RunDir, config: Config) -> None:
    """Append this start of a run. Task sets follow with `record_tasks`, once they are loaded."""
    models = {"policy": config.model.path, "reference": config.model.reference_path}
    record_start(
        run,
        describe_start(
            stage=config.stage,
            resumed=config.resume,
            models={role: Path(policy_folder(path)) for role, path in models.items() if path},
            exclusion_files=[Path(name) for name in config.tasks.exclude],
            topology={k: v for k, v in asdict(config.topology).items() if k != "ray_address"},
        ),
    )


def describe_start(
    *,
    stage: str,
    resumed: bool,
    models: dict[str, Path],
    exclusion_files: Iterable[Path],
    topology: JsonObject,
) -> Start:
    """`models` are local folders by role, e.g. {"policy": ..., "reference": ...}."""
    package = Path(tbrl.__file__).parent
    return Start(
        stage=stage,
        resumed=resumed,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        packages=installed_packages(),
        revision=git_revision(package.parent),
        source_sha256=_combined({str(p.relative_to(package)): p for p in package.rglob("*.py")}),
        models={role: model_hashes(folder) for role, folder in models.items()},
        exclusions={path.name: file_sha256(path) for path in exclusion_files},
        topology=topology,
    )


def record_start(run: RunDir, start: Start) -> None:
    """Append to provenance.json."""
    _write(run, [*read_starts(run), asdict(start)])


def record_tasks(run: RunDir, name: str, tasks: Iterable[Task]) -> None:
    """Add a task set (`candidate`, `heldout`, ...) to the present start."""
    starts = read_starts(run)
    starts[-1]["task_sets"][name] = task_set_hash(tasks)
    _write(run, starts)


def read_starts(run: RunDir) -> list[JsonObject]:
    """All starts of a run, oldest first."""
    return orjson.loads(run.provenance.read_bytes()) if run.provenance.exists() else []


def installed_packages() -> dict[str, str]:
    found = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def git_revision(checkout: Path) -> str:
    """Empty where `checkout` is not the root of a git work tree, or git is missing."""
    if not (checkout / ".git").exists():
        return ""
    try:
        revision = _git(checkout, "rev-parse", "HEAD")
        changes = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return revision + ("+changes" if changes else "")


def model_hashes(folder: Path) -> JsonObject:
    """Hashes of a model folder's files, and of weights and tokenizer each as a whole."""
    files = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
    weights = {n: p for n, p in files.items() if p.suffix in (".safetensors", ".gguf", ".bin")}
    return {
        "files": {name: file_sha256(path) for name, path in files.items()},
        "weights": _combined(weights),
        "tokenizer": _combined({n: files[n] for n in _TOKENIZER_FILES if n in files}),
    }


def task_set_hash(tasks: Iterable[Task]) -> JsonObject:
    """Independent of the tasks' order; changes with any field of any of them."""
    rows = sorted(orjson.dumps(row_of(task), option=orjson.OPT_SORT_KEYS) for task in tasks)
    return {"tasks": len(rows), "sha256": hashlib.sha256(b"\n".join(rows)).hexdigest()}


def _write(run: RunDir, starts: list[JsonObject]) -> None:
    text = orjson.dumps(starts, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    write_text(run.provenance, text.decode() + "\n")


def _combined(files: dict[str, Path]) -> str:
    lines = "".join(f"{name} {file_sha256(path)}\n" for name, path in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
