"""The turn that a session is in the middle of, read without taking it over.

A turn's messages join the history when it ends. Until then they are in its journal, so a page that shows the
conversation reads them from there: while the turn runs or waits, in any process, and after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from standfast.durable.driver import TurnDriver
from standfast.durable.journal import replay
from standfast.model.message import Message
from standfast.model.outcome import Waiting
from standfast.model.session import Blocked, CurrentState, CurrentTurn, SessionHead, TurnRecord, TurnState
from standfast.ports.session_store import SessionStore

_FIRST_NODES: Final = 256


class SessionMessages(list[Message]):
    """The messages of a session. The last ones are those of `current`, the turn that has not ended."""

    def __init__(self, committed: Iterable[Message], current: CurrentTurn | None) -> None:
        super().__init__(committed)
        self.current = current
        if current is not None:
            self.extend(current.messages)


async def current_turn(
    store: SessionStore, session_id: str, driver: TurnDriver | None, now_ms: int
) -> CurrentTurn | None:
    """Return the unfinished turn of a session; *driver* runs it, if this process does."""
    turn = await store.open_turn_journal(session_id)
    if turn is None:
        return None
    record, runs_here = turn.record, driver is not None and driver.turn_id == turn.record.turn_id
    state: CurrentState = "running"
    if record.state is TurnState.WAITING:
        state = "waiting"
    elif not runs_here:  # it was interrupted if no process has it
        left = await store.unfinished(now_ms)
        state = "interrupted" if any(one.turn_id == record.turn_id for one in left) else "running"
    if driver is not None and runs_here:
        machine = driver.machine
    else:
        machine = replay(record.turn_id, turn.input, turn.journal).machine
    outcome = None if record.summary is None else record.summary.outcome
    return CurrentTurn(
        turn_id=record.turn_id,
        state=state,
        messages=tuple(machine.messages),
        waits=outcome.waits if state == "waiting" and isinstance(outcome, Waiting) else (),
    )


async def blocked_in(store: SessionStore, head: SessionHead) -> Blocked | None:
    """Return why the next turn cannot run, while its turn has not ended or its input is still queued."""
    note = head.blocked
    if note is None:
        return None
    if note.turn_id:
        turn = await store.turn(note.turn_id)
        return note if turn is not None and turn.state is not TurnState.ENDED else None
    queued = await store.inputs(head.session_id)
    return note if any(item.input_id == note.input_id for item in queued) else None


async def messages_of_turn(store: SessionStore, record: TurnRecord) -> tuple[Message, ...]:
    """Return the messages of a turn that has ended, searching from the end of the history."""
    head = await store.head(record.session_id)
    if record.state is not TurnState.ENDED or head is None or head.leaf is None:
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
