"""stage=openenv: the tasks as an OpenEnv environment, for trainers and clients that speak OpenEnv,
until stopped."""

from __future__ import annotations

from tbrl.config import Config


def main(config: Config) -> None:
    """Serves the tasks of `openenv.split` on `openenv.host` and `openenv.port`."""
    from tbrl.serving.openenv.server import serve

    serve(config)
