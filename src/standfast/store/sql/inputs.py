"""The inputs of sessions, the triggers that queue them, and the bytes of attachments.

Rules
-----
1. An input is claimed once. Its row is kept without its body, so that a repeated input is recognized.
2. An occurrence and its inputs are written in one transaction. Its row ensures that only the first process to
   deliver it does so.
3. Blobs are stored once, under their digest. Every row is checked whenever it is read. If a blob's bytes are
   in an object store (`object_blobs`), its seal is of another kind and its data is the object's name.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from standfast.errors import InputNotFound, RecordCorrupt
from standfast.model.trigger import Occurrence, Trigger
from standfast.ports.session_store import WORK, Blob, QueuedInput
from standfast.store import rules
from standfast.store.object_blobs import require_usable
from standfast.store.sql import rows
from standfast.store.sql.connection import Connection, Row
from standfast.store.sql.rows import RecordDecoder, decoded, encode, seal

INPUTS: Final = "SELECT seq, input_id, session, kind, content, digest, body FROM inputs"
BLOBS: Final = "SELECT digest, seal, data FROM blobs"
INPUT: Final = f"{INPUTS} WHERE input_id = ?"
_WAITING: Final = f"""
{INPUTS} WHERE session = (SELECT key FROM sessions WHERE id = ?) AND kind <> 'claimed' ORDER BY seq
"""  # noqa: S608 (a constant)
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

_MAX_NAME_BYTES: Final = 200
"""An upper bound of the length of an object's name."""

_items: RecordDecoder[QueuedInput] = RecordDecoder(QueuedInput)


