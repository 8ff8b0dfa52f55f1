"""Where actors run: Ray options of each worker and rank for a topology.

CPU: everything on this node; cores are shared, so no CPUs are reserved per actor.
GPU: one bundle a node in one placement group. A learner rank owns one GPU of its node; an engine
spans `tensor_parallel` GPUs of one node, sees exactly those, and shares them with the learner
ranks there when the topology is colocated (phases alternate), else gets the GPUs behind them.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tbrl.config import TopologyConfig
from tbrl.engine.environment import engine_environment
from tbrl.types import JsonObject

_KEEP_VISIBLE = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}


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
        ray.get(self._group.ready(), timeout=timeout_s)

    def learner(self, rank: int) -> JsonObject:
        t = self._topology
        if t.device == "cpu":
            return {"runtime_env": {"env_vars": self._cpu_env(t.threads_per_learner)}}
        node, device = divmod(rank, self._learners_per_node())
        return self._on_gpus(node, [device])

    def engine(self, index: int) -> JsonObject:
        t = self._topology
        if t.device == "cpu":
            return {}
        first_free = 0 if t.colocated else self._learners_per_node()
        per_node = (t.gpus_per_node - first_free) // t.tensor_parallel
        node, place = divmod(index, per_node)
        first = first_free + place * t.tensor_parallel
        return self._on_gpus(node, list(range(first, first + t.tensor_parallel)))

    def _learners_per_node(self) -> int:
        return -(-self._topology.learner_world // self._topology.nodes)

    def _on_gpus(self, node: int, devices: list[int]) -> JsonObject:
        assert self._group is not None, "reserve() comes first"
        visible = ",".join(str(device) for device in devices)
        environment = {**engine_environment("cuda", 1), **_KEEP_VISIBLE}
        # Bookkeeping is by visible devices, not by Ray's GPU counter: engines and learner ranks
        # share GPUs in alternating phases, which a counter cannot express.
        return {
            "num_gpus": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=node
            ),
            "runtime_env": {"env_vars": {**environment, "CUDA_VISIBLE_DEVICES": visible}},
        }

    def _cpu_env(self, threads: int) -> dict[str, Any]:
        return engine_environment("cpu", threads)
