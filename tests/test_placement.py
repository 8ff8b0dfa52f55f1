"""Who gets which GPU: the arithmetic of placement, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tbrl.actors.placement import Placement
from tbrl.config import TopologyConfig
from tbrl.launch import compose_config


def placed(topology: TopologyConfig) -> Placement:
    placement = Placement(topology)
    placement._group = object()  # type: ignore[assignment]  # what reserve() would hold
    return placement


def where(options: dict[str, Any]) -> tuple[int, str]:
    strategy = options["scheduling_strategy"]
    visible = options["runtime_env"]["env_vars"]["CUDA_VISIBLE_DEVICES"]
    return strategy.placement_group_bundle_index, visible


@pytest.fixture
def reference() -> TopologyConfig:
    return compose_config(["topology=h100x24"]).topology


def test_six_engines_of_four_gpus_fill_three_nodes(reference: TopologyConfig) -> None:
    engines = [where(placed(reference).engine(index)) for index in range(6)]
    assert engines == [(n, d) for n in range(3) for d in ("0,1,2,3", "4,5,6,7")]


def test_every_learner_rank_has_a_gpu_of_its_own(reference: TopologyConfig) -> None:
    ranks = [where(placed(reference).learner(rank)) for rank in range(24)]
    assert ranks == [(n, str(d)) for n in range(3) for d in range(8)]


def test_engines_that_are_not_colocated_get_the_gpus_behind_the_learners() -> None:
    topology = TopologyConfig(
        device="cuda",
        nodes=1,
        gpus_per_node=8,
        learner_world=4,
        rollout_workers=2,
        tensor_parallel=2,
        colocated=False,
    )
    placement = placed(topology)
    assert [where(placement.engine(i))[1] for i in range(2)] == ["4,5", "6,7"]
    assert [where(placement.learner(r))[1] for r in range(4)] == ["0", "1", "2", "3"]


def test_on_cpu_nothing_is_reserved() -> None:
    placement = Placement(TopologyConfig())
    placement.reserve()
    assert placement.engine(0) == {}
    variables = placement.learner(0)["runtime_env"]["env_vars"]
    assert "CUDA_VISIBLE_DEVICES" not in variables
