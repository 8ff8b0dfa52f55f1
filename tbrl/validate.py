"""The one validation before anything starts: each error is a line that names key, value, remedy."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from dataclasses import asdict
from pathlib import Path

from tbrl.config import Config, EndpointConfig, TopologyConfig
from tbrl.devices import engine_places, learner_places
from tbrl.errors import ConfigError
from tbrl.learner.deepspeed_package import check_deepspeed
from tbrl.policy.builtin import policy_folder
from tbrl.stages.registry import STAGES

_NEEDS_MODEL = {"pipeline", "probe", "train", "evaluate", "serve", "verify"}
_NEEDS_ENGINE = {"pipeline", "probe", "train", "evaluate"}
_NEEDS_LEARNER = {"pipeline", "train"}
_EVALUATES = {"pipeline", "evaluate"}


def validate(config: Config) -> None:
    """Raises ConfigError for the first thing that is wrong. Starts and imports nothing heavy."""
    if config.stage not in STAGES:
        raise ConfigError(f"stage={config.stage!r} is unknown; stages: {', '.join(STAGES)}")
    _numbers(config)
    _choices(config)
    _lengths(config)
    _topology(config)
    _prices(config)
    for key, endpoint, used in (
        ("user.endpoint", config.user.endpoint, config.user.kind == "llm"),
        ("judge.endpoint", config.judge.endpoint, config.judge.kind == "llm"),
        ("evaluation.endpoint", config.evaluation.endpoint, config.evaluation.policy == "chat"),
    ):
        if used:
            _endpoint(key, endpoint)
    if config.stage == "openenv":
        _openenv(config)
    if config.stage in _NEEDS_MODEL:
        check_model(config.model.path)
    if config.stage in _NEEDS_ENGINE:
        if not config.dry_run:
            _devices(config)
        _architecture(config)
    zero3 = config.topology.learner_engine == "zero3"
    if zero3 and config.stage in _NEEDS_LEARNER and not config.dry_run:
        check_deepspeed()


def _require(holds: bool, line: str) -> None:
    if not holds:
        raise ConfigError(line)


def _numbers(config: Config) -> None:
    a, r, c, e = config.algorithm, config.rollout, config.curation, config.evaluation
    t, checkpoint = config.topology, config.checkpoint
    _require(
        a.group_size >= 2,
        f"algorithm.group_size={a.group_size}: a group needs at least 2 rollouts, one alone has "
        "no variance to learn from; use 8",
    )
    at_least_one: dict[str, float] = {
        "algorithm.groups_per_step": a.groups_per_step,
        "algorithm.steps": a.steps,
        "algorithm.max_attempts": a.max_attempts,
        "algorithm.updates_per_step": a.updates_per_step,
        "algorithm.micro_batch_tokens": a.micro_batch_tokens,
        "algorithm.head_chunk": a.head_chunk,
        "rollout.max_agent_turns": r.max_agent_turns,
        "rollout.max_turn_tokens": r.max_turn_tokens,
        "rollout.concurrency": r.concurrency,
        "rollout.max_tries": r.max_tries,
        "curation.probes": c.probes,
        "curation.screen_probes": c.screen_probes,
        "evaluation.attempts": e.attempts,
        "checkpoint.every": checkpoint.every,
        "checkpoint.keep": checkpoint.keep,
        "topology.rollout_workers": t.rollout_workers,
        "topology.learner_world": t.learner_world,
        "topology.tensor_parallel": t.tensor_parallel,
        "topology.nodes": t.nodes,
        "sandbox.max_sessions": config.sandbox.max_sessions,
        "tasks.per_template": config.tasks.per_template,
    }
    for key, value in at_least_one.items():
        _require(value >= 1, f"{key}={value}: must be at least 1")
    positive: dict[str, float] = {
        "algorithm.learning_rate": a.learning_rate,
        "rollout.temperature": r.temperature,
        "rollout.episode_deadline_s": r.episode_deadline_s,
        "rollout.turn_deadline_s": r.turn_deadline_s,
        "rollout.user_deadline_s": r.user_deadline_s,
        "rollout.grade_deadline_s": r.grade_deadline_s,
        "sandbox.call_deadline_s": config.sandbox.call_deadline_s,
        "sandbox.session_lease_s": config.sandbox.session_lease_s,
    }
    for key, value in positive.items():
        _require(value > 0, f"{key}={value:g}: must be above 0")
    _require(a.speculation >= 0, f"algorithm.speculation={a.speculation}: must be 0 or more")
    for key, value in (("rollout.top_p", r.top_p), ("evaluation.top_p", e.top_p)):
        _require(0 < value <= 1, f"{key}={value:g}: must be above 0 and at most 1; 1 turns it off")
    rate = r.failure_rate_limit
    _require(0 <= rate <= 1, f"rollout.failure_rate_limit={rate:g}: is a share, from 0 to 1")


def _choices(config: Config) -> None:
    a = config.algorithm
    chosen: dict[str, tuple[str, tuple[str, ...]]] = {
        "algorithm.aggregation": (
            a.aggregation,
            ("token-mean", "rollout-mean", "constant-length"),
        ),
        "algorithm.accumulation": (a.accumulation, ("slot", "arrival")),
        "rollout.refill_unit": (config.rollout.refill_unit, ("episode", "group")),
        "model.tool_format": (config.model.tool_format, ("auto", "qwen_xml", "hermes_json")),
        "model.strips_reasoning": (
            config.model.strips_reasoning,
            ("refuse", "keep_template", "new_segment"),
        ),
        "topology.device": (config.topology.device, ("cpu", "cuda")),
        "topology.learner_engine": (config.topology.learner_engine, ("fsdp2", "zero3")),
        "topology.weight_transfer": (config.topology.weight_transfer, ("shm", "ipc", "nccl")),
        "user.kind": (config.user.kind, ("scripted", "llm")),
        "judge.kind": (config.judge.kind, ("local", "llm")),
        "evaluation.policy": (config.evaluation.policy, ("engine", "chat", "recorded")),
        "openenv.split": (config.openenv.split, ("candidate", "heldout")),
    }
    for key, (value, known) in chosen.items():
        _require(value in known, f"{key}={value!r} is unknown; choose one of {', '.join(known)}")
    _require(
        a.aggregation != "constant-length" or a.constant_length > 0,
        f"algorithm.constant_length={a.constant_length}: give the constant, in tokens, with "
        "algorithm.aggregation=constant-length",
    )


def _prices(config: Config) -> None:
    """Each price is sound, and none is missing that the stage will need."""
    e = config.evaluation
    models = {
        "agent": e.policy != "recorded",
        "user": config.user.kind == "llm",
        "judge": config.judge.kind == "llm",
    }
    given: dict[str, bool] = {}
    for role in models:
        prices = asdict(getattr(e.prices, role))
        for kind, price in prices.items():
            _require(
                price is None or (math.isfinite(price) and price >= 0),
                f"evaluation.prices.{role}.{kind}={price}: a price is 0 or more, in currency per "
                "million tokens; 0 if it is free",
            )
        given[role] = any(price is not None for price in prices.values())
        for kind in ("input", "output"):
            _require(
                not given[role] or prices[kind] is not None,
                f"evaluation.prices.{role}.{kind}=null while {role} has another price; give both "
                "input and output, 0 if it is free",
            )
    for role, asked in models.items():
        _require(
            not asked or given[role] or not any(given.values()) or config.stage not in _EVALUATES,
            f"evaluation.prices.{role}.input=null while others have a price; give that of the "
            f"{role} too, 0 if it is free",
        )


def _lengths(config: Config) -> None:
    longest, room = config.rollout.max_episode_tokens, config.engine.max_model_len
    _require(
        longest < room,
        f"rollout.max_episode_tokens={longest} does not fit engine.max_model_len={room}; raise "
        f"engine.max_model_len above {longest}",
    )


def _topology(config: Config) -> None:
    t = config.topology
    _learner_engine(t)
    _require(
        t.sequence_parallel >= 1 and t.learner_world % t.sequence_parallel == 0,
        f"topology.sequence_parallel={t.sequence_parallel} does not divide "
        f"topology.learner_world={t.learner_world}",
    )
    if t.device == "cpu":
        _require(
            t.weight_transfer == "shm",
            f"topology.weight_transfer={t.weight_transfer!r} needs GPUs; use shm on CPU",
        )
        _require(
            t.tensor_parallel == 1,
            f"topology.tensor_parallel={t.tensor_parallel}: engines on CPU have one; use 1",
        )
        return
    _require(
        t.weight_transfer != "shm",
        "topology.weight_transfer='shm' is for CPU; use ipc (colocated) or nccl on GPUs",
    )
    learners, engines = learner_places(t), engine_places(t)
    gpus = t.nodes * t.gpus_per_node
    fits = all(p.node < t.nodes and max(p.devices) < t.gpus_per_node for p in learners)
    _require(
        fits and len(engines) == t.rollout_workers,
        f"topology={t.name}: {t.rollout_workers} engines x TP{t.tensor_parallel} and "
        f"{t.learner_world} learner ranks do not fit {t.nodes} nodes x {t.gpus_per_node} GPUs"
        f"{'' if t.colocated else ' of their own'}; an engine lies within one node",
    )
    _require(
        t.gpus_per_node % t.tensor_parallel == 0,
        f"topology.tensor_parallel={t.tensor_parallel} does not divide the "
        f"{t.gpus_per_node} GPUs of a node",
    )
    _require(
        (t.weight_transfer == "ipc") == t.colocated,
        f"topology.weight_transfer={t.weight_transfer!r} with topology.colocated={t.colocated}: "
        "ipc hands weights over within a GPU that both use, nccl between GPUs of their own",
    )
    held = {(p.node, device) for p in learners for device in p.devices}
    bare = [p for p in engines if any((p.node, device) not in held for device in p.devices)]
    _require(
        not (t.colocated and bare),
        f"topology.learner_world={t.learner_world}: each GPU of an engine needs a learner rank to "
        f"take its weights from; use topology.learner_world={gpus}",
    )


def _architecture(config: Config) -> None:
    """The model's own limits, which engine and learner would only meet minutes later."""
    t, room, path = config.topology, config.engine.max_model_len, config.model.path
    model = json.loads((Path(policy_folder(path)) / "config.json").read_text())
    model = model.get("text_config", model)
    scaling = model.get("rope_scaling") or model.get("rope_parameters") or {}
    longest = model.get("max_position_embeddings", 0) * float(scaling.get("factor") or 1.0)
    if scaling.get("original_max_position_embeddings"):
        original = scaling["original_max_position_embeddings"] * float(scaling.get("factor") or 1.0)
        longest = max(model.get("max_position_embeddings", 0), original)
    _require(
        not longest or room <= longest,
        f"engine.max_model_len={room} is above the {longest:.0f} positions of model.path={path}; "
        "lower it (and rollout.max_episode_tokens), or use a model with a longer context",
    )
    heads = model.get("num_attention_heads", 0)
    for key, value in (
        ("tensor_parallel", t.tensor_parallel),
        ("sequence_parallel", t.sequence_parallel),
    ):
        _require(
            heads % value == 0,
            f"topology.{key}={value} does not divide the {heads} attention heads of "
            f"model.path={path}",
        )
    windows = set(model.get("layer_types") or ()) - {"full_attention"}
    _require(
        not windows or config.stage not in ("train", "pipeline"),
        f"model.path={path} has {', '.join(sorted(windows))} layers; the learner packs sequences "
        "and needs full attention in every layer",
    )


