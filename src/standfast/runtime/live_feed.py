"""Live events of one session: a bounded past, and everything to come.

Rules
-----
1. An event is kept until 2,048 newer ones are there, or for 120 s.
2. Whoever reads from a place that is gone is told so (`Missed`), never given a wrong continuation.
3. A subscriber of one turn misses nothing: what it has not read yet is kept for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeVar

from standfast.model.events import Event

MAX_EVENTS: Final = 2048
MAX_AGE_S: Final = 120.0


class Missed(Exception):
    """The events after this place are gone."""


class Bell:
    """Tells one reader to look. It keeps nothing: whoever does not look misses nothing but the ringing."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def hear(self, event: Event) -> None:
        """Something was published."""
        self.ring()

    def ring(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Until it rings, or the time is over."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, self.ring)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


BellKind = TypeVar("BellKind", bound=Bell)


class Subscription(Bell):
    """Events for one reader, in order, none left out."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        super().__init__()
        self._events: deque[Event] = deque()

    def hear(self, event: Event) -> None:
        self._events.append(event)
        self.ring()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Until there may be something to take."""
        if not self._events:
            await super().wait(timeout_s)

    def take(self) -> Event | None:
        return self._events.popleft() if self._events else None


class LiveFeed:
    """Publishes to whoever listens, and remembers a while for those who come later."""

    __slots__ = ("_bells", "_clock", "_ring", "last_seq")

    def __init__(self, clock: Callable[[], float] = monotonic, last_seq: int = 0) -> None:
        self._clock = clock
        self._ring: deque[tuple[int, float, Event]] = deque(maxlen=MAX_EVENTS)
        self._bells: list[Bell] = []
        self.last_seq = last_seq

    def publish(self, event: Event) -> None:
        self.last_seq += 1
        self._ring.append((self.last_seq, self._clock(), event))
        for bell in self._bells:
            bell.hear(event)

    def listen(self, bell: BellKind) -> BellKind:
        """Let *bell* hear of what is published, until it leaves."""
        self._bells.append(bell)
        return bell

    def leave(self, bell: Bell) -> None:
        if bell in self._bells:
            self._bells.remove(bell)

    @property
    def idle(self) -> bool:
        """Whether nobody listens."""
        return not self._bells

    def since(self, seq: int) -> list[tuple[int, Event]]:
        """The events after *seq*, oldest first."""
        self._forget_old()
        if seq > self.last_seq:
            raise Missed
        first = self._ring[0][0] if self._ring else self.last_seq + 1
        if seq + 1 < first:
            raise Missed
        return [(number, event) for number, _, event in self._ring if number > seq]

    def oldest(self) -> int:
        """The place before the oldest event that is still there."""
        self._forget_old()
        return self._ring[0][0] - 1 if self._ring else self.last_seq

    def _forget_old(self) -> None:
        horizon = self._clock() - MAX_AGE_S
        while self._ring and self._ring[0][1] < horizon:
            self._ring.popleft()
