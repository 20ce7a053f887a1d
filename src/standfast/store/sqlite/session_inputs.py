"""Messages that wait for a session, and the bytes of attachments.

Rules
-----
1. An input is claimed once. Its row stays without its body, so that a sender who repeats itself is not heard
   twice.
2. Blobs are stored once, under their digest, and checked when they are read.
"""

from __future__ import annotations

from typing import Final, Literal

import apsw
import msgspec

from standfast.errors import InputNotFound, RecordCorrupt
from standfast.ports.session_store import Blob, QueuedInput
from standfast.store import rules
from standfast.store.sqlite import session_rows
from standfast.store.sqlite.schema import Row, decoded, seal

INPUTS: Final = "SELECT seq, input_id, session, kind, content, digest, body FROM inputs"
BLOBS: Final = "SELECT digest, seal, data FROM blobs"
_WAITING: Final = f"{INPUTS} WHERE session = ? AND kind <> 'claimed' ORDER BY seq"
_QUEUED: Final = """
WITH RECURSIVE queued (session) AS (
    SELECT min(session) FROM inputs WHERE kind = 'queue'
    UNION ALL
    SELECT (SELECT min(session) FROM inputs WHERE kind = 'queue' AND session > queued.session)
    FROM queued WHERE queued.session IS NOT NULL
)
SELECT id FROM queued JOIN sessions ON sessions.key = queued.session
WHERE NOT EXISTS (SELECT 1 FROM turns WHERE turns.session = queued.session AND state <> 'ended')
ORDER BY (SELECT min(seq) FROM inputs WHERE inputs.session = queued.session AND kind = 'queue')
"""
_INJECTED: Final = f"{INPUTS} WHERE session = ? AND kind = 'inject' ORDER BY seq"

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(QueuedInput)


def put(db: apsw.Connection, item: QueuedInput, blobs: tuple[Blob, ...] = ()) -> None:
    """Keep a message for its session; the same one twice is one."""
    if _put(db, session_rows.require(db, item.session_id).key, item):
        put_blobs(db, blobs)


def put_if_there(db: apsw.Connection, item: QueuedInput) -> None:
    """Keep a message, unless its session is gone."""
    if (session := session_rows.key_of(db, item.session_id)) is not None:
        _put(db, session, item)


def waiting(db: apsw.Connection, session_id: str) -> list[QueuedInput]:
    """What waits, oldest first."""
    session = session_rows.find(db, session_id)
    return [] if session is None else [_of(row) for row in db.execute(_WAITING, (session.key,)).fetchall()]


def with_queued(db: apsw.Connection) -> list[str]:
    """The sessions that could begin a turn; it steps from session to session, however much waits for each."""
    return [str(session_id) for (session_id,) in db.execute(_QUEUED).fetchall()]


def withdraw(db: apsw.Connection, input_id: str) -> bool:
    """Take an input back; false once it was claimed."""
    db.execute("DELETE FROM inputs WHERE input_id = ? AND kind <> 'claimed'", (input_id,))
    return db.changes() > 0


def claim_injected(db: apsw.Connection, session: int) -> tuple[QueuedInput, ...]:
    """Hand out what was injected, for good."""
    rows = db.execute(_INJECTED, (session,)).fetchall()
    found = tuple(map(_of, rows))
    for row in rows:
        _set_kind(db, row, "claimed")
    return found


def claim(db: apsw.Connection, session: int, input_id: str) -> None:
    """Hand out one input, for good."""
    row = db.execute(f"{INPUTS} WHERE input_id = ?", (input_id,)).fetchone()
    if row is None or row[2] != session or row[3] == "claimed":
        raise InputNotFound(input_id)
    check_input(row)
    _set_kind(db, row, "claimed")


def queue_injected(db: apsw.Connection, session: int) -> None:
    """What missed the last checkpoint becomes input for turns of its own."""
    for row in db.execute(_INJECTED, (session,)).fetchall():
        check_input(row)
        _set_kind(db, row, "queue")


def put_blobs(db: apsw.Connection, blobs: tuple[Blob, ...]) -> None:
    for blob in blobs:
        db.execute(
            "INSERT INTO blobs VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (blob.digest, seal("blob", blob.digest, blob.data), blob.data),
        )


def blob(db: apsw.Connection, digest: str) -> bytes | None:
    row = db.execute(f"{BLOBS} WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else blob_of(row)


def blob_of(row: Row) -> bytes:
    digest, sealed, data = row
    if seal("blob", digest, data) != sealed:
        raise RecordCorrupt(f"blob {digest}")
    return bytes(data)


def _put(db: apsw.Connection, session: int, item: QueuedInput) -> bool:
    """Add an input; false if it was put before, claimed or not."""
    row = db.execute(f"{INPUTS} WHERE input_id = ?", (item.input_id,)).fetchone()
    if row is None:
        columns, body = (item.input_id, session, item.kind, rules.input_content(item)), _encode(item)
        db.execute(
            "INSERT INTO inputs (input_id, session, kind, content, digest, body) VALUES (?, ?, ?, ?, ?, ?)",
            (*columns, seal("input", *columns, body), body),
        )
        return True
    check_input(row)
    rules.require_same_content(item, row[4])
    return False


def _set_kind(db: apsw.Connection, row: Row, kind: Literal["queue", "claimed"]) -> None:
    seq, input_id, session, _, content, _, body = row
    kept = None if kind == "claimed" else body
    digest = seal("input", input_id, session, kind, content, kept)
    sql = "UPDATE inputs SET kind = ?, digest = ?, body = ? WHERE seq = ?"
    db.execute(sql, (kind, digest, kept, seq))


def check_input(row: Row) -> None:
    _, input_id, session, kind, content, digest, body = row
    if seal("input", input_id, session, kind, content, body) != digest:
        raise RecordCorrupt(f"input {input_id}")


def _of(row: Row) -> QueuedInput:
    check_input(row)
    item = decoded(_decoder, row[6], f"input {row[1]}")
    return item if item.kind == row[3] else msgspec.structs.replace(item, kind=row[3])
