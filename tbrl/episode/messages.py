"""Recorded turns -> the messages that chat templates take."""

from __future__ import annotations

from collections.abc import Sequence

from tbrl.episode.chat_template import Message
from tbrl.types import ToolCall, Turn


def assistant_message(text: str, reasoning: str, calls: Sequence[ToolCall]) -> Message:
    """An assistant's message; `tool_calls` only where there are some."""
    message: Message = {"role": "assistant", "content": text, "reasoning_content": reasoning}
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def message_of(turn: Turn) -> Message:
    """The message of one turn."""
    if turn.role == "assistant":
        return assistant_message(turn.text, turn.reasoning, turn.tool_calls)
    if turn.role == "tool":
        return {"role": "tool", "name": turn.tool_name, "content": turn.text}
    return {"role": turn.role, "content": turn.text}
