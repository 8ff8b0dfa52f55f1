"""The waits of one episode: each has a deadline, and its seconds and tokens are recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import Protocol, TypeVar

from tbrl.errors import BackendFailure
from tbrl.usage import NO_TOKENS, Role, RoleUsage, Usage


class Answered(Protocol):
    """What a model said, and what that took."""

    @property
    def usage(self) -> Usage: ...


T = TypeVar("T")
A = TypeVar("A", bound=Answered)


class Meter:
    """Of one episode, through the token loop as through chat completions."""

    def __init__(self, unanswered: RoleUsage) -> None:
        """`unanswered` is what a call without an answer is booked as (usage.unanswered)."""
        self._unanswered = unanswered
        self.usage = NO_TOKENS
        self.seconds: dict[str, float] = {"engine": 0.0, "tools": 0.0, "user": 0.0, "grade": 0.0}

    async def within(
        self, work: Awaitable[T], seconds: float, phase: str, kind: str, where: str
    ) -> T:
        """Raises BackendFailure("deadline") after `seconds`; the episode's own deadline passes
        through."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(seconds) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            detail = f"{kind} did not answer in {seconds:g} s"
            raise BackendFailure("deadline", where, detail) from None
        finally:
            self.seconds[phase] += time.perf_counter() - started

    async def asked(
        self, role: Role, work: Awaitable[A], seconds: float, phase: str, kind: str, where: str
    ) -> A:
        """`within` for a call that may ask a model: its tokens are booked however it ends."""
        used = self._unanswered.of(role)
        try:
            answer = await self.within(work, seconds, phase, kind, where)
            used = answer.usage
            return answer
        except BackendFailure as failure:
            used = used if failure.usage is None else failure.usage
            raise
        finally:
            self.usage = replace(self.usage, **{role: self.usage.of(role) + used})
