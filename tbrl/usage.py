"""Tokens that models use: noted where a request is answered, summed by role, never guessed.

    Usage        of one or several requests to one model
    RoleUsage    of an episode, a campaign or a step: agent, user, judge

A request that was not answered, or whose answer says nothing of its tokens, is counted in
`unknown` and adds nothing to the counts: they are a lower bound then, and whoever shows them says
so. Cached counts depend on what ran before and when, as wall seconds do: both are recorded, and
neither is compared between runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Role = Literal["agent", "user", "judge"]
FREE = frozenset({"scripted", "local", "recorded"})
"""Kinds of users, judges and policies that ask no model."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of some requests to one model.

    >>> Usage.of(100, 60, 20) + Usage.of(150, None, 5)
    Usage(requests=2, input=250, cached=60, output=25, unknown=0, cache_unknown=1)
    """

    requests: int = 0
    input: int = 0
    """Prompt tokens, cached ones included."""
    cached: int = 0
    """The part of `input` that was read from a prefix cache."""
    output: int = 0
    """Sampled tokens."""
    unknown: int = 0
    """Requests whose tokens are not known: the counts lack them."""
    cache_unknown: int = 0
    """Further requests whose answers did not say what was cached: `cached` lacks them."""

    @classmethod
    def of(cls, input: int, cached: int | None, output: int) -> Usage:
        """One answered request."""
        return cls(1, input, cached or 0, output, cache_unknown=int(cached is None))

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, name) + getattr(other, name) for name in COUNTS))

    @property
    def cache_hit_share(self) -> float | None:
        """Cached share of the input; None where it is not known or nothing was read."""
        if self.unknown or self.cache_unknown or not self.input:
            return None
        return self.cached / self.input

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in COUNTS}


COUNTS = tuple(field.name for field in fields(Usage))


def unknown(requests: int = 1) -> Usage:
    """Requests that used tokens nobody can count."""
    return Usage(requests=requests, unknown=requests)


NOTHING = Usage()
UNKNOWN = unknown()


@dataclass(frozen=True, slots=True)
class RoleUsage:
    """Tokens by the role of the model."""

    agent: Usage = NOTHING
    user: Usage = NOTHING
    judge: Usage = NOTHING

    def __add__(self, other: RoleUsage) -> RoleUsage:
        return RoleUsage(*(self.of(role) + other.of(role) for role in ROLES))

    def of(self, role: Role) -> Usage:
        return getattr(self, role)

    def to_json(self) -> dict[str, dict[str, int]]:
        return {role: self.of(role).to_json() for role in ROLES}

    @classmethod
    def from_json(cls, row: Mapping[str, Mapping[str, int]]) -> RoleUsage:
        return cls(**{role: Usage(**row[role]) for role in ROLES})


ROLES: tuple[Role, ...] = ("agent", "user", "judge")
NO_TOKENS = RoleUsage()


def unanswered(agent: str = "engine", user: str = "scripted", judge: str = "local") -> RoleUsage:
    """What a call that is not answered is booked as, by the configured kinds: one request of
    unknown tokens where a model was asked, nothing elsewhere."""
    return RoleUsage(*(NOTHING if kind in FREE else UNKNOWN for kind in (agent, user, judge)))


def usage_of_completion(answer: Mapping[str, Any]) -> Usage:
    """What an OpenAI-compatible answer says of its tokens; unknown where it says nothing sound."""
    said = answer.get("usage")
    if not isinstance(said, dict):
        return UNKNOWN
    read, written = _count(said.get("prompt_tokens")), _count(said.get("completion_tokens"))
    if read is None or written is None:
        return UNKNOWN
    details = said.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage.of(read, None if cached is None or cached > read else cached, written)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
