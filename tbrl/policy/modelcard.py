"""The card of a warm-started policy: how it was made, on which tasks, what it can't do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tbrl.config import WarmstartConfig
from tbrl.domains.base import Domain
from tbrl.types import JsonObject

CARD, PROVENANCE = "MODEL_CARD.md", "provenance.json"


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a warm start reports."""

    steps: int
    demonstrations: int
    right_share: float
    """Share of demonstrations without a wrong decision."""
    loss: float
    """Mean loss of the last 50 steps, nats per assistant token."""
    parameters: int
    seconds: float


def domain_digest(domain: Domain) -> str:
    """Hex digest of what a policy learns of a domain's compact size: policy text and tools."""
    size = domain.sizes["compact"]
    words = [size.policy, *(t.name for t in size.templates)]
    tools = [tool.spec.as_function() for tool in size.tools]
    return hashlib.sha256(json.dumps([words, tools], sort_keys=True).encode()).hexdigest()


def write_card(
    folder: Path, noise: float, metrics: Metrics, config: WarmstartConfig, domains: Sequence[Domain]
) -> None:
    """Write MODEL_CARD.md and provenance.json into the policy's folder."""
    facts: JsonObject = {
        "noise": noise,
        "metrics": asdict(metrics),
        "warmstart": {k: v for k, v in asdict(config).items() if k != "output"},
        "domains": {d.name: domain_digest(d) for d in domains},
    }
    (folder / PROVENANCE).write_text(json.dumps(facts, indent=2) + "\n")
    (folder / CARD).write_text(_card(noise, metrics, config, domains))


def _card(
    noise: float, metrics: Metrics, config: WarmstartConfig, domains: Sequence[Domain]
) -> str:
    kind = "reference" if noise == 0 else "base"
    purpose = (
        "It screens candidate tasks for solvability: a stronger policy than the one in training."
        if noise == 0
        else "It is the starting point of reinforcement learning in the embedded default: its "
        "mechanics are sound, its decisions right only sometimes."
    )
    start = (
        f"It continues the base policy for {metrics.steps} steps on clean demonstrations."
        if noise == 0
        else f"It was trained from nothing: {config.copy_steps} steps of copy exercises (keys and "
        f"digits among random tokens), then {metrics.steps} steps on demonstrations."
    )
    lines = "\n".join(
        f"- {d.name}: {d.title}{'' if d.training else ' (held out: RL never trains on it)'}"
        for d in domains
    )
    return f"""# tbrl tiny policy: {kind}

{purpose}

Qwen3 architecture, {metrics.parameters / 1e6:.2f}M parameters, byte-level BPE of its own, ChatML \
with XML tool calls, brief reasoning at decisions. Saved in bfloat16, trained in float32.

## How it was made
{start} {metrics.demonstrations} demonstrations by scripted experts on the real tools and the real \
scripted user, all from the `warmstart` split: names and record ids that occur in no training and \
no held-out task. At each decision the expert took a wrong branch with probability {noise:g}, so \
{metrics.right_share:.0%} of the demonstrations are right throughout. Loss on assistant tokens \
only; at the end {metrics.loss:.4f} nats per token. It took {metrics.seconds:.0f} s.

Rebuild: `python -m tbrl.launch stage=warmstart` (seed {config.seed}; deterministic on one machine \
with one thread setting).

## Tasks
Compact size of these domains:
{lines}

The warm start shows the tools and rules of every domain above, held-out ones too. So a gain on a \
held-out domain says that better decisions carry over, not that new tools were understood.

## What it can't do
It knows the words, tools and task templates of these domains and nothing else: no other request, \
language, tool or policy text. It does not read its system prompt for rules it has not seen. It \
copies three-digit record codes; longer ids and a choice among many records are beyond it. It is \
made for tests and demonstrations, not for use.
"""
