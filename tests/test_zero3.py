"""ZeRO-3 as a choice: what is refused, and how. Its steps are in test_learner_engines.py."""

from __future__ import annotations

import json

import pytest
from learner_toys import ToyPolicy

from tbrl.config import AlgorithmConfig, ModelConfig
from tbrl.errors import ConfigError
from tbrl.launch import compose_config
from tbrl.learner import deepspeed_package
from tbrl.learner.checkpoint import MANIFEST
from tbrl.learner.learner import GrpoLearner
from tbrl.types import Sampling
from tbrl.validate import validate


def test_a_checkpoint_of_another_engine_is_refused_with_its_name(tmp_path):
    subject = GrpoLearner(AlgorithmConfig(), ModelConfig(), Sampling(), policy=ToyPolicy())
    folder = subject.save(tmp_path, 1).result()
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["flat_shapes"] = {"mix": [7, 7]}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"topology\.learner_engine=zero3"):
        subject.load(folder)


def test_without_the_package_one_line_says_what_to_do(monkeypatch):
    monkeypatch.setattr(deepspeed_package, "find_spec", lambda name: None)
    config = compose_config(["stage=train", "topology.learner_engine=zero3"])
    with pytest.raises(ConfigError, match=r"learner_engine='zero3'.*install tbrl\[zero\]") as error:
        validate(config)
    assert "\n" not in str(error.value)
    validate(compose_config(["stage=train", "topology.learner_engine=zero3", "dry_run=true"]))


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["topology.learner_engine=ddp"], "learner_engine='ddp' is unknown"),
        (["topology.learner_offload=true"], "learner_offload=true is DeepSpeed's"),
        (["topology=h100x24", "topology.learner_engine=zero3"], "learner_offload=true or"),
    ],
)
def test_what_cannot_work_is_refused(overrides, line):
    with pytest.raises(ConfigError, match=line):
        validate(compose_config(["dry_run=true", *overrides]))
    offloaded = ["topology.learner_engine=zero3", "topology.learner_offload=true"]
    validate(compose_config(["dry_run=true", "topology=h100x24", *offloaded]))
