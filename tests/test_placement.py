"""Who gets which GPU: the arithmetic of placement, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tbrl.actors.placement import Placement
from tbrl.config import TopologyConfig
from tbrl.devices import Place, engine_places, learner_places
from tbrl.errors import ConfigError
from tbrl.launch import compose_config
from tbrl.validate import validate


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


def test_engines_of_their_own_take_whole_nodes_behind_the_learners() -> None:
    topology = TopologyConfig(
        device="cuda",
        nodes=3,
        gpus_per_node=8,
        learner_world=8,
        rollout_workers=4,
        tensor_parallel=4,
        colocated=False,
    )
    assert {place.node for place in learner_places(topology)} == {0}
    assert engine_places(topology) == [
        Place(node, devices) for node in (1, 2) for devices in ((0, 1, 2, 3), (4, 5, 6, 7))
    ]


def test_every_gpu_of_a_colocated_engine_has_a_rank_to_take_weights_from(
    reference: TopologyConfig,
) -> None:
    ranks = {(place.node, *place.devices) for place in learner_places(reference)}
    engines = {(p.node, device) for p in engine_places(reference) for device in p.devices}
    assert engines == ranks and len(engines) == 24


GPU = ["stage=plan", "topology=h100x24"]


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["topology.weight_transfer=nccl"], "ipc hands weights over within a GPU"),
        (["topology.colocated=false"], "do not fit 3 nodes x 8 GPUs of their own"),
        (["topology.learner_world=12"], "use topology.learner_world=24"),
        (["topology.rollout_workers=7"], "7 engines x TP4"),
        # Enough GPUs in all, but the two nodes have three left each.
        (
            [
                "topology.nodes=2",
                "topology.learner_world=10",
                "topology.rollout_workers=2",
                "topology.colocated=false",
                "topology.weight_transfer=nccl",
                "topology.sequence_parallel=1",
            ],
            "an engine lies within one node",
        ),
    ],
)
def test_what_cannot_be_placed_is_refused(overrides: list[str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        validate(compose_config([*GPU, *overrides]))


def model_folder(folder: Path, **changes: Any) -> Path:
    fields = {"max_position_embeddings": 40960, "num_attention_heads": 32, **changes}
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "model.safetensors").touch()
    (folder / "chat_template.jinja").touch()
    return folder


REFERENCE = ["stage=train", "dry_run=true", *GPU[1:], "experiment=reference", "model=local"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "max_model_len=133248 is above the 40960 positions"),
        ({"max_position_embeddings": 262144, "num_attention_heads": 30}, "divide the 30 attention"),
        (
            {"max_position_embeddings": 262144, "layer_types": ["linear_attention"]},
            "linear_attention layers",
        ),
    ],
)
def test_a_model_that_the_topology_cannot_run_is_refused(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path, **changes)
    with pytest.raises(ConfigError, match=line):
        validate(compose_config([*REFERENCE, f"model.path={folder}"]))


@pytest.mark.parametrize(
    "scaling",
    [
        {
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
            }
        },
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    ],
)
def test_a_stretched_context_counts(scaling: dict[str, Any], tmp_path: Path) -> None:
    folder = model_folder(tmp_path, **scaling)
    room = ["engine.max_model_len=131072", "rollout.max_episode_tokens=131000"]
    validate(compose_config([*REFERENCE, *room, f"model.path={folder}"]))


def test_on_cpu_nothing_is_reserved() -> None:
    placement = Placement(TopologyConfig())
    placement.reserve()
    assert placement.engine(0) == {}
    variables = placement.learner(0)["runtime_env"]["env_vars"]
    assert "CUDA_VISIBLE_DEVICES" not in variables
