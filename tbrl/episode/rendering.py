"""Messages -> token ids, token-in / token-out.

    prompt ids | sampled ids | delta | sampled ids | delta | ...

The first prompt is the chat template's own render. Sampled ids are never rendered again; what
follows them is a delta: the same observations rendered behind a fixed conversation whose ids are
verified, minus those ids. A template that drops earlier reasoning when the user speaks again
would make such a stream differ from its own render of the conversation; `strips_reasoning` says
what to do then, and nothing is done silently:

    refuse         ConfigError (the default)
    keep_template  render with the same template minus the condition that drops reasoning; it
                   becomes the checkpoint's template (`Renderer.chat_template`)
    new_segment    the conversation is rendered again as a new training segment (`starts_segment`)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tbrl.episode.chat_template import (
    ChatTemplate,
    Message,
    anchor,
    keeping_reasoning,
    template_text,
)
from tbrl.errors import ConfigError, InvariantError
from tbrl.types import ToolSpec

_OBSERVED: dict[str, tuple[Message, Message]] = {
    "user": ({"role": "user", "content": "zq"}, {"role": "user", "content": "qz"}),
    "tool": (
        {"role": "tool", "name": "zq", "content": "zq"},
        {"role": "tool", "name": "zq", "content": "qz"},
    ),
}

_Anchor = tuple[list[Message], list[int], tuple[ToolSpec, ...]]
"""Conversation, its verified ids, the tools it is rendered with."""


class Renderer:
    """Renders for one tokenizer and template. Holds no state of any conversation."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        enable_thinking: bool | None = None,
        strips_reasoning: str = "refuse",
    ) -> None:
        """`tokenizer`: a transformers fast tokenizer with a chat template. Raises ConfigError where
        it has none, or where the template cannot be followed token by token."""
        if strips_reasoning not in ("refuse", "keep_template", "new_segment"):
            raise ConfigError(
                f"model.strips_reasoning={strips_reasoning!r}: "
                "use refuse, keep_template or new_segment"
            )
        self._thinks = enable_thinking is not False
        self._template = ChatTemplate(tokenizer, template_text(tokenizer), enable_thinking)
        self._anchors: dict[str, tuple[tuple[ToolSpec, ...], _Anchor]] = {}
        deviations: list[str] = []
        self._segments = False
        if not (self._incremental("tool") and self._incremental("user")):
            deviations.append(self._settle_reasoning(tokenizer, enable_thinking, strips_reasoning))
        self.merges_systems = self._template.merges_two_systems()
        if self.merges_systems:
            deviations.append("leading system messages are merged into one")
        self.deviations = tuple(deviations)
        """What is done differently from the model's own template, one line each."""
        self.reasoning_preopened = self._template.opens_reasoning()
        """The generation prompt ends inside a reasoning block."""
        self.reasons = self._thinks and self._template.shows_reasoning()
        """The policy may reason, and the template has a place for it."""
        self.end_of_turn = self._template.end_of_turn
        eos = tokenizer.eos_token_id
        self.stop_ids: tuple[int, ...] = tuple(
            dict.fromkeys(i for i in (self.end_of_turn, eos) if i is not None)
        )
        """Ids that end a sampled turn."""

    @property
    def chat_template(self) -> str:
        """The template in use, to be exported with the checkpoint."""
        return self._template.text

    def prompt(self, messages: list[Message], tools: tuple[ToolSpec, ...]) -> list[int]:
        """Ids of the conversation so far and the generation prompt."""
        return self._template.ids(self._merged(messages), tools)

    def delta(
        self,
        observations: list[Message],
        last_sampled: Sequence[int],
        tools: tuple[ToolSpec, ...] = (),
    ) -> list[int]:
        """Ids to append after a sampled assistant turn: the rest of its closing, the observations
        (user or tool messages), the generation prompt. Equal to the tail of the full render."""
        kind = _kind(observations)
        if self._segments and kind == "user":
            raise InvariantError("the user's turn starts a new segment here: render the prompt")
        before, prefix, shown = self._anchor(kind, tools)
        ids = self._template.ids([*before, *observations], shown)
        if ids[: len(prefix)] != prefix:
            raise InvariantError(
                f"the chat template renders a {kind} observation with another beginning than the "
                "verified one"
            )
        closed = bool(last_sampled) and last_sampled[-1] == self.end_of_turn
        return ids[len(prefix) :] if closed else [self.end_of_turn, *ids[len(prefix) :]]

    def assistant_turn(
        self, messages: list[Message], tools: tuple[ToolSpec, ...] = ()
    ) -> list[int]:
        """Ids a policy samples to say the last message (an assistant's), the closing token
        included, in the tokenizer's own spelling. Raises ConfigError where the template does not
        continue its generation prompt."""
        turn = self._template.assistant_turn(self._merged(messages), tools)
        if turn is None:
            raise ConfigError(
                "model.path: the chat template writes an assistant turn that does not continue its "
                "generation prompt"
            )
        return turn

    def starts_segment(self, observations: Sequence[Message]) -> bool:
        """Whether these observations start a new training segment: its ids are then `prompt` of
        the whole conversation, and a delta does not exist."""
        return self._segments and _kind(observations) == "user"

    # ------------------------------------------------------------ probing

    def _anchor(self, kind: str, tools: tuple[ToolSpec, ...]) -> _Anchor:
        """The conversation a delta stands behind, its ids through the end of the assistant's turn,
        and the tools to render it with: none where they do not change what follows (cheaper)."""
        known = self._anchors.get(kind)
        if known is not None and (known[0] is tools or known[0] == tools):
            return known[1]
        before = anchor(call=kind == "tool")
        prefix, tails = self._behind(before, kind, tools)
        plain_prefix, plain_tails = self._behind(before, kind, ())
        found = (before, prefix, tools)
        if tails == plain_tails:
            found = (before, plain_prefix, ())
        self._anchors[kind] = (tools, found)
        return found

    def _behind(
        self, before: list[Message], kind: str, tools: tuple[ToolSpec, ...]
    ) -> tuple[list[int], list[list[int]]]:
        """What two different observations have in common through the end of the assistant's turn,
        and what follows in each. Raises ConfigError when the turn's end depends on them."""
        end = self._template.end_of_turn
        closings = self._template.ids(before, tools, generation_prompt=False).count(end)
        both = [self._template.ids([*before, o], tools) for o in _OBSERVED[kind]]
        prefixes = [_through(ids, end, closings) for ids in both]
        if prefixes[0] != prefixes[1]:
            raise ConfigError(
                "model.path: what the chat template writes before an observation depends on the "
                "observation, so sampled tokens cannot be kept; use another template"
            )
        return prefixes[0], [ids[len(prefixes[0]) :] for ids in both]

    def _incremental(self, kind: str) -> bool:
        """Whether prompt + sampled turn + delta is the template's render of the conversation."""
        before = anchor(reasoning="zq" if self._thinks else "", call=kind == "tool")
        turn = self._template.assistant_turn(before)
        if turn is None:
            return False
        observation = _OBSERVED[kind][1]
        _, prefix, _ = self._anchor(kind, ())
        tail = self._template.ids([*anchor(call=kind == "tool"), observation])[len(prefix) :]
        stream = self._template.ids(before[:-1]) + turn + tail
        return stream == self._template.ids([*before, observation])

    def _settle_reasoning(self, tokenizer: Any, thinking: bool | None, choice: str) -> str:
        """Do what was chosen about a template that rewrites earlier turns; returns the record."""
        problem = (
            f"model.strips_reasoning={choice}: the chat template drops reasoning of earlier turns"
        )
        if choice == "refuse":
            raise ConfigError(problem + "; use keep_template or new_segment")
        if choice == "new_segment":
            if not self._incremental("tool"):
                raise ConfigError(problem + " even before a tool's answer; use keep_template")
            self._segments = True
            return "earlier reasoning is dropped: a user turn starts a new training segment"
        kept = keeping_reasoning(self._template.text)
        if kept is not None:
            own = self._template
            self._template = ChatTemplate(tokenizer, kept, thinking)
            self._anchors.clear()
            first = anchor()[:-1]
            steady = self._incremental("user") and self._incremental("tool")
            if steady and own.render(first) == self._template.render(first):
                return "earlier reasoning is kept by a changed chat template"
        raise ConfigError(problem + " in a way that cannot be undone here; use new_segment")

    def _merged(self, messages: list[Message]) -> list[Message]:
        """Leading system messages as one, where the template takes only one."""
        leading = 0
        while leading < len(messages) and messages[leading]["role"] == "system":
            leading += 1
        if leading < 2 or not self.merges_systems:
            return messages
        text = "\n\n".join(message["content"] for message in messages[:leading])
        return [{"role": "system", "content": text}, *messages[leading:]]


def _kind(observations: Sequence[Message]) -> str:
    return "user" if any(message["role"] == "user" for message in observations) else "tool"


def _through(ids: list[int], token: int, count: int) -> list[int]:
    """Ids up to and including the `count`-th `token`."""
    position = -1
    for _ in range(count):
        position = ids.index(token, position + 1)
    return ids[: position + 1]
