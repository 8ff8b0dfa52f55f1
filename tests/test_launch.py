"""The entry point: composition, one-line errors before anything starts, the dry run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from engine_toys import write_policy

from tbrl.config import Config
from tbrl.errors import ConfigError
from tbrl.launch import compose_config, main
from tbrl.plan import ModelNumbers, check_fits, memory, model_numbers
from tbrl.stages.registry import STAGES, stage_main
from tbrl.stages.sweep import expand

POLICY = "model.path="


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_policy(tmp_path_factory.mktemp("launch") / "policy", 0)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture
def launch(capsys: pytest.CaptureFixture[str], policy: Path):
    def run(*overrides: str) -> tuple[int, str, str]:
        given = [*overrides]
        if not any(o.startswith("model") for o in overrides):
            given += [f"model.path={policy}", "model.reference_path="]
        code = main(given)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithm.group_size=1", "algorithm.group_size=1: a group needs at least 2 rollouts"),
        ("algorithm.steps=0", "algorithm.steps=0: must be at least 1"),
        ("algorithm.unknown=1", "algorithm.unknown"),
        ("algorithm.steps=many", "algorithm.steps"),
        ("algorithm.aggregation=mean", "algorithm.aggregation='mean' is unknown"),
        ("rollout.temperature=0", "rollout.temperature=0: must be above 0"),
        ("rollout.top_p=0", "rollout.top_p=0: must be above 0"),
        ("rollout.max_episode_tokens=5000", "does not fit engine.max_model_len=1024"),
        ("topology=nowhere", "topology/nowhere"),
        ("topology.weight_transfer=ipc", "topology.weight_transfer='ipc' needs GPUs"),
        ("topology=h100x24", "topology=h100x24 needs 24 GPUs, this machine has 0"),
        ("stage=fly", "stage='fly' is unknown; stages: pipeline"),
        ("user.kind=llm", "user.endpoint.base_url is empty"),
        ("model.path=/no/such/model", "'/no/such/model' is not a folder"),
        ("model.path=builtin:none", "builtin:none' is unknown"),
        ("steps", "override 'steps' has no value"),
        ("--fly", "option '--fly' is unknown"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(launch, override: str, said: str) -> None:
    code, _, err = launch(override)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_a_model_without_chat_template_is_refused_before_anything_starts(
    launch, tmp_path: Path
) -> None:
    bare = write_policy(tmp_path / "bare", 1)
    code, _, err = launch(f"model.path={bare}")
    assert code == 2
    assert "has no chat template" in err


def test_a_model_without_weights_is_refused(launch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code, _, err = launch(f"model.path={tmp_path}")
    assert (code, "holds no weights" in err) == (2, True)


@pytest.mark.parametrize("stage", STAGES)
def test_the_dry_run_of_every_stage_prints_configuration_and_plan(
    launch, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_API_KEY", "planted-credential-4711")
    code, out, err = launch(
        f"stage={stage}", "dry_run=true", "user.endpoint.api_key_env=PLANTED_API_KEY"
    )
    assert (code, err) == (0, "")
    assert "api_key_env: PLANTED_API_KEY" in out and "planted-credential" not in out
    assert f"stage: {stage}" in out
    assert "18 groups x 8 rollouts" in out


def test_the_dry_run_plans_the_24_gpu_topology_anywhere(launch) -> None:
    code, out, _ = launch("dry_run=true", "topology=h100x24", "model.engine_dtype=bfloat16")
    assert code == 0
    assert "3 x 8 GPUs, 6 engines x TP4, 24 learner ranks" in out


def test_the_dry_run_imports_neither_ray_nor_vllm_nor_torch(policy: Path) -> None:
    program = (
        "import sys, tbrl.launch as launch\n"
        f"code = launch.main(['dry_run=true', 'model.path={policy}', 'model.reference_path='])\n"
        "heavy = {'ray', 'vllm', 'torch', 'transformers'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy), code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "HEAVY [] 0" in done.stdout, done.stderr


def test_every_stage_answers_to_its_name() -> None:
    for name in STAGES:
        if name != "plan":  # answered by the launcher itself
            assert callable(stage_main(name))


def test_every_key_of_every_group_file_composes() -> None:
    conf = Path(__file__).parent.parent / "conf"
    for file in sorted(conf.glob("*/*.yaml")):
        group, name = file.parent.name, file.stem
        needed = ["model.path=x"] if (group, name) == ("model", "local") else []
        for key in ("user", "judge"):
            if (group, name) == (key, "llm"):
                needed += [f"{key}.endpoint.base_url=http://x/v1", f"{key}.endpoint.model=m"]
        assert isinstance(compose_config([f"{group}={name}", *needed]), Config)


def test_a_plan_that_cannot_fit_is_refused_and_names_the_largest_part(
    policy: Path, tmp_path: Path
) -> None:
    numbers = model_numbers(policy)
    config = compose_config(["topology=h100x8", "model.engine_dtype=bfloat16"])
    check_fits(memory(config, numbers))
    large = replace(numbers, parameters=int(60e9), layers=64)
    with pytest.raises(ConfigError, match="master, gradient, moments"):
        check_fits(memory(config, large))


REFERENCE = ["topology=h100x24", "experiment=reference", "model=local", "model.path=x"]
MODELS = {
    "Qwen3-8B": ModelNumbers(8_190_735_360, 36, 4096, 8, 128, 151936),
    "Qwen3-30B-A3B": ModelNumbers(30_532_122_624, 48, 2048, 4, 128, 151936),
    "Qwen3-32B": ModelNumbers(32_762_123_264, 64, 5120, 8, 128, 151936),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_run_fits_its_gpus_by_the_plans_own_estimate(name: str) -> None:
    needs = memory(compose_config(REFERENCE), MODELS[name])
    check_fits(needs)
    assert {need.phase for need in needs} == {"load", "train", "rollout", "learn", "hand over"}


def test_the_longest_episode_counts_and_needs_checkpointing() -> None:
    config = compose_config([*REFERENCE, "algorithm.gradient_checkpointing=false"])
    with pytest.raises(ConfigError, match="activations"):
        check_fits(memory(config, MODELS["Qwen3-8B"]))


def test_model_numbers_count_the_parameters_of_the_file(policy: Path) -> None:
    from safetensors.torch import load_file

    expected = sum(t.numel() for t in load_file(policy / "model.safetensors").values())
    numbers = model_numbers(policy)
    assert numbers.parameters == expected
    assert numbers.hidden == json.loads((policy / "config.json").read_text())["hidden_size"]


def test_a_sweep_is_the_product_of_its_choices() -> None:
    points = expand(["stage=curate", "curation.probes=4,8", "curation.boundaries=[0.1,0.5],[0.2]"])
    assert len(points) == 4
    assert points[0] == ["stage=curate", "curation.probes=4", "curation.boundaries=[0.1,0.5]"]
    assert points[3][1:] == ["curation.probes=8", "curation.boundaries=[0.2]"]