def put_reads(item: QueuedInput) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the statements by which `put` begins."""
    return (rows.SESSION, (item.session_id,)), (INPUT, (item.input_id,))


def put(db: Connection, item: QueuedInput, blobs: tuple[Blob, ...] = ()) -> None:
    db.lock_sessions((item.session_id,))
    if _put(db, rows.require_session(db, item.session_id).key, item):
        put_blobs(db, blobs)


def waiting(db: Connection, session_id: str) -> list[QueuedInput]:
    return [input_of(row) for row in waiting_rows(db, session_id)]


def waiting_rows(db: Connection, session_id: str) -> list[Row]:
    return db.execute(_WAITING, (session_id,)).fetchall()


def with_queued(db: Connection) -> list[str]:
    """Return the sessions that could begin a turn. The cost does not depend on how many inputs each has."""
    return [str(session_id) for (session_id,) in db.execute(_QUEUED).fetchall()]


def withdraw(db: Connection, input_id: str) -> bool:
    rows.lock_session_of(db, "SELECT session FROM inputs WHERE input_id = ?", input_id)
    sql = "DELETE FROM inputs WHERE input_id = ? AND kind <> 'claimed' RETURNING seq"
    return bool(db.execute(sql, (input_id,)).fetchall())


def claim_injected(db: Connection, session: int) -> tuple[QueuedInput, ...]:
    """Claim and return the injected messages."""
    injected = db.execute(_INJECTED, (session,)).fetchall()
    found = tuple(map(input_of, injected))
    for row in injected:
        _set_kind(db, row, "claimed")
    return found


def claim(db: Connection, session: int, input_id: str) -> None:
    """Claim one input."""
    row = db.execute(INPUT, (input_id,)).fetchone()
    if row is None or row[2] != session or row[3] == "claimed":
        raise InputNotFound(input_id)
    check_input(row)
    _set_kind(db, row, "claimed")


def queue_injected(db: Connection, session: int) -> None:
    """Convert injected messages that missed the last checkpoint to queued inputs."""
    for row in db.execute(_INJECTED, (session,)).fetchall():
        check_input(row)
        _set_kind(db, row, "queue")
        db.announce(WORK)


def put_blobs(db: Connection, blobs: tuple[Blob, ...]) -> None:
    for blob in blobs:
        if blob.apart:
            require_usable(blob)
        sealed = seal("object" if blob.apart else "blob", blob.digest, blob.data)
        db.execute(
            "INSERT INTO blobs (digest, seal, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (blob.digest, sealed, blob.data),
        )


def blob(db: Connection, digest: str) -> Blob | None:
    row = db.execute(f"{BLOBS} WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else blob_of(row)


def blob_of(row: Row) -> Blob:
    digest, sealed, data = row
    for kind in ("blob", "object"):
        if seal(kind, digest, data) == sealed:
            return Blob(digest=digest, data=bytes(data), apart=kind == "object")
    raise RecordCorrupt(f"blob {digest}")


def blobs_apart(db: Connection) -> list[Blob]:
    """Return the blobs whose bytes are in an object store."""
    found = map(blob_of, db.execute(f"{BLOBS} WHERE length(data) < {_MAX_NAME_BYTES}").fetchall())
    return [blob for blob in found if blob.apart]


def _put(db: Connection, session: int, item: QueuedInput) -> bool:
    """Add an input; return False if it was put before, claimed or not."""
    row = db.execute(INPUT, (item.input_id,)).fetchone()
    if row is None:
        columns, body = (item.input_id, session, item.kind, rules.input_content(item)), encode(item)
        db.execute(
            "INSERT INTO inputs (input_id, session, kind, content, digest, body) VALUES (?, ?, ?, ?, ?, ?)",
            (*columns, seal("input", *columns, body), body),
        )
        if item.kind == "queue":
            db.announce(WORK)
        return True
    check_input(row)
    rules.require_same_content(item, row[4])
    return False


def _set_kind(db: Connection, row: Row, kind: Literal["queue", "claimed"]) -> None:
    seq, input_id, session, _, content, _, body = row
    kept = None if kind == "claimed" else body
    digest = seal("input", input_id, session, kind, content, kept)
    sql = "UPDATE inputs SET kind = ?, digest = ?, body = ? WHERE seq = ?"
    db.execute(sql, (kind, digest, kept, seq))


def check_input(row: Row) -> None:
    _, input_id, session, kind, content, digest, body = row
    if seal("input", input_id, session, kind, content, body) != digest:
        raise RecordCorrupt(f"input {input_id}")


def input_of(row: Row) -> QueuedInput:
    check_input(row)
    item = decoded(_items, row[6], f"input {row[1]}")
    return item if item.kind == row[3] else msgspec.structs.replace(item, kind=row[3])


# Triggers

TRIGGERS: Final = "SELECT name, session, due, digest, body FROM triggers"
OCCURRENCES: Final = "SELECT source, key, at_ms, digest FROM occurrences"
_NOTE: Final = (
    "INSERT INTO occurrences (source, key, at_ms, digest) VALUES (?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING RETURNING at_ms"
)
_PUT_TRIGGER: Final = (
    "INSERT INTO triggers (name, session, due, digest, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) "
    "DO UPDATE SET session = excluded.session, due = excluded.due, digest = excluded.digest, "
    "body = excluded.body"
)

_triggers: RecordDecoder[Trigger] = RecordDecoder(Trigger)


def put_trigger(db: Connection, trigger: Trigger, *, seen: Trigger | None = None) -> bool:
    db.lock_sessions({trigger.session_id, (seen or trigger).session_id})
    if seen is not None and find_trigger(db, seen.name) != seen:
        return False
    columns = (trigger.name, rows.require_session(db, trigger.session_id).key, rules.due_at(trigger))
    body = encode(trigger)
    row = (*columns, seal("trigger", *columns, body), body)
    db.execute(_PUT_TRIGGER, row)
    return True


def find_trigger(db: Connection, name: str) -> Trigger | None:
    row = db.execute(f"{TRIGGERS} WHERE name = ?", (name,)).fetchone()
    return None if row is None else trigger_of(row)


def find_triggers(db: Connection) -> list[Trigger]:
    return [trigger_of(row) for row in db.execute(f"{TRIGGERS} ORDER BY name").fetchall()]


def remove_trigger(db: Connection, name: str) -> bool:
    rows.lock_session_of(db, "SELECT session FROM triggers WHERE name = ?", name)
    return bool(db.execute("DELETE FROM triggers WHERE name = ? RETURNING name", (name,)).fetchall())


def occur(
    db: Connection,
    occurrence: Occurrence,
    inputs: tuple[QueuedInput, ...],
    advance: Trigger | None = None,
) -> bool:
    columns = (occurrence.source, occurrence.key, occurrence.at_ms)
    db.lock_sessions({item.session_id for item in inputs} | ({advance.session_id} if advance else set()))
    new = db.execute(_NOTE, (*columns, seal("occurrence", *columns))).fetchone() is not None
    if not new:
        row = db.execute(f"{OCCURRENCES} WHERE source = ? AND key = ?", columns[:2]).fetchone()
        check_occurrence((*columns, None) if row is None else row)
    for item in inputs if new else ():
        if (session := rows.session_key(db, item.session_id)) is not None:
            _put(db, session, item)
    if advance is not None and rules.moves_on(find_trigger(db, advance.name), advance):
        put_trigger(db, advance)
    return new


def check_occurrence(row: Row) -> None:
    source, key, at_ms, digest = row
    if seal("occurrence", source, key, at_ms) != digest:
        raise RecordCorrupt(f"occurrence {key} of {source}")


def trigger_of(row: Row) -> Trigger:
    *columns, digest, body = row
    what = f"trigger {columns[0]}"
    if seal("trigger", *columns, body) != digest:
        raise RecordCorrupt(what)
    return decoded(_triggers, body, what)
