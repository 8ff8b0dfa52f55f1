"""Structured configuration: every key, its meaning, and the one validation before anything starts.

Hydra composes these dataclasses (ConfigStore, `conf/` groups); `validate` raises ConfigError with
one line that names the key, its value and the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ModelConfig:
    """Which policy. `path`: a local Hugging Face folder, `builtin:base` or `builtin:reference`."""

    path: str = "builtin:base"
    reference_path: str = "builtin:reference"
    """Stronger policy that screens candidates for solvability; empty skips the screen."""
    tool_format: str = "auto"
    """`qwen_xml`, `hermes_json`, or `auto` (decided by the chat template)."""
    strips_reasoning: str = "refuse"
    """What to do where the chat template strips earlier reasoning: `keep_template` (use the
    shipped reasoning-keeping template), `new_segment`, or `refuse`."""
    engine_dtype: str = "float32"
    """Dtype the engine serves in: float32 on CPU, bfloat16 on GPU."""
    learner_dtype: str = "float32"
    """Compute dtype of the learner; master weights are always float32."""
    attention: str = "auto"
    """`auto`: SDPA looped over segments on CPU, varlen flash attention on GPU."""


@dataclass
class TopologyConfig:
    """Who runs where. The same code serves all topologies."""

    name: str = "cpu2"
    device: str = "cpu"
    """`cpu` or `cuda`."""
    nodes: int = 1
    gpus_per_node: int = 0
    gpu_memory_gib: float = 80.0
    """Of one GPU; the plan refuses what does not fit."""
    host_memory_gib: float = 0.0
    """Of one node; 0 = what this machine has."""
    cpus: int = 2
    """Logical CPUs given to Ray on this node (0 = what Ray finds)."""
    rollout_workers: int = 1
    tensor_parallel: int = 1
    learner_world: int = 1
    learner_engine: str = "fsdp2"
    """`fsdp2`, or `zero3` (DeepSpeed; needs the extra `zero`)."""
    learner_offload: bool = False
    """With `zero3`: parameters, gradients and optimizer state stay in host memory."""
    sequence_parallel: int = 1
    colocated: bool = True
    """Engines and learner on the same devices: phases alternate (sleep / offload)."""
    threads_per_engine: int = 1
    threads_per_learner: int = 1
    learner_deadline_s: float = 1800.0
    """For one call of all learner ranks (load the policy, a step's backward passes, a checkpoint),
    and for a collective among them."""
    sandbox_pools: int = 1
    weight_transfer: str = "shm"
    """`shm` (CPU), `ipc` (same GPU) or `nccl`."""
    ray_address: str = ""
    """Empty starts a private local cluster; `auto` or host:port joins one."""
    dashboard: bool = False
    """Start the Ray dashboard (loopback)."""

    @property
    def shares_devices(self) -> bool:
        """Engines and learner take turns on the same GPUs."""
        return self.colocated and self.device == "cuda"


@dataclass
class EngineConfig:
    """vLLM."""

    max_model_len: int = 1024
    max_num_seqs: int = 144
    kv_cache_mib: int = 192
    """KV cache of one engine on CPU, MiB (explicit: vLLM otherwise takes a share of the RAM)."""
    gpu_memory_utilization: float = 0.80
    enforce_eager: bool = True
    block_size: int = 32
    start_timeout_s: float = 300.0


@dataclass
class AlgorithmConfig:
    """GRPO."""

    groups_per_step: int = 18
    """Slots S of a step: groups that must be accepted."""
    group_size: int = 8
    """Rollouts of one task under one policy version."""
    steps: int = 30
    learning_rate: float = 1e-6
    weight_decay: float = 0.0
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    max_grad_norm: float = 1.0
    advantage_std: bool = False
    """Divide the centred reward by the group's standard deviation."""
    aggregation: str = "token-mean"
    """`token-mean`, `rollout-mean`, or `constant-length` (Dr. GRPO)."""
    constant_length: int = 0
    """Divisor of `constant-length`: tokens."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    updates_per_step: int = 1
    """Optimizer updates on the groups of one step; above 1 the clip becomes live."""
    kl_coefficient: float = 0.0
    importance_cap: float = 2.0
    """Upper bound of the learner/sampler importance weight; 0 turns the weight off."""
    accumulation: str = "slot"
    """`slot` (bitwise independent of arrival) or `arrival`."""
    max_attempts: int = 16
    """Attempts of one slot in one step before the run stops and says why."""
    speculation: int = 0
    """Attempts a slot may run ahead; they never commit out of order."""
    seed: int = 0
    micro_batch_tokens: int = 4096
    head_chunk: int = 512
    """Rows of hidden states per chunk of the output head."""
    gradient_checkpointing: bool = False


@dataclass
class RolloutConfig:
    """One episode."""

    temperature: float = 1.0
    top_k: int = 20
    top_p: float = 0.95
    max_agent_turns: int = 12
    max_user_turns: int = 4
    max_turn_tokens: int = 96
    max_episode_tokens: int = 896
    """Prompt and response together."""
    concurrency: int = 144
    """Episodes in flight per rollout worker."""
    episode_deadline_s: float = 120.0
    turn_deadline_s: float = 60.0
    user_deadline_s: float = 30.0
    grade_deadline_s: float = 30.0
    max_tries: int = 3
    refill_unit: str = "episode"
    """`episode` re-runs a failed episode with the same seed; `group` re-runs the whole group."""
    failure_rate_limit: float = 0.5
    """Share of failed episodes in a step above which the run stops."""


@dataclass
class SandboxConfig:
    """Backends."""

    kind: str = "embedded"
    """`embedded`, `mcp` (external MCP server) or `thinkingbox` (session proxy)."""
    max_sessions: int = 512
    call_deadline_s: float = 10.0
    session_lease_s: float = 600.0
    statement_ms: int = 2000
    max_result_bytes: int = 65536
    http_port: int = 0
    """Streamable HTTP endpoint for outside agents; 0 = off."""
    url: str = ""
    """Of `mcp`: `http(s)://...` or `stdio:<command line>`; of `thinkingbox`: the session proxy."""
    api_key_env: str = ""
    """Of `mcp` over HTTP: environment variable with the bearer token."""
    setup_tool: str = ""
    """Of `mcp`: tool that sets a world up from {scenario_id, patch}; never shown to the policy."""
    state_tool: str = ""
    """Of `mcp`: tool that gives the state as JSON {table: rows}; never shown to the policy."""
    scenarios: str = ""
    """Of `thinkingbox`: dataset folder, or scenarios.parquet with agents.parquet beside it."""


@dataclass
class EndpointConfig:
    """An OpenAI-compatible chat endpoint. The key is read from the named environment variable and
    never written anywhere."""

    base_url: str = ""
    model: str = ""
    api_key_env: str = ""
    timeout_s: float = 60.0
    temperature: float = 0.0
    max_tokens: int = 512


@dataclass
class UserConfig:
    kind: str = "scripted"
    """`scripted` or `llm`."""
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)


@dataclass
class JudgeConfig:
    kind: str = "local"
    """`local` (deterministic, embedded rubrics) or `llm`."""
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)


@dataclass
class TasksConfig:
    """Where tasks come from."""

    source: str = "embedded"
    """`embedded`, or a path: .parquet / .jsonl / .yaml of our schema, a ThinkingBox dataset folder,
    a dump-tests JSONL."""
    domains: list[str] = field(default_factory=list)
    """Embedded domains; empty = all training domains (all held-out ones for evaluation)."""
    size: str = "compact"
    per_template: int = 8
    """Candidate tasks generated per template."""
    heldout_per_template: int = 2
    """Held-out tasks per template, for evaluation."""
    heldout_domain_per_template: int = 1
    """Tasks per template of held-out domains, for transfer."""
    seed: int = 0
    exclude: list[str] = field(default_factory=list)
    """Files of task_refs (one a line, or YAML lists) that must not train."""
    only: str = ""
    """The one task_ref that stage=sandbox serves; empty = the first held-out task."""
    pool: str = ""
    """Selection list written by curate; empty = all candidates (or the pipeline's own)."""


@dataclass
class CurationConfig:
    probes: int = 8
    """Clean probes per candidate."""
    screen_probes: int = 4
    screen_min_successes: int = 1
    boundaries: list[float] = field(default_factory=lambda: [0.08, 0.40, 0.60, 0.90])
    keep: list[str] = field(
        default_factory=lambda: ["difficult", "intermediate", "frequently_solved"]
    )
    min_clean_probes: int = 1
    test_share: float = 0.0
    """Share of the kept tasks set aside, stratified by domain and template."""
    probe_files: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    """Dotted field names of foreign probe files: uid, result, error."""
    seed: int = 0


@dataclass
class PriceConfig:
    """Of one model, in any one currency per million tokens; free models say so with 0."""

    input: float | None = None
    cached: float | None = None
    """Of input read from a prefix cache; null: as `input`."""
    output: float | None = None


@dataclass
class PricesConfig:
    """What models cost, by role. All null: the report shows tokens instead."""

    agent: PriceConfig = field(default_factory=PriceConfig)
    user: PriceConfig = field(default_factory=PriceConfig)
    judge: PriceConfig = field(default_factory=PriceConfig)


@dataclass
class EvaluationConfig:
    attempts: int = 20
    policy: str = "engine"
    """`engine`, `chat` (OpenAI-compatible endpoint) or `recorded`."""
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    temperature: float = 1.0
    top_k: int = 20
    top_p: float = 0.95
    seed: int = 1000003
    repair: bool = False
    """Run only the missing or failed (task, attempt) keys of an existing results file."""
    bootstrap: int = 2000
    prices: PricesConfig = field(default_factory=PricesConfig)
    show_golden: bool = False
    """Show golden differences of evaluation-only tasks in the report."""
    allow_parity_mismatch: bool = False


@dataclass
class CheckpointConfig:
    every: int = 10
    keep: int = 2
    asynchronous: bool = True


@dataclass
class LoggerConfig:
    live: bool = True
    """Live terminal view where the output is a terminal; plain lines otherwise."""
    tensorboard: bool = False
    wandb: bool = False
    level: str = "WARNING"


@dataclass
class ServeConfig:
    host: str = "127.0.0.1"
    port: int = 8000
    backend_port: int = 8001
    api_key_env: str = ""
    max_body_bytes: int = 4_000_000
    max_concurrency: int = 64


@dataclass
class OpenEnvConfig:
    """stage=openenv. `sandbox.max_sessions` and `sandbox.session_lease_s` bound sessions and their
    idle time, `rollout` the turns, user and grading."""

    host: str = "127.0.0.1"
    port: int = 8002
    """0 = a free one, printed at the start."""
    api_key_env: str = ""
    """Environment variable with the token that clients must send; needed off this machine."""
    split: str = "candidate"
    """`candidate` (may train) or `heldout` (for evaluation)."""


@dataclass
class WarmstartConfig:
    """How the tiny policies are rebuilt."""

    output: str = ""
    copy_steps: int = 400
    """Copy exercises come first: a short training learns to copy record ids only with them."""
    steps: int = 640
    """Updates of the base policy, one micro-batch a domain each."""
    demonstrations: int = 16000
    """Expert conversations over the compact size of all domains."""
    learning_rate: float = 4e-3
    refine_steps: int = 290
    """Further updates, on clean demonstrations, that make the reference policy of the base."""
    refine_demonstrations: int = 6000
    refine_learning_rate: float = 2e-3
    seed: int = 0
    threads: int = 2


@dataclass
class ReplayConfig:
    sampling: bool = True
    """Also play every recorded group again on an engine (needs one thread per engine)."""


@dataclass
class Config:
    """The whole run."""

    stage: str = "pipeline"
    run: str = "embedded"
    """Name of the run: files go to <runs_dir>/<run>."""
    runs_dir: str = "runs"
    dry_run: bool = False
    resume: bool = False
    step: int = -1
    """Step for `replay`; -1 = all recorded steps."""
    compare: list[str] = field(default_factory=list)
    """Results files or runs for `report`."""
    output: str = ""
    """Target folder of `export`."""
    model: ModelConfig = field(default_factory=ModelConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    user: UserConfig = field(default_factory=UserConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    curation: CurationConfig = field(default_factory=CurationConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    openenv: OpenEnvConfig = field(default_factory=OpenEnvConfig)
    warmstart: WarmstartConfig = field(default_factory=WarmstartConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
