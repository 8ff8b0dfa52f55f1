"""What a run would do: topology, batch, memory by phase, files. Starts and imports nothing heavy.

Memory is an estimate from the model's own numbers (safetensors headers, config.json):

    engine weights      parameters x bytes of engine_dtype / tensor_parallel
    KV cache            2 x layers x kv heads x head dim x bytes, a token, / tensor_parallel
    loading             the whole policy in float32 on the host of the first learner rank
    learner state       float32 master, gradient and two AdamW moments: 16 bytes each / world
    gathered layers     two layers in compute dtype (FSDP gathers one ahead), one's gradient in it
                        and in float32 on its way to the shards; embedding and head, gathered
                        throughout, the same with one of them
    activations         about 34 x hidden bytes a token and layer in 16 bit (Korthikanti et al.
                        2022, arXiv:2205.05198, without attention scores); checkpointing: 2 x, and
                        one layer whole. Tokens: of a micro-batch, or of one longest episode
    sleeping engine     what sleep leaves on the GPU: contexts, NCCL, workspaces
    logits              head_chunk x vocabulary x 4 bytes x 3 (logits, softmax, gradient)
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tbrl.config import Config
from tbrl.errors import ConfigError
from tbrl.policy.builtin import policy_folder
from tbrl.stages.common import resolved_yaml

GIB = float(1 << 30)
SLEEPING_GIB = 5.0
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """What memory depends on."""

    parameters: int
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Need:
    """Memory of one kind of place in one phase, GiB."""

    phase: str
    place: str
    parts: dict[str, float]
    limit: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def model_numbers(folder: Path) -> ModelNumbers:
    """Read a Hugging Face folder without loading it. Raises ConfigError when it holds no
    safetensors."""
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"model.path: {folder} holds no *.safetensors to plan with")
    heads = config["num_attention_heads"]
    return ModelNumbers(
        parameters=sum(_parameters(file) for file in files),
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        kv_heads=config.get("num_key_value_heads", heads),
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"],
    )


def _parameters(file: Path) -> int:
    """Elements in a safetensors file, from its header alone."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    total = 0
    for name, entry in header.items():
        if name != "__metadata__":
            count = 1
            for size in entry["shape"]:
                count *= size
            total += count
    return total


def memory(config: Config, numbers: ModelNumbers) -> list[Need]:
    """Needs by phase and place. Raises ConfigError when a GPU cannot hold an engine's weights and
    one longest episode."""
    t = config.topology
    weights = _engine_weights(config, numbers)
    learner = _learner_parts(config, numbers)
    if t.device == "cpu":
        host = _host_limit(config)
        rollout = {
            "engine weights": weights,
            "KV cache": config.engine.kv_cache_mib / 1024,
            "processes": 0.8 * (t.rollout_workers + t.learner_world) + 1.5,
        }
        return [
            Need("rollout", "host", rollout, host),
            Need("learn", "host", {**rollout, **learner}, host),
        ]
    return [*_host_needs(config, numbers), *_gpu_needs(config, numbers, learner)]


def _host_limit(config: Config) -> float:
    """Of one node, GiB: as configured, else this machine's."""
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return config.topology.host_memory_gib or here


def _engine_weights(config: Config, numbers: ModelNumbers) -> float:
    """Of one engine process, GiB."""
    size = _BYTES[config.model.engine_dtype]
    return numbers.parameters / GIB * size / config.topology.tensor_parallel


def _ends(numbers: ModelNumbers) -> float:
    """Parameters of embedding and head, in units of 2^30."""
    return 2 * numbers.vocabulary * numbers.hidden / GIB


def _learner_parts(config: Config, numbers: ModelNumbers) -> dict[str, float]:
    """Of one learner rank on its device, GiB."""
    t, a = config.topology, config.algorithm
    p, ends = numbers.parameters / GIB, _ends(numbers)
    compute = _BYTES[config.model.learner_dtype]
    tokens = max(a.micro_batch_tokens, config.rollout.max_episode_tokens) / t.sequence_parallel
    layer = 34 * numbers.hidden * compute / 2
    token = layer * numbers.layers
    if a.gradient_checkpointing:
        token = 2 * numbers.hidden * compute / 2 * numbers.layers + layer
    gathered = (p - min(ends, p)) / numbers.layers * (3 * compute + 4) + ends * (2 * compute + 4)
    return {
        "master, gradient, moments": 16 * p / t.learner_world,
        "gathered layers": gathered if t.learner_world > 1 else 0.0,
        "activations": tokens * token / GIB,
        "logits": 3 * 4 * a.head_chunk * numbers.vocabulary / GIB,
    }


def _host_needs(config: Config, numbers: ModelNumbers) -> list[Need]:
    """Of one node of a GPU topology."""
    t, p = config.topology, numbers.parameters / GIB
    # Offloaded for good: also the gradient, once more as AdamW reads it, and the weights in
    # compute dtype.
    kept = 20.0 + _BYTES[config.model.learner_dtype] if t.learner_offload else 12.0
    asleep = _engine_weights(config, numbers) * t.tensor_parallel * t.rollout_workers
    copies = 2 if config.algorithm.kl_coefficient > 0 else 1
    processes = {"processes": 4.0 * t.gpus_per_node}
    load = {"whole policy on the first rank": 4 * p * copies, **processes}
    state = {
        "offloaded learner state": kept * p / t.nodes,
        "sleeping engine weights": asleep / t.nodes,
        **processes,
    }
    limit = _host_limit(config)
    return [Need("load", "host", load, limit), Need("train", "host", state, limit)]


