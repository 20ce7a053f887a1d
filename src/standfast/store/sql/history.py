"""Paths through stored segments, the moves of a session's leaf, and the states along its path.

Theory of operation
-------------------
SQLite walks from the leaf to the end of the requested part and returns the segments on the way; the pure
functions of `standfast.graph` build the path from them. So the cost depends on the current frame, not on the
length of the session, and the rules of paths are written once. `rules` decides which state is current at a
node.

Rules
-----
1. A missing parent was pruned; to make sure, it is also searched for by its name.
2. A state is written before its segment, which then refers to it. It never changes later.
3. A line of states is walked without reading their bodies, and every step is checked. Sweeping checks no
   digests, as deleting never does.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import RecordCorrupt, SessionExists
from standfast.graph.history import frame_path, grown, moved_to, path, require_append
from standfast.model.limits import UsageEntry
from standfast.model.session import Entry, Segment, SessionCharter, SessionHead, node_id, split_node_id
from standfast.ports.session_store import WORK, Blob, NewSession, StateRecord, TurnStates
from standfast.store import rules
from standfast.store.rules import StatePlace, state_id, state_key
from standfast.store.sql import inputs, rows
from standfast.store.sql.connection import Connection, Row
from standfast.store.sql.rows import StoredSession, StoredTurn, encode, seal

_replace = msgspec.structs.replace

# ?1 the segment of the leaf, ?2 the leaf's place in it, ?3 a segment to stop at
_FRAME: Final = f"""
WITH RECURSIVE steps (step, place) AS (
    SELECT key, ?2 FROM segments WHERE segment_id = ?1
    UNION ALL
    SELECT up, up_at FROM steps JOIN segments ON key = step
    WHERE up IS NOT NULL AND (opens_at IS NULL OR opens_at > place) AND segment_id IS DISTINCT FROM ?3
)
{rows.SEGMENTS} JOIN steps ON key = step
"""  # noqa: S608 (a constant)

# ?1 the segment of the leaf, ?2 the number of nodes to leave out
_PATH: Final = f"""
WITH RECURSIVE steps (step) AS (
    SELECT key FROM segments WHERE segment_id = ?1
    UNION ALL
    SELECT up FROM steps JOIN segments ON key = step WHERE up IS NOT NULL AND depth > ?2
)
{rows.SEGMENTS} JOIN steps ON key = step
"""  # noqa: S608 (a constant)

_PLACE: Final = "SELECT key, family, session, previous, node, depth, digest, sum, blobs"
STATES: Final = f"{_PLACE}, body FROM states"
# In parts that SQLite has indexes for, as `rows.OF_FAMILY`.
OF_FAMILY: Final = "session = ?1 AND family = ?1 OR family = ?1 AND family <> session"
LAST_STATE: Final = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'states'"


# Reading


def load_frame(db: Connection, leaf: str, *, known: str | None = None) -> tuple[Segment, ...]:
    segment_id, place = split_node_id(leaf)
    stop = None if known is None else split_node_id(known)[0]
    segments = _by_id(db.execute(_FRAME, (segment_id, place, stop)).fetchall())
    found = frame_path(segments.get, leaf, known=known)
    if known is not None and found and found[0].parent != known and stop in segments:
        return load_frame(db, leaf)
    if found and not found[0].opens_frame and found[0].parent != known:
        _require_pruned(db, found[0])
    return tuple(found)


def load_path(db: Connection, leaf: str, *, after_depth: int = 0) -> tuple[Segment, ...]:
    segments = _by_id(db.execute(_PATH, (split_node_id(leaf)[0], after_depth)).fetchall())
    found = path(segments.get, leaf, after_depth=after_depth)
    if found and found[0].depth > after_depth:
        _require_pruned(db, found[0])
    return tuple(found)


def _by_id(found: list[Row]) -> dict[str, Segment]:
    return {row[0]: rows.segment_of(row) for row in found}


def _require_pruned(db: Connection, first: Segment) -> None:
    """Raise `RecordCorrupt` if the path should not end at *first*: the link to its parent is damaged."""
    if first.parent is not None and rows.find_segment(db, split_node_id(first.parent)[0]) is not None:
        raise RecordCorrupt(f"segment {first.segment_id}")


# Moving the leaf


def append(
    db: Connection,
    session_id: str,
    segment_id: str,
    entries: tuple[Entry, ...],
    requires: str | None,
    now_ms: int,
) -> SessionHead:
    db.lock_sessions((session_id,))
    session = rows.require_session(db, session_id)
    require_append(lambda name: rows.find_segment(db, name), session.head.leaf, segment_id, requires)
    grew = grow(db, session, segment_id, entries, encode(entries), now_ms)
    return rows.update_session(db, grew).head


def grow(
    db: Connection,
    session: StoredSession,
    segment_id: str,
    entries: tuple[Entry, ...],
    body: bytes,
    now_ms: int,
    *,
    model_calls: int = 0,
    usage: tuple[UsageEntry, ...] = (),
    key: int | None = None,
) -> StoredSession:
    """Add a segment, under the free *key* if there is one, and *usage*.

    Return the session with its leaf at the segment's end, not yet written.
    """
    head, segment = grown(session.head, segment_id, entries, model_calls)
    leaf_key = session.leaf_key
    if segment is not None:
        leaf_key = rows.insert_segment(db, segment, session, body, key)
    head = rules.used(head, now_ms, usage)
    return _replace(session, head=head, body=encode(head), leaf_key=leaf_key)


def fork(
    db: Connection,
    session_id: str,
    new_id: str,
    at: str | None,
    now_ms: int,
    *,
    charter: SessionCharter | None = None,
) -> SessionHead:
    db.lock_sessions((session_id, new_id))
    session = rows.require_session(db, session_id)
    if rows.find_session(db, new_id) is not None:
        raise SessionExists(new_id)
    head, leaf_key = session.head, session.leaf_key
    if at is not None and at != head.leaf:
        head, leaf_key = _moved_to(db, session, at)
    fork = rules.forked(head, new_id, now_ms, charter)
    return rows.insert_session(db, fork, session.family, leaf_key).head


def rewind(db: Connection, session_id: str, to: str, now_ms: int) -> SessionHead:
    session = _at_rest(db, session_id)
    head, leaf_key = _moved_to(db, session, to)
    head = rules.used(head, now_ms)
    there = _replace(session, head=head, body=encode(head), leaf_key=leaf_key)
    return rows.update_session(db, there).head


def make(db: Connection, new: NewSession) -> SessionHead:
    head = new.head
    db.lock_sessions((head.session_id,) if new.fork_of is None else (head.session_id, new.fork_of))
    found = rows.find_session(db, head.session_id)
    if found is not None:
        rules.require_same_session(found.head, head)
        return found.head
    if new.fork_of is None:
        rows.insert_session(db, head)
    else:
        fork(db, new.fork_of, head.session_id, new.at, head.created_at, charter=head.charter)
        forked = rows.require_session(db, head.session_id)
        rows.write_head(db, forked, rules.described_as(forked.head, head))
    if new.entries:
        append(db, head.session_id, new.segment_id, new.entries, None, head.created_at)
    session = rows.require_session(db, head.session_id)
    inputs.put_blobs(db, new.blobs)
    held = session.head.state
    state = new.make_state(None if held is None else state_body(db, held))
    if state is not None:
        rows.update_session(db, at_time(write_state(db, session, state), head.created_at))
    if new.first is not None:
        inputs.put(db, new.first)
    if new.turn is not None:
        body = new.turn.make_input(session.head, ())
        record = rules.new_record(new.turn, head.created_at)
        rows.insert_turn(db, StoredTurn(record, session.key, body))
        last: int = db.execute(f"SELECT {rows.LAST_ENTRY}").get
        rows.append_journal(db, record.turn_id, new.journal, (), last, {})
        db.announce(WORK)
    return rows.require_session(db, head.session_id).head


def add_usage(
    db: Connection, session_id: str, usage: tuple[UsageEntry, ...], model_calls: int, now_ms: int
) -> SessionHead:
    db.lock_sessions((session_id,))
    session = rows.require_session(db, session_id)
    counted = grow(db, session, "", (), b"", now_ms, model_calls=model_calls, usage=usage)
    return rows.update_session(db, counted).head


def set_state(
    db: Connection, session_id: str, state: StateRecord, blobs: tuple[Blob, ...], now_ms: int
) -> SessionHead:
    session = _at_rest(db, session_id)
    inputs.put_blobs(db, blobs)
    return rows.update_session(db, at_time(write_state(db, session, state), now_ms)).head


def at_time(session: StoredSession, now_ms: int) -> StoredSession:
    """Return the session with that time as its last use, and its head encoded again."""
    head = rules.used(session.head, now_ms)
    return _replace(session, head=head, body=encode(head))


def _at_rest(db: Connection, session_id: str) -> StoredSession:
    """Lock the session and return it; raise `SessionBusy` if it has an unfinished turn."""
    db.lock_sessions((session_id,))
    session = rows.require_session(db, session_id)
    sql = "SELECT turn_id FROM turns WHERE session = ? AND state <> 'ended'"
    rules.require_at_rest(session_id, session.owner, db.execute(sql, (session.key,)).get)
    return session


def _moved_to(db: Connection, session: StoredSession, node: str) -> tuple[SessionHead, int]:
    """Return the head with *node* and the state that is current there, and the key of the node's segment."""
    head = moved_to(lambda name: rows.find_segment(db, name), session.head, node)
    sql = "SELECT key, session_id, state FROM segments WHERE segment_id = ?"
    key, writer, segment_state = db.execute(sql, (split_node_id(node)[0],)).get
    state: int | None = db.execute(
        "SELECT max(key) FROM states WHERE session = ? AND node = ?", (session.key, node)
    ).get
    if state is None:
        find: rules.FindState = lambda key: _state_place(db, key)  # noqa: E731
        state = rules.held_at(find, head, own=writer == session.id, segment_state=segment_state)
    return _replace(head, state=state_id(state)), key


