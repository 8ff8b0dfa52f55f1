"""What crosses the boundaries between parts: frozen dataclasses, one line under each field.

Task = PublicTask (what the rollout side may see) + GradingSpec (what only the grader holds)
Episode = one conversation as token ids + its record + its outcome
EpisodeGroup = the episodes of one task at one (step, slot, attempt)
GroupSummary = what the controller sees of a group; the payload stays in the object store
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tbrl.usage import NO_TOKENS, NOTHING, UNKNOWN, RoleUsage, Usage

JsonObject = dict[str, Any]

FailureKind = Literal["backend", "user", "judge", "grader", "engine", "deadline"]
FinishReason = Literal[
    "done",  # the agent ended its last message with <DONE>
    "end_turn_tool",  # the agent called a tool that ends the episode
    "user_limit",  # the simulated user has no turns left
    "agent_limit",  # cap on agent turns
    "length",  # cap on tokens of the episode or of one turn
    "user_done",  # the simulated user ended the conversation
    "failed",  # see the outcome: nothing was scored
]


# ---------------------------------------------------------------- tasks


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the policy sees it."""

    name: str
    description: str
    parameters: JsonObject
    """JSON schema of the arguments: always `type: object`."""
    ends_turn: bool = False
    """Calling it ends the episode (it is recorded, not executed)."""

    def as_function(self) -> JsonObject:
        """The OpenAI function form that chat templates take."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }


@dataclass(frozen=True, slots=True)
class ToolInteraction:
    """One expected call of the golden replay."""

    tool: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class PublicTask:
    """What the rollout side may see. `user_context` goes to the simulated user only, never to
    the policy; `initial_state_patch` goes to the sandbox."""

    task_ref: str
    """Unique, e.g. `embedded/rental/return_late/17`."""
    domain: str
    scenario_id: str
    """Names the world: schema, seed rows, tools, policy text, e.g. `rental/compact`."""
    query: str
    """The first user turn."""
    user_context: JsonObject
    """What the simulated user knows: `facts`, `persona`, `script` (see users/), or
    `{"text": ...}` for an LLM user."""
    initial_state_patch: dict[str, list[JsonObject]]
    """{table: rows to upsert by primary key} on top of the scenario's seed rows."""
    template: str
    knobs: JsonObject = field(default_factory=dict)
    """Difficulty knobs: records to choose from, facts that decide, steps."""
    split: str = ""
    """`candidate`, `heldout`, ... as the source says; empty when it says nothing."""
    eval_only: bool = False
    """Refused wherever tasks enter training."""


@dataclass(frozen=True, slots=True)
class GradingSpec:
    """What only the grader holds."""

    task_ref: str
    expected_tool_interactions: tuple[ToolInteraction, ...]
    rubrics: tuple[str, ...] = ()
    """Yes/no questions on the last visible assistant text; Yes is good."""
    null_passes: bool = False
    """Doing nothing is the right outcome (marked on purpose)."""


@dataclass(frozen=True, slots=True)
class Task:
    """Both halves, together only where tasks are made, loaded and graded."""

    public: PublicTask
    grading: GradingSpec

    @property
    def task_ref(self) -> str:
        return self.public.task_ref


# ---------------------------------------------------------------- sandbox


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's reply. `is_error` is the policy's mistake, answered; never a backend failure."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, order=True)
class RowChange:
    """One difference between the initial and the terminal state."""

    table: str
    key: str
    """Canonical JSON of the primary key values."""
    kind: Literal["inserted", "deleted", "updated"]
    column: str
    """Changed column; one RowChange per non-null column for inserted and deleted rows."""
    before: str
    """Canonical JSON; empty for inserted rows."""
    after: str
    """Canonical JSON; empty for deleted rows."""


@dataclass(frozen=True, slots=True)
class TerminalState:
    """What the sandbox hands to the grader when an episode has ended."""

    state_hash: str
    """Hex digest of the canonical form of the whole database (sandbox/state.py)."""
    effects: tuple[RowChange, ...]
    """Sorted: order-independent."""
    writes: int
    """Successful calls of writing tools."""


# ---------------------------------------------------------------- episodes


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Which rollout this is. Identity, not arrival order, decides tasks and seeds."""

    step: int
    slot: int
    attempt: int
    rollout: int
    """Member of the group, 0 .. group_size-1."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as read from the policy's output."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; the learner renormalises on the same support."""

    temperature: float = 1.0
    top_k: int = 0
    """0 = off."""
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled assistant turn as the engine returned it."""

    ids: tuple[int, ...]
    """Sampled ids, stop token included."""
    logprobs: tuple[float, ...]
    """Behaviour logprob of each id under the processed distribution (temperature, top-k, top-p)."""
    finish_reason: Literal["stop", "length", "abort"]
    policy_version: int
    usage: Usage = UNKNOWN


