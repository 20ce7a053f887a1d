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
from typing import Final

from holdfast.model.events import Event

MAX_EVENTS: Final = 2048
MAX_AGE_S: Final = 120.0


class Missed(Exception):
    """The events after this place are gone."""


class Subscription:
    """Events for one reader, in order, none left out."""

    __slots__ = ("_events", "_waiter")

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def push(self, event: Event) -> None:
        self._events.append(event)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def wake(self) -> None:
        """Let a reader look again, although nothing has come."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> Event | None:
        return self._events.popleft() if self._events else None

    async def wait(self, timeout_s: float | None = None) -> None:
        """Until there may be something to take."""
        if self._events:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


class LiveFeed:
    """Publishes to whoever listens, and remembers a while for those who come later."""

    __slots__ = ("_clock", "_ring", "_subscriptions", "last_seq")

    def __init__(self, clock: Callable[[], float] = monotonic, last_seq: int = 0) -> None:
        self._clock = clock
        self._ring: deque[tuple[int, float, Event]] = deque(maxlen=MAX_EVENTS)
        self._subscriptions: list[Subscription] = []
        self.last_seq = last_seq

    def publish(self, event: Event) -> None:
        self.last_seq += 1
        self._ring.append((self.last_seq, self._clock(), event))
        for subscription in self._subscriptions:
            subscription.push(event)

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        self._subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    @property
    def idle(self) -> bool:
        """Whether nobody listens."""
        return not self._subscriptions

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