# States


def write_state(
    db: Connection, session: StoredSession, state: StateRecord, segment_id: str = "", nodes: int = 0
) -> StoredSession:
    """Write a state at the leaf, or at the end of the next segment; return the session that refers to it."""
    head = session.head
    if nodes:
        node: str | None = node_id(segment_id, nodes - 1)
        previous = state_key(head.state)
    else:
        node = head.leaf
        previous = rules.before_leaf(lambda key: _state_place(db, key), head.state, head.leaf)
    key: int = db.execute(LAST_STATE).get + 1
    place = (session.family, session.key, previous, node, head.depth + nodes)
    blobs, data_sum = encode(state.blobs), seal(state.body)
    digest = seal("state", key, *place, data_sum, blobs)
    db.execute(
        "INSERT INTO states (key, family, session, previous, node, depth, digest, sum, blobs, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (key, *place, digest, data_sum, blobs, state.body),
    )
    return _replace(session, head=_replace(head, state=state_id(key)))


def state_body(db: Connection, state_id: str) -> bytes | None:
    key = state_key(state_id)
    row = None if key is None else db.execute(f"{STATES} WHERE key = ?", (key,)).fetchone()
    return None if row is None else state_body_of(row)


def turn_states(db: Connection, turn_id: str) -> TurnStates | None:
    if rows.find_segment(db, turn_id) is None:
        return None
    key: int | None = db.execute("SELECT state FROM segments WHERE segment_id = ?", (turn_id,)).get
    return rules.states_around(lambda key: _state_place(db, key), key, turn_id)


