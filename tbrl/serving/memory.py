"""What was sampled for the conversations a server has had.

A client sends back texts, not tokens, and a text has more than one spelling in tokens. Remembered
ids let a conversation go on with the very ids that were sampled, as it does in training.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence

from tbrl.episode.chat_template import Message
from tbrl.episode.rendering import Renderer
from tbrl.types import ToolSpec


class ConversationMemory:
    """Ids through the last assistant turn, by conversation; the oldest are forgotten."""

    def __init__(self, renderer: Renderer, capacity: int = 4096) -> None:
        self._renderer = renderer
        self._capacity = capacity
        self._known: OrderedDict[str, list[int] | None] = OrderedDict()
        self.respelled = 0
        """Prompts whose remembered ids are not the ids of their text."""

    def prompt(self, messages: list[Message], tools: tuple[ToolSpec, ...]) -> list[int]:
        """Ids to sample from: remembered ids and what came since, or the full render."""
        rendered = self._renderer.prompt(messages, tools)
        last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
        since = messages[last + 1 :]
        known = self._known.get(_key(messages[: last + 1], tools)) if last >= 0 else None
        if known is None or not since or self._renderer.starts_segment(since):
            return rendered
        if any(message["role"] == "system" for message in since):
            return rendered
        ids = [*known, *self._renderer.delta(since, known, tools)]
        self.respelled += ids != rendered
        return ids

    def remember(
        self,
        messages: Sequence[Message],
        reply: Message,
        tools: tuple[ToolSpec, ...],
        ids: list[int],
    ) -> None:
        """Keep the ids of `messages` and the sampled `reply`. Where two outputs with other ids
        make the same conversation, none is kept: nobody could tell which one goes on."""
        bare = {**reply, "reasoning_content": ""}  # many clients drop the reasoning
        for message in (reply, bare) if reply["reasoning_content"] else (reply,):
            key = _key([*messages, message], tools)
            known = self._known.pop(key, ids)
            self._known[key] = ids if known == ids else None
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)


def _key(messages: Sequence[Message], tools: tuple[ToolSpec, ...]) -> str:
    value = [list(messages), [tool.as_function() for tool in tools]]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
