"""The growing record of one episode: ids, mask, logprobs, turns, and the messages behind them.

    prompt_ids | sampled (mask 1) | observed delta (mask 0) | sampled | ...

Nothing is ever removed, decoded and re-encoded, or cut. Where the chat template rewrites the past
(it strips earlier reasoning), a new segment starts: its own full rendering follows as mask 0, and
the engine continues from the segment's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tbrl.episode.interpretation import Reading
from tbrl.episode.messages import assistant_message
from tbrl.episode.rendering import Renderer
from tbrl.types import Generation, ToolSpec, Turn
from tbrl.usage import Usage


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment says next."""

    role: str
    """`user` or `tool`."""
    text: str
    is_error: bool = False
    tool_name: str = ""
    usage: Usage | None = None
    """Of the user's reply."""

    def message(self) -> dict[str, Any]:
        if self.role == "tool":
            return {"role": "tool", "name": self.tool_name, "content": self.text}
        return {"role": "user", "content": self.text}


class Transcript:
    """Append-only."""

    def __init__(self, renderer: Renderer, max_tokens: int) -> None:
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._tools: tuple[ToolSpec, ...] = ()
        self._messages: list[dict[str, Any]] = []
        self._segment = 0
        self.prompt: list[int] = []
        self.response: list[int] = []
        self.mask: list[bool] = []
        self.logprobs: list[float] = []
        self.segments: list[int] = []
        self.turns: list[Turn] = []

    def begin(self, policy: str, query: str, tools: tuple[ToolSpec, ...]) -> None:
        self._tools = tools
        self._messages = [
            {"role": "system", "content": policy},
            {"role": "user", "content": query},
        ]
        self.prompt = list(self._renderer.prompt(self._messages, tools))
        self.turns.append(Turn("system", policy))
        self.turns.append(Turn("user", query, end=len(self.prompt)))

    @property
    def total(self) -> int:
        """Tokens of the episode so far."""
        return len(self.prompt) + len(self.response)

    @property
    def room(self) -> int:
        """Tokens that the present segment may still grow by."""
        return self._max_tokens - len(self.context)

    @property
    def context(self) -> list[int]:
        """What the engine continues."""
        if self.segments:
            return self.response[self._segment :]
        return self.prompt + self.response

    def sampled(self, generation: Generation, reading: Reading, seed: int) -> None:
        """Append a sampled turn exactly as sampled."""
        start = self.total
        self._append(generation.ids, True, generation.logprobs)
        self.turns.append(
            Turn(
                "assistant",
                reading.text,
                reasoning=reading.reasoning,
                tool_calls=reading.calls,
                is_error=reading.error is not None,
                start=start,
                end=self.total,
                seed=seed,
                usage=generation.usage,
            )
        )
        self._messages.append(assistant_message(reading.text, reading.reasoning, reading.calls))

    def observed(self, observations: Sequence[Observation], after: Generation) -> bool:
        """Append what the environment said. False when its tokens do not fit: the turns are
        recorded, the tokens are not, and the episode is over."""
        messages = [o.message() for o in observations]
        start = self.total
        if self._renderer.starts_segment(messages):
            ids = list(self._renderer.prompt([*self._messages, *messages], self._tools))
            fits = len(ids) < self._max_tokens
            if fits:
                self._segment = len(self.response)
                self.segments.append(self._segment)
        else:
            ids = list(self._renderer.delta(messages, after.ids, self._tools))
            fits = len(ids) < self.room
        if fits:
            self._append(ids, False, [0.0] * len(ids))
            self._messages.extend(messages)
        for o in observations:
            self.turns.append(
                Turn(
                    "user" if o.role == "user" else "tool",
                    o.text,
                    tool_name=o.tool_name,
                    is_error=o.is_error,
                    start=start,
                    end=self.total,
                    usage=o.usage,
                )
            )
        return fits

    def _append(self, ids: Sequence[int], sampled: bool, logprobs: Sequence[float]) -> None:
        self.response.extend(ids)
        self.mask.extend([sampled] * len(ids))
        self.logprobs.extend(logprobs)

    def visible(self) -> list[Turn]:
        """The conversation as the user hears it: no tools, no reasoning, no system."""
        return [
            Turn(t.role, t.text) for t in self.turns if t.role in ("user", "assistant") and t.text
        ]

    def final_text(self) -> str:
        """Last visible text of the agent; empty when it never spoke."""
        texts = [t.text for t in self.turns if t.role == "assistant" and t.text]
        return texts[-1] if texts else ""

    def arrays(self) -> dict[str, np.ndarray]:
        """The episode's arrays, by field name."""
        return {
            "prompt_ids": np.asarray(self.prompt, dtype=np.int32),
            "response_ids": np.asarray(self.response, dtype=np.int32),
            "action_mask": np.asarray(self.mask, dtype=bool),
            "behaviour_logprobs": np.asarray(self.logprobs, dtype=np.float32),
        }
