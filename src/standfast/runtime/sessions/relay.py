"""The event relay: live events of sessions that run in other processes, sent as announcements of the store.

Theory of operation
-------------------
A process that observes a session announces periodically that it watches it. The process that runs the session
then announces the events that its feed keeps and those that follow, in batches; sessions that no other
process watches are not announced. The observing process stores the events in a `LiveFeed` of its own, under
the numbers and the epoch of the process they come from, so a cursor means the same in every process.

A process that begins to listen announces that, and processes that watch sessions repeat their announcements,
because the new process may be about to run these sessions.

Rules
-----
1. An event that is too large for an announcement is announced as a `Gap`; it can be read once its turn ends.
2. Announcements can get lost. A missing number empties the feed: reading from an earlier position is
   `Missed`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final

import msgspec

from standfast.errors import StandfastError
from standfast.model.events import Event, Gap, TurnBegan, TurnCommitted, TurnParked
from standfast.model.session import HoldsSessionIds, SessionIdField
from standfast.ports.session_store import SessionStore
from standfast.runtime.turn import EventSignal, LiveFeed, Missed

_LISTENING: Final = "listening"
_WATCH: Final = "watch"
_LIVE: Final = "live"
_EVERY_S: Final = 5.0
_LASTS_S: Final = 15.0
_BATCH_S: Final = 0.015
_MAX_BYTES: Final = 6_500
_SILENT_S: Final = 10.0


class Batch(HoldsSessionIds, frozen=True):
    """Events of a session, numbered from `first`, of the process `epoch`."""

    session_id: SessionIdField
    epoch: str
    first: int
    events: list[Event]


class FeedSource(msgspec.Struct, frozen=True):
    """A feed, and the process whose event numbers it has."""

    epoch: str
    feed: LiveFeed

    @property
    def is_at_rest(self) -> bool:
        """Whether the last event is the end of a turn, or there is none."""
        last = self.feed.last()
        return last is None or isinstance(last, TurnCommitted | TurnParked)


class WatchedSession:
    """A session that other processes may run, watched by observers in this process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_s = -_SILENT_S
        self.bells: list[EventSignal] = []
        self.source: FeedSource | None = None
        """The feed of the process whose events arrived last."""

    @property
    def is_running(self) -> bool:
        """Whether, as far as is known, another process is running a turn."""
        recent = self._clock() - self._heard_s < _SILENT_S
        return recent and self.source is not None and not self.source.is_at_rest

    async def answer(self, epoch: str, seq: int, timeout_s: float) -> None:
        """Wait until the events of *epoch* after *seq* have arrived, if that process still has them."""
        bell = EventSignal()
        self.bells.append(bell)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._has(epoch, seq):
                    await bell.wait(timeout_s)
        self.bells.remove(bell)

    def _has(self, epoch: str, seq: int) -> bool:
        try:
            return (
                self.source is not None and self.source.epoch == epoch and bool(self.source.feed.since(seq))
            )
        except Missed:
            return False

    def accept(self, batch: Batch) -> None:
        """Store announced events, except those that are already known."""
        kept: list[tuple[int, Event]] = []
        feed = None if self.source is None or self.source.epoch != batch.epoch else self.source.feed
        if feed is None or batch.first <= feed.oldest():  # earlier events than the known ones
            kept = [] if feed is None else feed.since(feed.oldest())
            feed = LiveFeed(self._clock, batch.first - 1)
            self.source = FeedSource(batch.epoch, feed)
        self._heard_s = self._clock()
        for number, event in (*enumerate(batch.events, batch.first), *kept):
            feed.put(number, event)
        for bell in self.bells:
            bell.ring()


class _Announcer(EventSignal):
    """Announces the events of one session that runs here, until no process watches it."""

    __slots__ = ("_feed", "_relay", "_session_id", "_timer", "_unsent", "until_s")

    def __init__(self, relay: EventRelay, session_id: str, feed: LiveFeed, until_s: float) -> None:
        super().__init__()
        self._relay, self._session_id, self._feed = relay, session_id, feed
        self._unsent = feed.oldest()
        self._timer: asyncio.TimerHandle | None = None
        self.until_s = until_s

    def receive(self, event: Event) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_BATCH_S, self.send)

    def send(self, *, all_kept: bool = False) -> None:
        """Announce the events that were not announced yet; with *all_kept*, all that the feed has."""
        self._timer = None
        after = self._feed.oldest() if all_kept else max(self._unsent, self._feed.oldest())
        self._unsent = self._feed.last_seq
        for batch in _batches(self._session_id, self._relay.epoch, self._feed.since(after)):
            self._relay.announce(_LIVE, batch)