@dataclass(frozen=True, slots=True)
class UserReply:
    """The simulated user's next turn."""

    text: str
    """Ends with <DONE> where the user ends the conversation."""
    usage: Usage = NOTHING
    """Nothing, unless a model was asked."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The only outcome with a number."""

    reward: float
    """1.0 or 0.0."""
    state_equal: bool
    rubrics_passed: tuple[bool, ...] = ()
    attribution: str = ""
    """Class of a 0: see rewards/attribution.py; empty for 1."""
    differences: tuple[RowChange, ...] = ()
    """Golden against actual: wrong, missing or extra changes. Evaluator's eyes only."""


@dataclass(frozen=True, slots=True)
class Failed:
    """No number: the episode is run again."""

    kind: FailureKind
    where: str
    detail: str
    tokens: int = 0
    """Prompt and response tokens of the episode when it failed (failures by episode length)."""


Outcome = Scored | Failed


@dataclass(frozen=True, slots=True)
class Grade:
    """What the grader answers. The outcome alone is the same each time it is asked."""

    outcome: Outcome
    usage: Usage = NOTHING
    """Of the judge: nothing, unless a model was asked."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One entry of the conversation, for records, reports and replay."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    """Visible text; a tool's reply for role `tool`."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str = ""
    is_error: bool = False
    """Tool error, or the message a malformed output was answered with."""
    start: int = 0
    """First token of this turn in prompt_ids + response_ids."""
    end: int = 0
    seed: int = -1
    """Sampling seed of an assistant turn."""
    usage: Usage | None = None
    """Of the request that this turn answered; None where no model was asked."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One conversation. `prompt_ids` then only appended: sampled ids exactly as sampled
    (mask 1, one behaviour logprob each) and rendered observations (mask 0, logprob 0.0)."""

    key: EpisodeKey
    task_ref: str
    domain: str
    template: str
    policy_version: int
    prompt_ids: np.ndarray
    """int32 [P]"""
    response_ids: np.ndarray
    """int32 [R]"""
    action_mask: np.ndarray
    """bool [R]: True where the policy sampled the token."""
    behaviour_logprobs: np.ndarray
    """float32 [R]"""
    turns: tuple[Turn, ...]
    finish_reason: FinishReason
    outcome: Outcome
    sampling: Sampling
    effects: tuple[RowChange, ...] = ()
    state_hash: str = ""
    tries: int = 1
    """1 + failed runs of the same key before this one."""
    malformed_turns: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds by phase: engine, tools, user, grade, total."""
    segments: tuple[int, ...] = ()
    """Starts in response_ids of further training segments, where the chat template strips
    earlier reasoning; empty for one segment."""
    usage: RoleUsage = NO_TOKENS
    """All that the episode used, requests that became no turn included."""

    @property
    def reward(self) -> float:
        """Raises TypeError on a failed episode: a failure has no number."""
        if not isinstance(self.outcome, Scored):
            raise TypeError(f"episode {self.key} failed and has no reward")
        return self.outcome.reward

    @property
    def action_tokens(self) -> int:
        return int(self.action_mask.sum())

    @property
    def agent_turns(self) -> int:
        return sum(turn.role == "assistant" for turn in self.turns)


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """All episodes of one task at one (step, slot, attempt), under one policy version."""

    step: int
    slot: int
    attempt: int
    task_ref: str
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What the controller sees of a group."""

    step: int
    slot: int
    attempt: int
    task_ref: str
    policy_version: int
    rewards: tuple[float, ...]
    """Of the scored episodes; shorter than the group when `failures` is not empty."""
    failures: tuple[Failed, ...]
    """Failures that stayed after all tries (the group is then not usable)."""
    retried: tuple[Failed, ...]
    """Failures that a re-run repaired."""
    action_tokens: int
    total_tokens: int
    """Prompt and response tokens of the final episodes."""
    wasted_tokens: int
    """Response tokens of failed tries."""
    episode_tokens: tuple[int, ...]
    seconds: dict[str, float]
    malformed_turns: int
    finish_reasons: tuple[str, ...]
    usage: RoleUsage = NO_TOKENS
    """Of the final episodes."""
    wasted_usage: RoleUsage = NO_TOKENS
    """Of the runs that were repeated."""

    @property
    def verdict(self) -> Literal["accepted", "zero_variance", "failed"]:
        if self.failures:
            return "failed"
        return "zero_variance" if len(set(self.rewards)) <= 1 else "accepted"
