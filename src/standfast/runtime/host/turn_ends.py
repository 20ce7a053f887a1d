"""Waits for turns, whoever runs them.

A turn of this process is heard of at once; one of another is looked for in the store, as often as the runtime
looks for anything.
"""

from __future__ import annotations

from standfast.errors import ServiceUnavailable, TurnNotFound
from standfast.model.events import Event, TurnCommitted, TurnParked
from standfast.model.host_requests import AssembledTurn
from standfast.model.message import Message
from standfast.model.outcome import Finished
from standfast.model.session import TurnRecord, TurnState
from standfast.ports.session_store import SessionStore
from standfast.runtime.live_feed import EventSignal
from standfast.runtime.sessions.directory import SessionDirectory

_WINDOW = 256
"""So many nodes are looked at first for what was said in a turn."""


class _EndOf(EventSignal):
    """Rings when a turn has ended, or waits."""

    __slots__ = ("_turn_id",)

    def __init__(self, turn_id: str) -> None:
        super().__init__()
        self._turn_id = turn_id

    def hear(self, event: Event) -> None:
        if isinstance(event, TurnCommitted | TurnParked) and event.turn_id == self._turn_id:
            self.ring()


async def turn_rests(directory: SessionDirectory, record: TurnRecord, *, ended: bool = False) -> TurnRecord:
    """The turn once it has ended or waits; with *ended*, once it has ended."""
    turn_id, feed = record.turn_id, directory.live(record.session_id).feed
    bell = feed.listen(_EndOf(turn_id))
    try:
        while True:
            if not directory.is_open:
                raise ServiceUnavailable("awaiting turns", "the runtime is closed")
            found = await directory.store.turn(turn_id)
            if found is None:
                raise TurnNotFound(turn_id)
            if found.state is TurnState.ENDED or (found.state is TurnState.WAITING and not ended):
                return found
            await bell.wait(directory.poll_s)
    finally:
        feed.leave(bell)


async def assembled(store: SessionStore, record: TurnRecord) -> AssembledTurn:
    """A turn that has ended or waits, with what was said in it."""
    assert record.summary is not None
    outcome = record.summary.outcome
    return AssembledTurn(
        turn_id=record.turn_id,
        session_id=record.session_id,
        outcome=outcome,
        text=outcome.text if isinstance(outcome, Finished) else "",
        usage=record.summary.usage,
        messages=await _said(store, record),
    )


async def _said(store: SessionStore, record: TurnRecord) -> tuple[Message, ...]:
    """The messages of a turn that has ended; looked for from the end of the history."""
    head = await store.head(record.session_id)
    if record.state is not TurnState.ENDED or head is None or head.leaf is None:
        return ()
    window = _WINDOW
    while True:
        after = max(0, head.depth - window)
        for segment in await store.path(head.leaf, after_depth=after):
            if segment.segment_id == record.turn_id:
                said = (entry.payload for entry in segment.entries)
                return tuple(one for one in said if isinstance(one, Message))
        if after == 0:
            return ()
        window *= 4
