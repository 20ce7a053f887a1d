"""Rows of `sessions` and `segments`: from and to values, read and written.

Rule: a row is checked whenever it is read, also before it is written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw
import msgspec

from standfast.errors import RecordCorrupt, SessionNotFound
from standfast.model.head import SessionHead
from standfast.model.node import Entry, FrameOpened, Segment
from standfast.store import rules
from standfast.store.sqlite.schema import Row, decoded, seal
from standfast.store.state_lines import state_key

SESSIONS: Final = "SELECT key, id, family, leaf_key, fence, owner, until_ms, digest, head FROM sessions"
SEGMENTS: Final = (
    "SELECT segment_id, session_id, family, up, up_at, opens_at, depth, model_calls, parent, frame, "
    "caused_by, state, digest, body FROM segments"
)
_INSERT_SEGMENT: Final = (
    "INSERT INTO segments (segment_id, session_id, family, up, up_at, opens_at, depth, model_calls, parent, "
    "frame, caused_by, state, digest, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

_encode = msgspec.json.Encoder().encode
_heads = msgspec.json.Decoder(SessionHead)
_entries = msgspec.json.Decoder(tuple[Entry, ...])

encode_head = _encode
encode_entries = _encode


class StoredSession(msgspec.Struct, frozen=True):
    """A row of `sessions`. `body` is the head as it is stored."""

    key: int
    family: int
    leaf_key: int | None
    fence: int
    owner: str | None
    until_ms: int
    head: SessionHead
    body: bytes

    @property
    def id(self) -> str:
        return self.head.session_id


def session_of(row: Row) -> StoredSession:
    """A session, of the columns of `SESSIONS`."""
    key, session_id, family, leaf_key, fence, owner, until_ms, digest, body = row
    what = f"session {session_id}"
    if seal("session", key, session_id, family, leaf_key, fence, owner, until_ms, body) != digest:
        raise RecordCorrupt(what)
    return StoredSession(key, family, leaf_key, fence, owner, until_ms, decoded(_heads, body, what), body)


def find(db: apsw.Connection, session_id: str) -> StoredSession | None:
    row = db.execute(f"{SESSIONS} WHERE id = ?", (session_id,)).fetchone()
    return None if row is None else session_of(row)


def key_of(db: apsw.Connection, session_id: str) -> int | None:
    """The key of a session, for those who read nothing else of it."""
    found: int | None = db.execute("SELECT key FROM sessions WHERE id = ?", (session_id,)).get
    return found


def heads(db: apsw.Connection) -> list[SessionHead]:
    """All sessions, the latest used first."""
    rows = db.execute(SESSIONS).fetchall()
    return sorted((session_of(row).head for row in rows), key=rules.head_order)


def children(db: apsw.Connection, session_id: str) -> list[SessionHead]:
    """The sessions that this one made, oldest first."""
    rows = db.execute(f"{SESSIONS} WHERE parent = ? ORDER BY key", (session_id,)).fetchall()
    found = [session_of(row).head for row in rows]
    for head in found:
        if rules.parent_of(head) != session_id:
            raise RecordCorrupt(f"session {head.session_id}")
    return sorted(found, key=lambda head: head.created_at)


def require(db: apsw.Connection, session_id: str) -> StoredSession:
    if (found := find(db, session_id)) is None:
        raise SessionNotFound(session_id)
    return found


def insert(db: apsw.Connection, head: SessionHead, family: int | None, leaf_key: int | None) -> StoredSession:
    """Make a session. Without *family* it is the first of its own."""
    body = _encode(head)
    db.execute(
        "INSERT INTO sessions (id, family, fence, until_ms, digest, head, parent) "
        "VALUES (?, 0, 0, 0, x'', ?, ?)",
        (head.session_id, body, rules.parent_of(head)),
    )
    key = db.last_insert_rowid()
    made = StoredSession(key, key if family is None else family, leaf_key, key << 32, None, 0, head, body)
    db.execute("UPDATE sessions SET family = ? WHERE key = ?", (made.family, key))
    return update(db, made)


def update(db: apsw.Connection, session: StoredSession) -> StoredSession:
    """Write where a session stands, and who has its lease."""
    db.execute(
        "UPDATE sessions SET leaf_key = ?, fence = ?, owner = ?, until_ms = ?, digest = ?, head = ? "
        "WHERE key = ?",
        (
            session.leaf_key,
            session.fence,
            session.owner,
            session.until_ms,
            _digest(session),
            session.body,
            session.key,
        ),
    )
    return session


def write_head(db: apsw.Connection, session: StoredSession, head: SessionHead) -> None:
    """Write another head of the session, with the same leaf."""
    update(db, msgspec.structs.replace(session, head=head, body=_encode(head)))


def lease(db: apsw.Connection, session: StoredSession, owner: str | None, until_ms: int) -> StoredSession:
    """Give the lease to *owner* with the next fence; None gives it back."""
    fence = session.fence if owner is None else session.fence + 1
    leased = StoredSession(
        session.key, session.family, session.leaf_key, fence, owner, until_ms, session.head, session.body
    )
    write_lease(db, leased)
    return leased


def write_lease(db: apsw.Connection, session: StoredSession) -> None:
    db.execute(
        "UPDATE sessions SET fence = ?, owner = ?, until_ms = ?, digest = ? WHERE key = ?",
        (session.fence, session.owner, session.until_ms, _digest(session), session.key),
    )


def _digest(session: StoredSession) -> bytes:
    return seal(
        "session",
        session.key,
        session.head.session_id,
        session.family,
        session.leaf_key,
        session.fence,
        session.owner,
        session.until_ms,
        session.body,
    )


# Segments


def insert_segment(db: apsw.Connection, segment: Segment, session: StoredSession, body: bytes) -> int:
    """Add a segment under the session's leaf; returns its key. *body* is its entries, encoded."""
    parent, opens_at = segment.parent, None
    if segment.opens_frame:
        opens_at = [isinstance(entry.payload, FrameOpened) for entry in segment.entries].index(True)
    columns = (
        segment.segment_id,
        segment.session_id,
        session.family,
        session.leaf_key,
        None if parent is None else int(parent.rpartition(".")[2]),
        opens_at,
        segment.depth,
        segment.model_calls,
        parent,
        segment.frame,
        None if segment.caused_by == segment.segment_id else segment.caused_by,
        state_key(session.head.state),
    )
    db.execute(_INSERT_SEGMENT, (*columns, _segment_digest(columns, body), body))
    return db.last_insert_rowid()


def segment_of(row: Row) -> Segment:
    """A segment, of the columns of `SEGMENTS`."""
    *columns, digest, body = row
    if _segment_digest(columns, body) != digest:
        raise RecordCorrupt(f"segment {row[0]}")
    segment_id, session_id, _, _, _, opens_at, depth, model_calls, parent, frame, caused_by, _ = columns
    return Segment(
        segment_id=segment_id,
        session_id=session_id,
        parent=parent,
        caused_by=segment_id if caused_by is None else caused_by,
        depth=depth,
        frame=frame,
        entries=decoded(_entries, body, f"segment {segment_id}"),
        opens_frame=opens_at is not None,
        model_calls=model_calls,
    )


def find_segment(db: apsw.Connection, segment_id: str) -> Segment | None:
    row = db.execute(f"{SEGMENTS} WHERE segment_id = ?", (segment_id,)).fetchone()
    return None if row is None else segment_of(row)


def _segment_digest(columns: Sequence[str | int | None], body: bytes) -> bytes:
    """The seal of a segment; without a state it is that of the first version."""
    return seal("segment", *(columns if columns[-1] is not None else columns[:-1]), body)
