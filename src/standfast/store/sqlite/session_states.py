"""States of plugins and tools along the paths of sessions; see `state_lines` for what holds where.

Rules
-----
1. A state is written before the segment it comes with, which then names it. Nothing of it changes later.
2. A line is walked without bodies, and every step is checked.
3. Sweeping reads no digests, as deleting never does.
"""

from __future__ import annotations

from typing import Final

import apsw
import msgspec

from standfast.errors import RecordCorrupt
from standfast.model.node import node_id, split_node_id
from standfast.ports.session_store import StateRecord
from standfast.store.sqlite.schema import Row, seal
from standfast.store.sqlite.session_rows import StoredSession
from standfast.store.state_lines import Spot, StatePlace, before_leaf, held_at, needed, state_id, state_key

STATES: Final = "SELECT key, family, session, previous, node, depth, digest, sum, blobs, body FROM states"
_PLACE: Final = "SELECT key, family, session, previous, node, depth, digest, sum, blobs FROM states"
_PLACED: Final = f"{_PLACE} WHERE key = ?"
_LAST_KEY: Final = "SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'states'"
_INSERT: Final = "INSERT INTO states VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_encode = msgspec.json.Encoder().encode
_replace = msgspec.structs.replace


def write(
    db: apsw.Connection, session: StoredSession, state: StateRecord, segment_id: str = "", nodes: int = 0
) -> StoredSession:
    """Write a state at the leaf, or at the end of the segment of *nodes* nodes that is about to come.

    Returns the session with a head that names the state, not yet written.
    """
    head = session.head
    node = node_id(segment_id, nodes - 1) if nodes else head.leaf
    if nodes:
        previous = state_key(head.state)
    else:
        previous = before_leaf(lambda key: _find(db, key), head.state, head.leaf)
    key: int = db.execute(_LAST_KEY).get + 1
    place = (session.family, session.key, previous, node, head.depth + nodes)
    blobs, data_sum = _encode(state.blobs), seal(state.body)
    digest = seal("state", key, *place, data_sum, blobs)
    db.execute(_INSERT, (key, *place, digest, data_sum, blobs, state.body))
    return _replace(session, head=_replace(head, state=state_id(key)))


def body(db: apsw.Connection, name: str) -> bytes | None:
    """The body of the state of that name."""
    key = state_key(name)
    row = None if key is None else db.execute(f"{STATES} WHERE key = ?", (key,)).fetchone()
    return None if row is None else body_of(row)


def at_node(db: apsw.Connection, session: StoredSession, node: str, depth: int) -> str | None:
    """The state that holds for the session at a node that it can reach."""
    own: int | None = db.execute(
        "SELECT max(key) FROM states WHERE session = ? AND node = ?", (session.key, node)
    ).get
    if own is not None:
        return state_id(own)
    sql = "SELECT session_id, state FROM segments WHERE segment_id = ?"
    writer, segment_state = db.execute(sql, (split_node_id(node)[0],)).get
    spot = Spot(node, depth, writer == session.id, segment_state)
    return state_id(held_at(lambda key: _find(db, key), state_key(session.head.state), spot))


def families(db: apsw.Connection) -> list[int]:
    """The families that have states."""
    return [int(str(family)) for (family,) in db.execute("SELECT DISTINCT family FROM states").fetchall()]


def count(db: apsw.Connection) -> int:
    found: int = db.execute("SELECT count(*) FROM states").get
    return found


def sweep(db: apsw.Connection, family: int, members: list[StoredSession]) -> None:
    """Delete the states that the family no longer needs."""
    rows: list[Row] = db.execute(
        "SELECT key, session, previous, node, depth FROM states WHERE family = ?", (family,)
    ).fetchall()
    if not rows:
        return
    places = {row[0]: StatePlace(*row[1:]) for row in rows}
    segments: list[Row] = db.execute(
        "SELECT segment_id, state FROM segments WHERE family = ?", (family,)
    ).fetchall()
    named = [state_key(member.head.state) for member in members] + [row[1] for row in segments]
    sessions = {member.key for member in members}
    kept = needed(places, named, sessions, {row[0] for row in segments})
    db.executemany("DELETE FROM states WHERE key = ?", [(key,) for key in places.keys() - kept])


def _find(db: apsw.Connection, key: int) -> StatePlace | None:
    row = db.execute(_PLACED, (key,)).fetchone()
    return None if row is None else _place_of(row)


def body_of(row: Row) -> bytes:
    """Return the body of a row with the columns of `STATES` whose digests match."""
    *place, body = row
    _place_of(tuple(place))
    if seal(body) != place[7]:
        raise RecordCorrupt(f"state {state_id(row[0])}")
    return bytes(body)


def _place_of(row: Row) -> StatePlace:
    key, family, session, previous, node, depth, digest, data_sum, blobs = row
    if seal("state", key, family, session, previous, node, depth, data_sum, blobs) != digest:
        raise RecordCorrupt(f"state {state_id(key)}")
    return StatePlace(session, previous, node, depth)
