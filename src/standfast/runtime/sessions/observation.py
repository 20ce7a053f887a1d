"""Observing a session: its committed nodes, then its live events.

A cursor is a position in both: the depth of the last node, and the number of the last live event. Event
numbers belong to one process (`epoch`); `EventRelay` relays the events of other processes under the same
numbers. If events after the cursor are no longer kept, the observer gets a `Gap` and the nodes committed
since.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec

from standfast.durable.driver import TurnDriver
from standfast.durable.journal import replay
from standfast.errors import InvalidArgument, SessionNotFound
from standfast.graph.history import frame_at, nodes_of
from standfast.model import session
from standfast.model.events import Event, Gap, NodeCommitted, TurnCommitted
from standfast.model.message import Message
from standfast.model.outcome import Waiting
from standfast.ports.session_store import SessionStore
from standfast.runtime.sessions.live_session import LiveSession
from standfast.runtime.sessions.relay import EventRelay, FeedSource, continues
from standfast.runtime.turn import EventSignal, Missed

_FIRST_NODES: Final = 256
_ANSWER_S: Final = 1.0


class SessionMessages(list[Message]):
    """The messages of a session. The last ones are those of `current`, the turn that has not ended."""

    def __init__(self, committed: Iterable[Message], current: session.CurrentTurn | None) -> None:
        super().__init__(committed)
        self.current = current
        if current is not None:
            self.extend(current.messages)


async def current_turn(
    store: SessionStore, session_id: str, driver: TurnDriver | None, now_ms: int
) -> session.CurrentTurn | None:
    """Return the unfinished turn of a session; *driver* runs it, if this process does."""
    turn = await store.open_turn_journal(session_id)
    if turn is None:
        return None
    record, runs_here = turn.record, driver is not None and driver.turn_id == turn.record.turn_id
    state: session.CurrentState = "running"
    if record.state is session.TurnState.WAITING:
        state = "waiting"
    elif not runs_here:  # it was interrupted if no live process owns it
        left = await store.unfinished(now_ms)
        state = "interrupted" if any(one.turn_id == record.turn_id for one in left) else "running"
    if driver is not None and runs_here:
        machine = driver.machine
    else:
        machine = replay(record.turn_id, turn.input, turn.journal).machine
    outcome = None if record.summary is None else record.summary.outcome
    return session.CurrentTurn(
        turn_id=record.turn_id,
        state=state,
        messages=tuple(machine.messages),
        waits=outcome.waits if state == "waiting" and isinstance(outcome, Waiting) else (),
    )


async def blocked_in(store: SessionStore, head: session.SessionHead) -> session.Blocked | None:
    """Return why the next turn cannot run, if that turn is still unfinished or its input still queued."""
    note = head.blocked
    if note is None:
        return None
    if note.turn_id:
        turn = await store.turn(note.turn_id)
        return note if turn is not None and turn.state is not session.TurnState.ENDED else None
    queued = await store.inputs(head.session_id)
    return note if any(item.input_id == note.input_id for item in queued) else None


async def messages_of_turn(store: SessionStore, record: session.TurnRecord) -> tuple[Message, ...]:
    """Return the messages of a turn that has ended, searching from the end of the history."""
    head = await store.head(record.session_id)
    if record.state is not session.TurnState.ENDED or head is None or head.leaf is None:
        return ()
    window = _FIRST_NODES
    while True:
        after = max(0, head.depth - window)
        for segment in await store.path(head.leaf, after_depth=after):
            if segment.segment_id == record.turn_id:
                said = (entry.payload for entry in segment.entries)
                return tuple(one for one in said if isinstance(one, Message))
        if after == 0:
            return ()
        window *= 4


_CURSOR: Final = re.compile(r"(\d{1,18})\.([^.]*)\.(\d{1,18})", re.ASCII)


class Cursor(msgspec.Struct, frozen=True):
    """A position in a session. Use `str(cursor)` and `Cursor.parse` to store it."""

    depth: int = 0
    epoch: str = ""
    seq: int = 0

    def __str__(self) -> str:
        return f"{self.depth}.{self.epoch}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise InvalidArgument(f"{text[:80]!r} is not a cursor of this session")
        depth, epoch, seq = found.groups()
        return cls(int(depth), epoch, int(seq))


class Observed(msgspec.Struct, frozen=True):
    """An event, and the cursor to continue after it."""

    event: Event
    cursor: Cursor


class Observer:
    """An observer of one session, starting after a cursor."""

    def __init__(self, live: LiveSession, store: SessionStore, relay: EventRelay, poll_s: float) -> None:
        self._live = live
        self._store = store
        self._relay = relay
        self._poll_s = poll_s
        self._created_at: int | None = None
        """When the observed session was created; None until it is known."""

    async def follow(self, cursor: Cursor) -> AsyncIterator[Observed]:
        """Yield events until the caller stops; raise `SessionNotFound` once the session has been deleted."""
        bell = self._live.events.feed.listen(EventSignal())
        elsewhere = self._relay.watch(self._live.session_id, bell)
        try:
            if cursor.epoch not in ("", self._relay.epoch):  # the process that it names may respond
                await elsewhere.answer(cursor.epoch, cursor.seq, min(self._poll_s, _ANSWER_S))
            before: FeedSource | None = None
            while True:
                here = FeedSource(self._relay.epoch, self._live.events.feed)
                source = elsewhere.source if elsewhere.source and not self._live.busy else here
                if here.epoch == cursor.epoch and here.feed.last_seq != cursor.seq:
                    source = here  # its events come first
                try:
                    followed = cursor.epoch == source.epoch and source.feed.since(cursor.seq) is not None
                except Missed:
                    followed = False
                if not followed:
                    if cursor.epoch and not (before is not None and continues(before, source)):
                        yield Observed(Gap(), cursor)
                    async for observed in self._committed(cursor):
                        cursor = observed.cursor
                        yield observed
                    feed = source.feed
                    seq = feed.oldest()
                    for number, event in feed.since(seq):  # skip the turns whose nodes were yielded
                        if isinstance(event, TurnCommitted) and event.depth <= cursor.depth:
                            seq = number
                    cursor = Cursor(cursor.depth, source.epoch, seq)
                before = source
                async for observed in self._live_since(source, cursor):
                    cursor = observed.cursor
                    yield observed
                if source.feed.last_seq == cursor.seq and elsewhere.source in (None, source, here):
                    await bell.wait(self._poll_s)
                    if (
                        source.feed.last_seq == cursor.seq
                        and self._live.driver is None
                        and not elsewhere.is_running
                    ):
                        async for observed in self._committed(cursor):  # by another process
                            cursor = observed.cursor
                            yield observed
        finally:
            self._live.events.feed.leave(bell)
            self._relay.leave(self._live.session_id, bell)

    async def _live_since(self, source: FeedSource, cursor: Cursor) -> AsyncIterator[Observed]:
        depth, before = cursor.depth, cursor.seq
        for seq, event in source.feed.since(cursor.seq):
            if isinstance(event, TurnCommitted):
                last = event.depth - event.nodes
                async for observed in self._committed(Cursor(depth, source.epoch, before), last):
                    yield observed  # appended before this turn began, or committed by another process
                depth = event.depth
            before = seq
            yield Observed(event, Cursor(depth, source.epoch, seq))

    async def _committed(self, cursor: Cursor, last: int | None = None) -> AsyncIterator[Observed]:
        """Yield the nodes after a cursor, up to the depth *last* if given."""
        if last is not None and last <= cursor.depth:
            return
        head = await self._store.head(self._live.session_id)
        created_at = None if head is None else head.created_at
        if self._created_at not in (None, created_at):  # another session may have taken its id
            raise SessionNotFound(self._live.session_id)
        self._created_at = created_at
        if head is None or head.leaf is None:
            return
        if head.depth < cursor.depth and last is None:  # the session was rewound
            yield Observed(Gap(), Cursor(head.depth, cursor.epoch, cursor.seq))
        if head.depth <= cursor.depth:
            return
        segments = await self._store.path(head.leaf, after_depth=cursor.depth)
        for event in nodes_after(segments, cursor.depth):
            if last is None or event.depth <= last:
                yield Observed(event, Cursor(event.depth, cursor.epoch, cursor.seq))


def nodes_after(segments: tuple[session.Segment, ...], depth: int) -> list[NodeCommitted]:
    """Return the nodes of a path past *depth*, as events."""
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
