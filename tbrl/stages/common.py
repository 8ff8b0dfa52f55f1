"""What several stages share: opening a run, and stopping in good order."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import OmegaConf

from tbrl.config import Config
from tbrl.errors import ConfigError, InvariantError, TbrlError
from tbrl.records.provenance import write_provenance
from tbrl.records.run_dir import RunDir
from tbrl.records.secrets import find_leaks


class Stopped(TbrlError):
    """The user stopped the run; nothing is lost. The message says how to go on."""

    def __init__(self, config: Config, why: str) -> None:
        super().__init__(
            f"{why}; continue with: python -m tbrl.launch run={config.run} "
            f"runs_dir={config.runs_dir} resume=true"
        )


def open_run(config: Config) -> RunDir:
    """The run's folder: made when it is new, opened when a stage adds its part to it.

    A whole pipeline never starts over an existing run (ConfigError): it resumes it, with the
    configuration that it was started with. Each stage refuses to write over its own results
    unless `resume` says so.
    """
    fresh = not (Path(config.runs_dir) / config.run).exists()
    if fresh or (config.stage == "pipeline" and not config.resume):
        run = RunDir.create(config.runs_dir, config.run)
        run.config.write_text(resolved_yaml(config))
    else:
        run = RunDir.existing(config.runs_dir, config.run)
        if config.stage == "pipeline":
            check_same(run, config)
        else:
            run.config.with_suffix(f".{config.stage}.yaml").write_text(resolved_yaml(config))
    write_provenance(run, config)
    return run


_MAY_CHANGE = ("resume", "dry_run", "stage", "logger", "runs_dir", "compare", "output", "step")
"""Top-level keys that a resumed run may set anew; `algorithm.steps` may grow too."""


def check_same(run: RunDir, config: Config) -> None:
    """A resumed run must be the run that it resumes. Raises ConfigError naming the first key."""
    old = OmegaConf.load(run.config)
    new = OmegaConf.create(resolved_yaml(config))
    for key in sorted(set(old) | set(new)):
        if key in _MAY_CHANGE or old.get(key) == new.get(key):
            continue
        was, now = old.get(key), new.get(key)
        if OmegaConf.is_dict(was) and OmegaConf.is_dict(now):
            names = [n for n in sorted(set(was) | set(now)) if was.get(n) != now.get(n)]
            names = [n for n in names if (key, n) != ("algorithm", "steps")]
            if not names:
                continue
            key, was, now = f"{key}.{names[0]}", was.get(names[0]), now.get(names[0])
        raise ConfigError(
            f"{key}={now} differs from the {was} that run {run.name!r} was started with; "
            "resume without that override, or start another run=<name>"
        )


def resolved_yaml(config: Config) -> str:
    """The configuration as YAML. It names environment variables, never their values."""
    return OmegaConf.to_yaml(OmegaConf.structured(config), resolve=True)


def check_secrets(config: Config, run: RunDir) -> None:
    """No value of a configured key variable may lie in the run's files. Raises InvariantError."""
    endpoints = (config.user.endpoint, config.judge.endpoint, config.evaluation.endpoint)
    names = {e.api_key_env for e in endpoints} | {config.sandbox.api_key_env}
    secrets = {name: os.environ[name] for name in names if os.environ.get(name)}
    leaks = find_leaks(run.root, secrets) if secrets else []
    if leaks:
        raise InvariantError(f"a secret lies in the files of this run: {leaks[0]}; delete them")


def results_of(run: RunDir, name: str) -> Path:
    """A results file of the run, which must exist."""
    path = run.evaluation / f"{name}.jsonl"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; run stage=evaluate first")
    return path
