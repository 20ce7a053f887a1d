"""The events of all sessions, for multi-session observers: live ones of this process, commits of others.

Theory of operation
------------------- While it has observers, the feed keeps the last `MAX_EVENTS` events of all sessions,
numbered. Live events come from `Runtime.watch`. Once a second the feed also polls for sessions that another
process has written to, and publishes the nodes committed there.

Rules
-----
1. A cursor is the feed's epoch and the number of the last event. If the events after it are no longer kept,
   the observer gets a `Gap` and then the current events: it must list its sessions again, and continue each
   from the session's own cursor.
2. A tenant's observer gets only the events of the tenant's sessions.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from standfast.errors import InvalidArgument, StandfastError
from standfast.model.events import Event, Gap, TurnCommitted
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.http_values import SessionEvent
from standfast.runtime.sessions.observation import nodes_after
from standfast.runtime.turn import EventSignal

MAX_EVENTS: Final = 8_192
_LOOK_S: Final = 1.0
_CURSOR: Final = re.compile(r"([^.]*)\.(\d{1,18})", re.ASCII)


class FeedCursor(NamedTuple):
    """A position in the stream of all sessions."""

    epoch: str
    number: int

    @classmethod
    def parse(cls, text: str) -> FeedCursor:
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise InvalidArgument(f"{text[:80]!r} is not a cursor of this stream")
        return cls(found[1], int(found[2]))


class SessionFeed:
    """The recent events of all sessions. It is active only while it has observers."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._epoch = secrets.token_hex(4)
        self._ring: deque[tuple[int, str, SessionEvent]] = deque(maxlen=MAX_EVENTS)
        self._last = 0
        self._bells: list[EventSignal] = []
        self._owners: dict[str, str] = {}
        self._depths: dict[str, int] = {}
        self._ahead: dict[str, int] = {}
        self._unwatch: Callable[[], None] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def follow(self, tenant: str, after: FeedCursor | None) -> AsyncIterator[tuple[str, SessionEvent]]:
        """Yield a cursor and an event for everything after cursor *after*, or from now on if it is None."""
        await self._start()
        bell, seq = EventSignal(), self._last
        if after is not None:
            if after.epoch == self._epoch and self._oldest - 1 <= after.number <= self._last:
                seq = after.number
            else:
                yield self._cursor(seq), SessionEvent(session_id=None, event=Gap())
        self._bells.append(bell)
        try:
            while True:
                if seq < self._oldest - 1:
                    seq = self._oldest - 1
                    yield self._cursor(seq), SessionEvent(session_id=None, event=Gap())
                for number, owner, event in list(self._ring):
                    if number > seq:
                        seq = number
                        if owner == tenant:
                            yield self._cursor(number), event
                if seq == self._last:
                    await bell.wait()
        finally:
            self._bells.remove(bell)

    @property
    def _oldest(self) -> int:
        return self._ring[0][0] if self._ring else self._last + 1

    def _cursor(self, seq: int) -> str:
        return f"{self._epoch}.{seq}"

    async def _start(self) -> None:
        if self._unwatch is not None:
            return
        self._unwatch = self._runtime.watch(self._take)
        for head in await self._runtime.sessions():
            self._owners[head.session_id] = head.tenant
            self._depths[head.session_id] = max(head.depth, self._depths.get(head.session_id, 0))
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def _take(self, session_id: str, event: Event) -> None:
        """Publish a live event of this process."""
        if isinstance(event, TurnCommitted):
            self._depths[session_id] = event.depth
        if session_id in self._owners:
            self._publish(session_id, event)
        else:
            task = asyncio.get_running_loop().create_task(self._take_unknown(session_id, event))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _take_unknown(self, session_id: str, event: Event) -> None:
        """Publish an event of a session created since the feed started."""
        head = await self._runtime.store.head(session_id)
        if head is not None:
            self._owners[session_id] = head.tenant
            self._depths.setdefault(session_id, head.depth)
            self._publish(session_id, event)

    def _publish(self, session_id: str, event: Event) -> None:
        self._last += 1
        shown = SessionEvent(session_id=session_id, event=event)
        self._ring.append((self._last, self._owners[session_id], shown))
        for bell in self._bells:
            bell.ring()

    async def _look(self) -> None:
        """Poll for commits of other processes and publish them, while there are observers."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self._bells:
                continue
            with suppress(StandfastError):
                before, self._ahead = self._ahead, {}
                for head in await self._runtime.sessions():
                    known = self._depths.setdefault(head.session_id, 0)
                    self._owners[head.session_id] = head.tenant
                    if head.depth <= known or head.leaf is None:
                        continue
                    if before.get(head.session_id) == known:
                        await self._publish_nodes(head.session_id, head.leaf, known)
                    else:  # this process may have committed a turn whose event is still on its way
                        self._ahead[head.session_id] = known

    async def _publish_nodes(self, session_id: str, leaf: str, after: int) -> None:
        segments = await self._runtime.store.path(leaf, after_depth=after)
        if self._depths[session_id] == after:
            for event in nodes_after(segments, after):
                self._depths[session_id] = event.depth
                self._publish(session_id, event)

    async def close(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
            self._looking = None
