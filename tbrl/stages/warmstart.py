"""stage=warmstart: rebuild the tiny policies, base and reference, from demonstrations."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tbrl.config import Config
from tbrl.observability.view import RunView
from tbrl.policy.warmstart import NOISE, warmstart


def main(config: Config) -> None:
    """Writes `<warmstart.output>/base` and `/reference` (default: <runs_dir>/warmstart)."""
    root = Path(config.warmstart.output or Path(config.runs_dir) / "warmstart")
    console = Console(highlight=False)
    for name, noise in NOISE.items():
        with RunView(f"warm start of {name}", config.logger.live, console) as view:
            phases: dict[str, int] = {}

            def show(
                phase: str,
                done: int,
                total: int,
                loss: float,
                view: RunView = view,
                phases: dict[str, int] = phases,
                name: str = name,
            ) -> None:
                stage = f"{name}: {phase}"
                if stage not in phases:
                    phases[stage] = total
                    view.begin(stage, total)
                view.update(stage, done, f"loss {loss:.3f}" if loss else "")

            start = root / "base" if name == "reference" else None
            metrics = warmstart(config.warmstart, root / name, noise, show, start)
        console.print(
            f"{name}: {metrics.parameters / 1e6:.2f}M parameters, {metrics.demonstrations} "
            f"demonstrations ({metrics.right_share:.0%} right), loss {metrics.loss:.3f}, "
            f"{metrics.seconds:.0f} s -> {root / name}"
        )