def _gpu_needs(config: Config, numbers: ModelNumbers, learner: dict[str, float]) -> list[Need]:
    t, engine = config.topology, config.engine
    limit = t.gpu_memory_gib
    weights = _engine_weights(config, numbers)
    budget = engine.gpu_memory_utilization * limit
    token = 2 * numbers.layers * numbers.kv_heads * numbers.head_dim
    token *= _BYTES[config.model.engine_dtype]
    longest = config.rollout.max_episode_tokens * token / t.tensor_parallel / GIB
    if weights + longest > budget:
        raise ConfigError(
            f"engine.gpu_memory_utilization={engine.gpu_memory_utilization:g} gives {budget:.0f} "
            f"GiB a GPU; weights {weights:.1f} + one episode {longest:.1f} GiB do not fit: raise "
            "topology.tensor_parallel or lower rollout.max_episode_tokens"
        )
    learner = dict(learner)
    if t.learner_offload:
        del learner["master, gradient, moments"]
    rollout = {"engine weights": weights, "KV cache": budget - weights}
    if not t.colocated:
        return [Need("rollout", "GPU", rollout, limit), Need("learn", "GPU", learner, limit)]
    asleep = {"sleeping engine": SLEEPING_GIB}
    largest = _ends(numbers) / 2 * _BYTES[config.model.learner_dtype]
    both = {
        "master, moments": 12 * numbers.parameters / GIB / t.learner_world,
        "engine weights": weights,
        "largest tensor, four times": 4 * max(largest, 1.0),
        **asleep,
    }
    return [
        Need("rollout", "GPU", rollout, limit),
        Need("learn", "GPU", {**learner, **asleep}, limit),
        Need("hand over", "GPU", both, limit),
    ]


def check_fits(needs: list[Need]) -> None:
    """Raises ConfigError for the first need above its limit."""
    for need in needs:
        if need.total > need.limit:
            largest = max(need.parts, key=lambda part: need.parts[part])
            raise ConfigError(
                f"phase {need.phase!r} needs {need.total:.1f} GiB of {need.place} memory, there "
                f"are {need.limit:.1f}; most is {largest} ({need.parts[largest]:.1f} GiB)"
            )


def files_of(config: Config) -> list[str]:
    """What a run writes below its folder."""
    root = f"{config.runs_dir}/{config.run}"
    by_stage = {
        "probe": ["probes/base.jsonl", "probes/reference.jsonl"],
        "curate": [
            "curation/selection.yaml",
            "curation/aggregates.jsonl",
            "curation/audit.json",
            "curation/manifest.json",
        ],
        "train": [
            "metrics.jsonl",
            "ledger.jsonl",
            "receipts.jsonl",
            "episodes/step-*.parquet",
            "checkpoints/step-*/",
        ],
        "evaluate": ["evaluation/*.jsonl"],
        "report": ["report.html"],
    }
    stages = list(by_stage) if config.stage in ("pipeline", "plan") else [config.stage]
    names = ["config.yaml", "provenance.json"]
    names += [name for stage in stages for name in by_stage.get(stage, [])]
    return [f"{root}/{name}" for name in names]


def print_plan(config: Config) -> None:
    """Resolved configuration and plan on stdout; raises ConfigError for what cannot fit."""
    console = Console(highlight=False)
    console.print(resolved_yaml(config), markup=False)
    t, a, tasks = config.topology, config.algorithm, config.tasks
    folder = Path(policy_folder(config.model.path))
    numbers = model_numbers(folder)
    devices = f"{t.nodes} x {t.gpus_per_node} GPUs" if t.device == "cuda" else f"{t.cpus} CPU cores"
    grid = Table.grid(padding=(0, 2))
    grid.add_row("plan", f"stage={config.stage} run={config.run}")
    grid.add_row("policy", f"{config.model.path}: {numbers.parameters / 1e6:,.2f}M parameters")
    grid.add_row(
        "topology",
        f"{t.name}: {devices}, {t.rollout_workers} engines x TP{t.tensor_parallel}, "
        f"{t.learner_world} learner ranks ({t.learner_engine}), weights by {t.weight_transfer}",
    )
    grid.add_row(
        "batch",
        f"{a.groups_per_step} groups x {a.group_size} rollouts, {a.steps} steps, at most "
        f"{a.max_attempts} attempts a slot",
    )
    grid.add_row(
        "tasks",
        f"{tasks.source} ({tasks.size}): {tasks.per_template} candidates and "
        f"{tasks.heldout_per_template} held-out tasks a template",
    )
    for need in memory(config, numbers):
        parts = ", ".join(f"{name} {gib:.2f}" for name, gib in need.parts.items())
        per = "a GPU" if need.place == "GPU" else "a node"
        grid.add_row(
            f"memory, {need.phase}", f"{need.total:.2f} of {need.limit:.0f} GiB {per}: {parts}"
        )
    grid.add_row("writes", "\n".join(files_of(config)))
    console.print(grid)
    check_fits(memory(config, numbers))
