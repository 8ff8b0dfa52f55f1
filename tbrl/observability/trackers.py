"""Optional trackers of training metrics: TensorBoard and Weights & Biases, by configuration."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol

from tbrl.config import LoggerConfig
from tbrl.errors import ConfigError
from tbrl.types import JsonObject


class Tracker(Protocol):
    """Hears of each step."""

    def log(self, step: int, scalars: dict[str, float]) -> None: ...
    def close(self) -> None: ...


def build_trackers(config: LoggerConfig, folder: Path, run: str) -> list[Tracker]:
    """The trackers that are switched on. Raises ConfigError where a package is missing."""
    trackers: list[Tracker] = []
    if config.tensorboard:
        trackers.append(TensorBoard(folder / "tensorboard"))
    if config.wandb:
        trackers.append(WandB(folder, run))
    return trackers


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        _import("tensorboard", "logger.tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def log(self, step: int, scalars: dict[str, float]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Its mode and key are the user's own environment (WANDB_MODE, WANDB_API_KEY)."""

    def __init__(self, folder: Path, run: str) -> None:
        self._run: Any = _import("wandb", "logger.wandb").init(
            project="tbrl", name=run, dir=str(folder)
        )

    def log(self, step: int, scalars: dict[str, float]) -> None:
        self._run.log(scalars, step=step)

    def close(self) -> None:
        self._run.finish()


def _import(package: str, key: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ConfigError(
            f"{key}=true needs the package {package}: pip install 'tbrl[tracking]'"
        ) from None


def scalars_of(row: JsonObject) -> dict[str, float]:
    """The numbers of a metrics row, nested ones as `seconds/rollout`."""
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}/{key}": v for key, v in scalars_of(value).items()}
        elif isinstance(value, int | float) and name != "step":
            flat[name] = float(value)
    return flat
