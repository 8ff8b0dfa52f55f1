"""`python -m tbrl.launch [key=value ...]`: compose the configuration, validate it, run one stage.

    python -m tbrl.launch                                  the six stages on the embedded tasks
    python -m tbrl.launch stage=evaluate run=first         one stage
    python -m tbrl.launch dry_run=true topology=h100x24    print configuration and plan only
    python -m tbrl.launch -m stage=curate curation.boundaries=[...],[...]     a sweep

Errors of the user are one line on stderr and exit code 2; a failed run is one line and exit code
1; a run that was stopped says how to go on, exit code 130.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tbrl.config import Config
from tbrl.errors import ConfigError, TbrlError
from tbrl.stages.registry import STAGES, stage_main
from tbrl.validate import validate

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONF = Path(__file__).resolve().parent.parent / "conf"
_HELP = ("-h", "--help")
_SWEEP = ("-m", "--multirun")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong input, 130 stopped."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(flag in given for flag in _HELP):
        print(_usage())
        return 0
    try:
        if any(flag in given for flag in _SWEEP):
            return _sweep([a for a in given if a not in _SWEEP])
        return run(compose_config(given))
    except ConfigError as error:
        return _fail(str(error), 2)
    except TbrlError as error:
        return _fail(str(error), 130 if type(error).__name__ == "Stopped" else 1)
    except KeyboardInterrupt:
        return _fail("stopped; continue with the same command and resume=true", 130)


def compose_config(overrides: Sequence[str]) -> Config:
    """The typed configuration. Raises ConfigError, one line, for a bad override."""
    for override in overrides:
        if override.startswith("-"):
            raise ConfigError(f"option {override!r} is unknown; see python -m tbrl.launch --help")
        if "=" not in override:
            raise ConfigError(f"override {override!r} has no value; write key=value")
    ConfigStore.instance().store(name="schema", node=Config)
    try:
        with initialize_config_dir(str(CONF), version_base=None):
            composed: DictConfig = compose("config", overrides=list(overrides))
        typed: Any = OmegaConf.to_object(composed)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_one_line(error, overrides)) from None
    assert isinstance(typed, Config)
    return typed


def run(config: Config) -> int:
    """Validate and run one stage, or print what it would do."""
    validate(config)
    logging.basicConfig(level=config.logger.level, format="%(levelname)s %(name)s: %(message)s")
    # transformers would draw bars of its own into ours for each load and save.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if config.dry_run or config.stage == "plan":
        from tbrl.plan import print_plan

        print_plan(config)
        return 0
    stage_main(config.stage)(config)
    return 0


def _sweep(overrides: list[str]) -> int:
    from tbrl.stages.sweep import sweep

    return sweep(overrides, compose_config)


def _one_line(error: Exception, overrides: Sequence[str]) -> str:
    """Hydra and OmegaConf explain over several lines; the first and what follows it matter."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = error.__cause__
    if cause is not None and str(cause):
        lines += [line.strip() for line in str(cause).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "See https"))]
    text = "; ".join(dict.fromkeys(kept)) or type(error).__name__
    return f"{text} (overrides: {' '.join(overrides)})"


def _usage() -> str:
    assert __doc__ is not None
    stages = "\n".join(f"    {name:<10} {what}" for name, what in STAGES.items())
    groups = sorted(path.name for path in CONF.iterdir() if path.is_dir())
    return (
        f"{__doc__.strip()}\n\nStages:\n{stages}\n\nConfiguration groups (conf/): "
        f"{', '.join(groups)}\nEvery key is documented in tbrl/config.py; dry_run=true prints all."
    )


def _fail(line: str, code: int) -> int:
    print(f"tbrl: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
