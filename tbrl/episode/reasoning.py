"""Splitting an output into reasoning and the rest.

    <think>R</think>rest    closed            (a chat template may have opened it: R</think>rest)
    <think>R                unterminated: everything is reasoning, nothing in it is acted on
    rest                    none

Reasoning is opaque: call markup inside it is text. Only a leading block is reasoning; a tag
further on is a stray one, which interpretation reports.
"""

from __future__ import annotations

from dataclasses import dataclass

THINK, THINK_END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Split:
    """An output in two parts."""

    reasoning: str
    """Without tags and surrounding white space."""
    rest: str
    """What follows the block; everything where there is none."""
    closed: bool
    """False for an unterminated block."""
    present: bool
    """False where the output has no block (`closed` is then True)."""


def split_reasoning(text: str, preopened: bool) -> Split:
    """Split `text`; `preopened` says that the prompt already ended inside the block."""
    start = 0
    lead = len(text) - len(text.lstrip())
    if text.startswith(THINK, lead):
        start = lead + len(THINK)
    elif not preopened:
        return Split("", text, closed=True, present=False)
    end = text.find(THINK_END, start)
    if end < 0:
        return Split(text[start:].strip(), "", closed=False, present=True)
    return Split(text[start:end].strip(), text[end + len(THINK_END) :], closed=True, present=True)


def stray_think_tag(text: str) -> bool:
    """Whether a reasoning tag stands where none belongs."""
    return THINK in text or THINK_END in text
