"""Watching a session: everything that was committed, then what happens now.

A cursor is a place in both: how many nodes of the active path were seen, and which live event was the last.
Live places are of one process (`epoch`); in another one, or when the event is no longer kept, the observer
gets a `Gap` and the committed nodes that followed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from standfast.errors import InvalidArgument
from standfast.graph.history import frame_at, nodes_of
from standfast.model.events import Event, Gap, NodeCommitted, TurnCommitted
from standfast.model.session import Segment
from standfast.ports.session_store import SessionStore
from standfast.runtime.sessions.live_session import LiveSession
from standfast.runtime.turn import EventSignal, Missed


class Cursor(msgspec.Struct, frozen=True):
    """`str(cursor)` and `Cursor.parse` are its form for storage."""

    depth: int = 0
    epoch: str = ""
    seq: int = 0

    def __str__(self) -> str:
        return f"{self.depth}.{self.epoch}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        try:
            depth, epoch, seq = text.split(".")
            return cls(int(depth), epoch, int(seq))
        except ValueError:
            raise InvalidArgument(f"{text[:80]!r} is not a cursor of this session") from None


class Observed(msgspec.Struct, frozen=True):
    """An event, and the cursor to continue after it."""

    event: Event
    cursor: Cursor


class Observer:
    """Follows one session from a cursor on."""

    def __init__(self, live: LiveSession, store: SessionStore, epoch: str, poll_s: float) -> None:
        self._live = live
        self._store = store
        self._epoch = epoch
        self._poll_s = poll_s

    async def follow(self, cursor: Cursor) -> AsyncIterator[Observed]:
        bell = self._live.feed.listen(EventSignal())
        try:
            while True:
                if not self._can_go_on_live(cursor):
                    if cursor.epoch:
                        yield Observed(Gap(), cursor)
                    async for observed in self._committed(cursor):
                        cursor = observed.cursor
                        yield observed
                    cursor = Cursor(cursor.depth, self._epoch, self._place_after(cursor.depth))
                async for observed in self._live_since(cursor):
                    cursor = observed.cursor
                    yield observed
                if self._live.feed.last_seq == cursor.seq:
                    await bell.wait(self._poll_s)
                    async for observed in self._elsewhere(cursor):
                        cursor = observed.cursor
                        yield observed
        finally:
            self._live.feed.leave(bell)

    def _can_go_on_live(self, cursor: Cursor) -> bool:
        if cursor.epoch != self._epoch:
            return False
        try:
            self._live.feed.since(cursor.seq)
        except Missed:
            return False
        return True

    async def _live_since(self, cursor: Cursor) -> AsyncIterator[Observed]:
        depth, before = cursor.depth, cursor.seq
        for seq, event in self._live.feed.since(cursor.seq):
            if isinstance(event, TurnCommitted):
                last = event.depth - event.nodes
                async for observed in self._committed(Cursor(depth, self._epoch, before), last):
                    yield observed  # appended, or committed by another process, before this turn began
                depth = event.depth
            before = seq
            yield Observed(event, Cursor(depth, self._epoch, seq))

    def _place_after(self, depth: int) -> int:
        """The live place behind the last turn whose nodes were seen already."""
        feed = self._live.feed
        place = feed.oldest()
        for seq, event in feed.since(place):
            if isinstance(event, TurnCommitted) and event.depth <= depth:
                place = seq
        return place

    async def _committed(self, cursor: Cursor, last: int | None = None) -> AsyncIterator[Observed]:
        """The nodes after a cursor, up to the one at the depth *last* if given."""
        if last is not None and last <= cursor.depth:
            return
        head = await self._store.head(self._live.session_id)
        if head is None or head.leaf is None:
            return
        if head.depth < cursor.depth and last is None:  # the session was taken back
            yield Observed(Gap(), Cursor(head.depth, cursor.epoch, cursor.seq))
        if head.depth <= cursor.depth:
            return
        segments = await self._store.path(head.leaf, after_depth=cursor.depth)
        for event in nodes_after(segments, cursor.depth):
            if last is None or event.depth <= last:
                yield Observed(event, Cursor(event.depth, cursor.epoch, cursor.seq))

    async def _elsewhere(self, cursor: Cursor) -> AsyncIterator[Observed]:
        """What another process has committed, if none of it happened here."""
        if self._live.feed.last_seq != cursor.seq or self._live.driver is not None:
            return
        async for observed in self._committed(cursor):
            yield observed


def nodes_after(segments: tuple[Segment, ...], depth: int) -> list[NodeCommitted]:
    """The nodes of a path past *depth*, as events."""
    if not segments:
        return []
    known = {segment.segment_id: segment for segment in segments}
    frame = frame_at(known.get, segments[0].leaf)
    found = []
    for number, node in enumerate(nodes_of(segments, frame), start=segments[0].depth + 1):
        if number > depth:
            found.append(
                NodeCommitted(
                    node_id=node.id,
                    depth=number,
                    frame=node.frame,
                    caused_by=node.caused_by,
                    at_ms=node.at_ms,
                    payload=node.payload,
                )
            )
    return found
