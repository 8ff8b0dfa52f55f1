"""The Ray runtime of a run: a private cluster on this machine, or an existing one."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import ray

from tbrl.config import TopologyConfig
from tbrl.engine.environment import engine_environment
from tbrl.errors import ConfigError

NAMESPACE = "tbrl"


def start_ray(topology: TopologyConfig) -> Any:
    """Connect or start; returns Ray's context (its `dashboard_url` is set with the dashboard)."""
    environment = engine_environment(topology.device, topology.threads_per_engine)
    # Quiet, private, and with nothing sent anywhere.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray gives its workers a low priority; here they are the run, not a guest of it.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "logging_level": "ERROR",
        "runtime_env": {"env_vars": environment},
    }
    if topology.ray_address:
        context = ray.init(address=topology.ray_address, **common)
        _require_gpus(topology)
        return context
    return ray.init(
        num_cpus=topology.cpus or None,
        num_gpus=topology.gpus_per_node if topology.device == "cuda" else 0,
        include_dashboard=topology.dashboard,
        dashboard_host="127.0.0.1",
        object_store_memory=512 << 20 if topology.device == "cpu" else None,
        _temp_dir=os.path.join(tempfile.gettempdir(), f"tbrl-ray-{os.getuid()}"),
        **common,
    )


def _require_gpus(topology: TopologyConfig) -> None:
    needed = topology.nodes * topology.gpus_per_node
    found = int(ray.cluster_resources().get("GPU", 0))
    if topology.device == "cuda" and found < needed:
        raise ConfigError(
            f"topology={topology.name} needs {needed} GPUs, the Ray cluster has {found}: "
            "start more workers (launch/ray_worker.sh) or choose another topology"
        )


def stop_ray() -> None:
    ray.shutdown()
