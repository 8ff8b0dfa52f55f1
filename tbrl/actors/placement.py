"""Where actors run: Ray options of each worker and rank for a topology.

CPU: everything on this node; cores are shared, so no CPUs are reserved per actor.
GPU: one bundle a node in one placement group. A learner rank owns one GPU of its node; an engine
spans `tensor_parallel` GPUs of one node and sees exactly those (devices.py says which).
"""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tbrl.config import TopologyConfig
from tbrl.devices import Place, engine_places, learner_places
from tbrl.engine.environment import engine_environment
from tbrl.errors import ConfigError
from tbrl.types import JsonObject

_KEEP_VISIBLE = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
# Memory of expandable segments is exported by file descriptors that the importing process may not
# take over in most containers, so weights would not reach the engines over CUDA IPC.
_PLAIN_SEGMENTS = {
    "PYTORCH_ALLOC_CONF": "expandable_segments:False",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
}


class Placement:
    """Options by rank and by engine index. Reserve with `reserve()` first."""

    def __init__(self, topology: TopologyConfig) -> None:
        self._topology = topology
        self._group: PlacementGroup | None = None

    def reserve(self, timeout_s: float = 120.0) -> None:
        """Reserve the nodes' GPUs; nothing to do on CPU."""
        t = self._topology
        if t.device == "cpu":
            return
        bundles = [{"GPU": float(t.gpus_per_node), "CPU": 1.0} for _ in range(t.nodes)]
        self._group = placement_group(bundles, strategy="STRICT_SPREAD" if t.nodes > 1 else "PACK")
        try:
            ray.get(self._group.ready(), timeout=timeout_s)
        except GetTimeoutError:
            raise ConfigError(
                f"topology={t.name}: Ray cannot give {t.gpus_per_node} GPUs on each of {t.nodes} "
                f"nodes within {timeout_s:g} s; are others using them? See `ray status`"
            ) from None

    def learner(self, rank: int) -> JsonObject:
        t = self._topology
        if t.device == "cpu":
            return {"runtime_env": {"env_vars": self._cpu_env(t.threads_per_learner)}}
        return self._on_gpus(learner_places(t)[rank])

    def engine(self, index: int) -> JsonObject:
        t = self._topology
        return {} if t.device == "cpu" else self._on_gpus(engine_places(t)[index])

    def _on_gpus(self, place: Place) -> JsonObject:
        assert self._group is not None, "reserve() comes first"
        visible = ",".join(str(device) for device in place.devices)
        environment = {**engine_environment("cuda", 1), **_KEEP_VISIBLE, **_PLAIN_SEGMENTS}
        # Bookkeeping is by visible devices, not by Ray's GPU counter: engines and learner ranks
        # share GPUs in alternating phases, which a counter cannot express.
        return {
            "num_gpus": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=place.node
            ),
            "runtime_env": {"env_vars": {**environment, "CUDA_VISIBLE_DEVICES": visible}},
        }

    def _cpu_env(self, threads: int) -> dict[str, Any]:
        return engine_environment("cpu", threads)