def _learner_engine(t: TopologyConfig) -> None:
    zero3 = t.learner_engine == "zero3"
    _require(
        zero3 or not t.learner_offload,
        "topology.learner_offload=true is DeepSpeed's; use topology.learner_engine=zero3 with it "
        "(fsdp2 leaves the GPU between its phases by itself)",
    )
    _require(
        not zero3 or t.learner_offload or t.device == "cpu" or not t.colocated,
        "topology.learner_engine='zero3' cannot leave the GPU to colocated engines; use "
        "topology.learner_offload=true or topology.colocated=false",
    )


def _devices(config: Config) -> None:
    """A GPU topology without a cluster to join needs its GPUs here."""
    t = config.topology
    if t.device == "cpu" or t.ray_address:
        return
    here = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    needed = t.nodes * t.gpus_per_node
    _require(
        here >= needed,
        f"topology={t.name} needs {needed} GPUs, this machine has {here}; join a cluster with "
        "topology.ray_address=auto, look at it with dry_run=true, or use topology=cpu2",
    )


def _openenv(config: Config) -> None:
    o = config.openenv
    _require(
        importlib.util.find_spec("openenv") is not None,
        "stage=openenv needs the package openenv-core; install it: pip install 'tbrl[openenv]'",
    )
    _require(0 <= o.port < 65536, f"openenv.port={o.port}: must be 0 to 65535; 0 takes a free one")
    _require(
        bool(o.api_key_env) or o.host in ("127.0.0.1", "localhost", "::1"),
        f"openenv.host={o.host}: other machines reach it, so a token is needed; name the "
        "environment variable that holds it, openenv.api_key_env=TBRL_OPENENV_TOKEN",
    )
    _require(
        not o.api_key_env or bool(os.environ.get(o.api_key_env)),
        f"openenv.api_key_env={o.api_key_env}: that environment variable is empty; export a token",
    )


def _endpoint(key: str, endpoint: EndpointConfig) -> None:
    _require(bool(endpoint.base_url), f"{key}.base_url is empty; give the server's URL, .../v1")
    _require(bool(endpoint.model), f"{key}.model is empty; give the served model's name")


def check_model(path: str) -> str:
    """The policy's folder, with a causal LM and a chat template in it. Raises ConfigError."""
    folder = Path(policy_folder(path))
    _require(
        (folder / "config.json").is_file(), f"model.path={path!r}: {folder} holds no config.json"
    )
    weights = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    _require(bool(weights), f"model.path={path!r}: {folder} holds no weights (*.safetensors)")
    _require(
        _has_chat_template(folder),
        f"model.path={path!r} has no chat template; add chat_template.jinja to {folder} or choose "
        "an instruction-tuned model",
    )
    return str(folder)


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.is_file() and "chat_template" in json.loads(settings.read_text())