class EventRelay:
    """The announcements that a runtime sends and receives. Used on its loop."""

    def __init__(self, store: SessionStore, epoch: str, clock: Callable[[], float]) -> None:
        self.epoch = epoch
        self._store = store
        self._clock = clock
        self._watched: dict[str, WatchedSession] = {}
        self.wanted: dict[str, float] = {}
        """The sessions that other processes watch, and until when they do."""
        self._announcers: dict[str, _Announcer] = {}
        self._feeds: Callable[[str], LiveFeed | None] = lambda session_id: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        self._is_connected = False
        self._stop_listening: Callable[[], None] = lambda: None

    def open(self, feeds: Callable[[str], LiveFeed | None]) -> None:
        """Listen; *feeds* returns the feed of a session that has one here."""
        self._feeds = feeds
        loop, heard = asyncio.get_running_loop(), deque[tuple[str, str]]()

        def take_in() -> None:
            try:
                while heard:
                    self._hear(*heard.popleft())
            finally:
                if heard:  # process the others even after an error
                    loop.call_soon(take_in)

        def hear(text: str) -> None:
            kind, _, body = text.partition(" ")
            if kind in ("", _LISTENING, _WATCH, _LIVE):
                heard.append((kind, body))
                if len(heard) == 1:  # otherwise the loop is already scheduled to process them
                    with contextlib.suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(take_in)

        self._stop_listening = self._store.listen(hear)

    async def close(self) -> None:
        self._stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def watch(self, session_id: str, bell: EventSignal) -> WatchedSession:
        """Request the events of a session, and signal *bell* when some arrive, until `leave`."""
        found = self._watched.get(session_id)
        if found is None:
            found = self._watched[session_id] = WatchedSession(self._clock)
            self._start(self._keep_watching(session_id))
        if self._is_connected:  # otherwise they are requested once connected
            self._ask(session_id)
        found.bells.append(bell)
        return found

    def leave(self, session_id: str, bell: EventSignal) -> None:
        found = self._watched.get(session_id)
        if found is not None and bell in found.bells:
            found.bells.remove(bell)
            if not found.bells:
                del self._watched[session_id]

    def feed_made(self, session_id: str, feed: LiveFeed) -> None:
        """Announce the events of a session whose feed was just created, if another process watches it."""
        if self.wanted.get(session_id, 0.0) > self._clock():
            self._attach(session_id, feed)

    def announce(self, kind: str, body: object) -> None:
        self._start(self._announce(f"{kind} {msgspec.json.encode(body).decode()}"))

    async def _announce(self, text: str) -> None:
        async with self._sending:  # in order
            with contextlib.suppress(StandfastError):
                await self._store.announce(text)

    async def _keep_watching(self, session_id: str) -> None:
        while session_id in self._watched:
            await asyncio.sleep(_EVERY_S)
            self._ask(session_id, whole=False)

    def _ask(self, session_id: str, *, whole: bool = True) -> None:
        """Announce that a session is watched; with *whole*, request all its kept events."""
        self.announce(_WATCH, (session_id, self.epoch, whole))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _hear(self, kind: str, body: str) -> None:
        if not kind:  # the connection to the store was made, for the first time or again
            self._is_connected = True
            self.announce(_LISTENING, self.epoch)
            for session_id in self._watched:
                self._ask(session_id)
            return
        with contextlib.suppress(msgspec.DecodeError):  # sent by another release
            if kind == _LISTENING:
                if msgspec.json.decode(body, type=str) != self.epoch:
                    for session_id in self._watched:
                        self._ask(session_id, whole=False)
                return
            if kind == _LIVE:
                batch = msgspec.json.decode(body, type=Batch)  # a decoder would be made by every process
                if batch.epoch != self.epoch and batch.session_id in self._watched:
                    self._watched[batch.session_id].accept(batch)
                return
            session_id, watcher, whole = msgspec.json.decode(body, type=tuple[str, str, bool])
            if watcher != self.epoch:
                self.wanted[session_id] = self._clock() + _LASTS_S
                feed = self._feeds(session_id)
                if feed is not None:
                    self._attach(session_id, feed, whole=whole)

    def _attach(self, session_id: str, feed: LiveFeed, *, whole: bool = True) -> None:
        until_s = self.wanted[session_id]
        found = self._announcers.get(session_id)
        if found is None or not feed.has(found):
            whole = True
            found = self._announcers[session_id] = feed.listen(_Announcer(self, session_id, feed, until_s))
            asyncio.get_running_loop().call_later(_LASTS_S, self._expire, session_id, feed)
        found.until_s = until_s
        if whole:
            found.send(all_kept=True)

    def _expire(self, session_id: str, feed: LiveFeed) -> None:
        found = self._announcers.get(session_id)
        if found is None or not feed.has(found):
            return
        if found.until_s > self._clock():
            asyncio.get_running_loop().call_later(_LASTS_S, self._expire, session_id, feed)
            return
        feed.leave(found)
        del self._announcers[session_id]
        self.wanted.pop(session_id, None)


def _batches(session_id: str, epoch: str, numbered: list[tuple[int, Event]]) -> list[Batch]:
    """Return events in batches that fit into an announcement each."""
    batches: list[Batch] = []
    size = _MAX_BYTES
    for number, event in numbered:
        bytes_ = len(msgspec.json.encode(event))
        if bytes_ > _MAX_BYTES // 2:
            event, bytes_ = Gap(missed=1), 100
        if size + bytes_ > _MAX_BYTES:
            batches.append(Batch(session_id, epoch, number, []))
            size = 200
        batches[-1].events.append(event)
        size += bytes_ + 1
    return batches


def continues(old: FeedSource, new: FeedSource) -> bool:
    """Return whether nothing was missed between the end of *old* and the beginning of *new*."""
    return old.is_at_rest and isinstance(new.feed.first(), TurnBegan)
