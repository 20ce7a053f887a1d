"""Sessions that are made with all that they begin with; and what they use outside of turns."""

from __future__ import annotations

import apsw

from standfast.errors import SessionExists
from standfast.model.head import SessionHead
from standfast.model.usage import UsageEntry
from standfast.ports.session_store import NewSession
from standfast.store.sqlite import session_history, session_inputs, session_rows, session_states


def make(db: apsw.Connection, new: NewSession) -> SessionHead:
    """The session; the one that is there, if it has the very same charter."""
    found = session_rows.find(db, new.head.session_id)
    if found is not None:
        if new.head.charter is None or found.head.charter != new.head.charter:
            raise SessionExists(new.head.session_id)
        return found.head
    _begin(db, new)
    _equip(db, new)
    return session_rows.require(db, new.head.session_id).head


def add_usage(
    db: apsw.Connection, session_id: str, usage: tuple[UsageEntry, ...], model_calls: int, now_ms: int
) -> SessionHead:
    """Add to the ledger, and to the number of model calls."""
    session = session_rows.require(db, session_id)
    counted = session_history.grow(db, session, "", (), b"", model_calls)
    return session_rows.update(db, session_history.at_time(counted, now_ms, usage)).head


def _begin(db: apsw.Connection, new: NewSession) -> None:
    """Make the session, over the history that it begins with."""
    head = new.head
    if new.fork_of is None:
        session_rows.insert(db, head, None, None)
    else:
        source = session_rows.require(db, new.fork_of)
        session_history.fork(db, source, head.session_id, new.at, head.created_at, head.charter)
        forked = session_rows.require(db, head.session_id)
        session_rows.replace_head(
            db, forked, agent=head.agent, model=head.model, host=head.host, metadata=head.metadata
        )
    if new.entries:
        made = session_rows.require(db, head.session_id)
        session_history.append(db, made, new.segment_id, new.entries, head.created_at)


def _equip(db: apsw.Connection, new: NewSession) -> None:
    """Give it its state, and what waits for its first turn."""
    session = session_rows.require(db, new.head.session_id)
    session_inputs.put_blobs(db, new.blobs)
    held = session.head.state
    state = new.make_state(None if held is None else session_states.body(db, held))
    if state is not None:
        changed = session_states.write(db, session, state)
        session_rows.update(db, session_history.at_time(changed, new.head.created_at))
    if new.first is not None:
        session_inputs.put(db, new.first)