def sweep_states(db: Connection, family: int, members: list[StoredSession]) -> int:
    """Delete the states that the family no longer needs; return how many."""
    found: list[Row] = db.execute(
        f"SELECT key, session, previous, node, depth FROM states WHERE {OF_FAMILY}",  # noqa: S608 (a constant)
        (family,),
    ).fetchall()
    if not found:
        return 0
    places = {row[0]: StatePlace(*row[1:]) for row in found}
    segments: list[Row] = db.execute(
        "SELECT segment_id, state FROM segments WHERE family = ?", (family,)
    ).fetchall()
    named = [state_key(member.head.state) for member in members] + [row[1] for row in segments]
    sessions = {member.key for member in members}
    kept = rules.needed_states(places, named, sessions, {row[0] for row in segments})
    for key in places.keys() - kept:
        db.execute("DELETE FROM states WHERE key = ?", (key,))
    return len(places.keys() - kept)


def state_body_of(row: Row) -> bytes:
    """Return the body of a row with the columns of `STATES` whose digests match."""
    *place, body = row
    _place_of(tuple(place))
    if seal(body) != place[7]:
        raise RecordCorrupt(f"state {state_id(row[0])}")
    return bytes(body)


def _state_place(db: Connection, key: int) -> StatePlace | None:
    row = db.execute(f"{_PLACE} FROM states WHERE key = ?", (key,)).fetchone()
    return None if row is None else _place_of(row)


def _place_of(row: Row) -> StatePlace:
    key, family, session, previous, node, depth, digest, data_sum, blobs = row
    if seal("state", key, family, session, previous, node, depth, data_sum, blobs) != digest:
        raise RecordCorrupt(f"state {state_id(key)}")
    return StatePlace(session, previous, node, depth)
