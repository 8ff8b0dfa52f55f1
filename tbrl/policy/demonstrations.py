"""Expert conversations as token ids: what the tiny policy is warm-started on.

An expert walks a task's demonstration on the real backend, with the real scripted user; at each
decision it takes a wrong branch with probability `noise`. The conversation is rendered by the
policy's own chat template, and the assistant's tokens (its end-of-turn token included) are marked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tbrl.config import SandboxConfig
from tbrl.domains.base import Decision, DemoTurn, Domain, Drafted, Names
from tbrl.policy.tokenizer import DONE, END, START
from tbrl.sandbox.backend import Backend
from tbrl.sandbox.scenario import Scenario, compile_scenario
from tbrl.types import TerminalState
from tbrl.users.scripted import reply_to

Message = dict[str, Any]
Steps = Sequence[DemoTurn | Decision]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One walked demonstration."""

    drafted: Drafted
    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    terminal: TerminalState
    right: bool
    """No wrong branch was taken."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Token ids, split where conversations of one scenario begin to differ."""

    scenario_id: str
    prefix: np.ndarray
    """int64 [P]: the system turn, equal for all demonstrations of the scenario."""
    ids: np.ndarray
    """int64 [T]: everything after it."""
    mask: np.ndarray
    """bool [T]: True on assistant tokens, their end of turn included."""


class Expert:
    """Plays demonstrations of the given domains' compact size."""

    def __init__(self, domains: Sequence[Domain], noise: float) -> None:
        self.noise = noise
        self._domains = {d.name: d for d in domains}
        self._config = SandboxConfig()
        self._scenarios: dict[str, Scenario] = {}

    def converse(self, drafted: Drafted, rng: random.Random) -> Conversation:
        """Walk one demonstration to its end."""
        task = drafted.task.public
        scenario = self._scenario(task.scenario_id)
        backend = Backend(scenario, task.initial_state_patch, self._config)
        messages: list[Message] = [
            {"role": "system", "content": scenario.policy},
            {"role": "user", "content": task.query},
        ]
        said: list[str] = []
        chosen: list[bool] = []
        for turn in _walk(drafted.demo, rng, self.noise, chosen):
            messages.append(_as_message(turn))
            for name, arguments in turn.calls:
                result = backend.execute(name, arguments)
                messages.append({"role": "tool", "name": name, "content": result.text})
            said.append(turn.text)
            if not turn.calls and not turn.text.endswith(DONE):
                messages.append({"role": "user", "content": reply_to(task.user_context, said)})
        terminal = backend.terminal()
        backend.close()
        tools = tuple(spec.as_function() for spec in scenario.specs)
        return Conversation(drafted, tuple(messages), tools, terminal, all(chosen))

    def _scenario(self, scenario_id: str) -> Scenario:
        if scenario_id not in self._scenarios:
            self._scenarios[scenario_id] = compile_scenario(scenario_id, self._domains)
        return self._scenarios[scenario_id]


def conversations(
    domains: Sequence[Domain], names: Names, count: int, noise: float, seed: int
) -> Iterator[Conversation]:
    """`count` conversations, templates of all domains in turn. Deterministic in its arguments."""
    expert = Expert(domains, noise)
    templates = [(d, t) for d in domains for t in d.sizes["compact"].templates]
    for index in range(count):
        domain, template = templates[index % len(templates)]
        task_ref = f"{names.split}/{domain.name}/{template.name}/{index}"
        rng = random.Random(f"{seed}/{task_ref}")
        drafted = template.make(rng, task_ref, names)
        yield expert.converse(drafted, rng)


def tokenized(
    conversation: Conversation, tokenizer: Any, prefixes: dict[str, str]
) -> Demonstration:
    """The conversation in ids. `prefixes` keeps each scenario's rendered system turn between
    calls."""
    scenario_id = conversation.drafted.task.public.scenario_id
    if scenario_id not in prefixes:
        system = [conversation.messages[0]]
        prefixes[scenario_id] = _render(tokenizer, system, conversation.tools)
    prefix = prefixes[scenario_id]
    text = _render(tokenizer, conversation.messages[1:], ())
    ids = _encode(tokenizer, text)
    return Demonstration(
        scenario_id=scenario_id,
        prefix=_encode(tokenizer, prefix),
        ids=ids,
        mask=assistant_mask(ids, tokenizer),
    )


def assistant_mask(ids: np.ndarray, tokenizer: Any) -> np.ndarray:
    """bool [T]: tokens that a policy samples: from behind the generation prompt to the end of the
    turn."""
    opening = _encode(tokenizer, f"{START}assistant\n")
    end = tokenizer.convert_tokens_to_ids(END)
    mask = np.zeros(len(ids), dtype=bool)
    position = 0
    while position < len(ids):
        behind = position + len(opening)
        if np.array_equal(ids[position:behind], opening):
            stop = behind + int(np.argmax(ids[behind:] == end)) + 1
            mask[behind:stop] = True
            position = stop
        else:
            position += 1
    return mask


def _walk(steps: Steps, rng: random.Random, noise: float, chosen: list[bool]) -> Iterator[DemoTurn]:
    for step in steps:
        if isinstance(step, DemoTurn):
            yield step
            continue
        right = rng.random() >= noise
        chosen.append(right)
        branch = step.right if right else rng.choice(step.wrong)
        yield from _walk(branch, rng, noise, chosen)


def _as_message(turn: DemoTurn) -> Message:
    message: Message = {"role": "assistant", "content": turn.text}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in turn.calls
        ]
    return message


def _render(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    text: str = tokenizer.apply_chat_template(
        list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=False
    )
    return text


def _encode(tokenizer: Any, text: str) -> np.ndarray:
    ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return np.asarray(ids, dtype=np.int64)
