"""Reads the note that says why a session's next turn cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.model.turn import TurnState

if TYPE_CHECKING:
    from standfast.model.blocked import Blocked
    from standfast.model.head import SessionHead
    from standfast.ports.session_store import SessionStore


async def blocked_in(store: SessionStore, head: SessionHead) -> Blocked | None:
    """The note of the session, as long as it holds: its turn has not ended, or its input is still queued."""
    note = head.blocked
    if note is None:
        return None
    if note.turn_id:
        turn = await store.turn(note.turn_id)
        return note if turn is not None and turn.state is not TurnState.ENDED else None
    queued = await store.inputs(head.session_id)
    return note if any(item.input_id == note.input_id for item in queued) else None
