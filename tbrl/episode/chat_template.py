"""A tokenizer's chat template: messages -> text -> ids, and what can be learned from probing it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from tbrl.errors import ConfigError
from tbrl.types import ToolSpec

Message = dict[str, Any]

SENTINEL = "zq"
"""Text of the probes' messages."""

# Where Qwen's templates drop earlier reasoning: the guard of the reasoning block in the history.
_STRIP_GUARD = re.compile(r"loop\.index0 > ns\.last_query_index")
_EMPTY_GUARD = re.compile(r"loop\.last or \(not loop\.last and reasoning_content\)")


def template_text(tokenizer: Any) -> str:
    """The tokenizer's chat template (the one for tools where it has several).
    Raises ConfigError where there is none."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    if not template:
        raise ConfigError(
            f"model.path: the tokenizer of {getattr(tokenizer, 'name_or_path', '')!r} has no chat "
            "template; add chat_template.jinja to the model folder"
        )
    return template


def keeping_reasoning(template: str) -> str | None:
    """`template` with earlier reasoning kept in the history, None where no way is known.

    The first prompt is untouched: only the condition that drops the block of an earlier turn is
    replaced. Whether the result really keeps it is for the caller to verify.
    """
    kept, changed = _STRIP_GUARD.subn("true", template)
    return _EMPTY_GUARD.sub("true", kept) if changed else None


class ChatTemplate:
    """Renders with one template; `enable_thinking` None leaves the template's default."""

    def __init__(self, tokenizer: Any, template: str, enable_thinking: bool | None) -> None:
        self.text = template
        self._tokenizer = tokenizer
        self._encode = tokenizer.backend_tokenizer.encode
        self._options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        self.end_of_turn = self._find_end_of_turn()
        """Id that closes an assistant turn."""

    def render(
        self,
        messages: Sequence[Message],
        tools: tuple[ToolSpec, ...] = (),
        generation_prompt: bool = True,
    ) -> str:
        """Text of a conversation. Raises ConfigError where the template refuses it."""
        try:
            return self._tokenizer.apply_chat_template(
                list(messages),
                tools=[tool.as_function() for tool in tools] or None,
                chat_template=self.text,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self._options,
            )
        except TemplateError as refusal:
            raise ConfigError(
                f"the chat template refuses these messages "
                f"({' '.join(m['role'] for m in messages)}): {refusal}"
            ) from None

    def encode(self, text: str) -> list[int]:
        """Ids of rendered text: exactly what the template wrote, no BOS or EOS of the tokenizer's
        own on top."""
        return self._encode(text, add_special_tokens=False).ids

    def ids(
        self,
        messages: Sequence[Message],
        tools: tuple[ToolSpec, ...] = (),
        generation_prompt: bool = True,
    ) -> list[int]:
        return self.encode(self.render(messages, tools, generation_prompt))

    def assistant_turn(
        self, messages: Sequence[Message], tools: tuple[ToolSpec, ...] = ()
    ) -> list[int] | None:
        """Ids that a policy would have sampled for the last message (an assistant's), the closing
        token included: what its render adds to the generation prompt. None where the render does
        not continue that prompt."""
        prompt = self.render(messages[:-1], tools)
        full = self.render(messages, tools, generation_prompt=False)
        if not full.startswith(prompt):
            return None
        ids = self.encode(full[len(prompt) :])
        return ids[: _last_index(ids, self.end_of_turn) + 1]

    def merges_two_systems(self) -> bool:
        """Whether a second leading system message is refused or lost, so that it must be merged."""
        second = {"role": "system", "content": "qz"}
        try:
            return "qz" not in self.render([_SYSTEM, second, _USER])
        except ConfigError:
            return True

    def shows_reasoning(self) -> bool:
        """Whether an assistant's reasoning is part of its turn."""
        return "qz" in self.render(anchor(reasoning="qz"), generation_prompt=False)

    def opens_reasoning(self) -> bool:
        """Whether the generation prompt ends inside a reasoning block."""
        prompt = self.render([_SYSTEM, _USER])
        return prompt.rfind("<think>") > prompt.rfind("</think>")

    def _find_end_of_turn(self) -> int:
        text = self.render([_SYSTEM, _USER, _assistant()], generation_prompt=False)
        added = self._tokenizer.added_tokens_decoder
        tail = self.encode(text[text.rindex(SENTINEL) + len(SENTINEL) :])
        for token in tail:
            if token in added:
                return token
        raise ConfigError(
            "model.path: the chat template closes an assistant turn with no token of its own, so "
            "a sampled turn has no exact end; use a template with an end-of-turn token"
        )


_SYSTEM: Message = {"role": "system", "content": SENTINEL}
_USER: Message = {"role": "user", "content": SENTINEL}


def _assistant(reasoning: str = "", call: bool = False) -> Message:
    message: Message = {"role": "assistant", "content": SENTINEL, "reasoning_content": reasoning}
    if call:
        function = {"name": SENTINEL, "arguments": {SENTINEL: SENTINEL}}
        message["tool_calls"] = [{"type": "function", "function": function}]
    return message


def anchor(reasoning: str = "", call: bool = False) -> list[Message]:
    """The fixed conversation that probes and deltas stand behind."""
    return [_SYSTEM, _USER, _assistant(reasoning, call)]


def _last_index(ids: list[int], wanted: int) -> int:
    return len(ids) - 1 - ids[::-1].index(wanted)
