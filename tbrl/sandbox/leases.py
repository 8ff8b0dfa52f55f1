"""Live sessions of one sandbox: a bound on their number, and a lease that each use renews.

`place` waits while the sandbox is full. A session that nobody has used for a lease belongs to a
dead client and is closed; whoever still holds it gets a backend failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tbrl.errors import BackendFailure


class Leased(Protocol):
    """What a lease needs of a session."""

    session_id: str
    last_used: float
    """Reading of the sandbox's clock, seconds."""
    on_close: list[Callable[[], None]]
    """Called once, when the session closes."""

    async def close(self) -> None: ...


S = TypeVar("S", bound=Leased)


class Leases(Generic[S]):
    """One event loop uses it."""

    def __init__(self, limit: int, lease_s: float, clock: Callable[[], float]) -> None:
        self.sessions: dict[str, S] = {}
        self.opened = 0
        """Sessions so far."""
        self.expired = 0
        """Of them, closed because their lease ran out."""
        self._limit = limit
        self._lease_s = lease_s
        self._clock = clock
        self._held = 0
        self._free = asyncio.Event()

    async def place(self) -> None:
        """Take a place; `add` or `give_back` must follow. Raises BackendFailure when none is free
        within a lease."""
        while len(self.sessions) + self._held >= self._limit:
            if await self.close_expired():
                continue
            self._free.clear()
            try:
                await asyncio.wait_for(self._free.wait(), self._lease_s)
            except TimeoutError:
                if not await self.close_expired():
                    raise BackendFailure(
                        "backend", "open", f"no place among {self._limit} sessions within the lease"
                    ) from None
        self._held += 1

    def give_back(self) -> None:
        """The session for which a place was taken did not come up."""
        self._held -= 1
        self._free.set()

    def add(self, session: S) -> None:
        """The session that takes the place."""
        self._held -= 1
        self.opened += 1
        self.sessions[session.session_id] = session
        session.on_close.append(lambda: self._forget(session.session_id))

    async def close_expired(self) -> int:
        """Close sessions whose lease ran out; returns how many."""
        now = self._clock()
        dead = [s for s in self.sessions.values() if now - s.last_used > self._lease_s]
        for session in dead:
            await session.close()
        self.expired += len(dead)
        return len(dead)

    async def close_all(self) -> None:
        """Close every session."""
        for session in list(self.sessions.values()):
            await session.close()

    def _forget(self, session_id: str) -> None:
        del self.sessions[session_id]
        self._free.set()
