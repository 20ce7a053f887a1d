"""Rows of `snapshots`: the exported variables of sessions without a model, by id.

Rule: deleting a session leaves its snapshots; they go by age.
"""

from __future__ import annotations

from typing import Final

import apsw

from standfast.errors import RecordCorrupt
from standfast.store.sqlite.schema import Row, text_seal

SNAPSHOTS: Final = "SELECT snapshot_id, session_id, created_at, digest, data FROM snapshots"


def row_of(snapshot_id: str, session_id: str, created_at: int, data: bytes) -> Row:
    """snapshot_id, session_id, created_at, digest, data."""
    digest = text_seal("snapshot", snapshot_id, session_id, created_at, data=data)
    return snapshot_id, session_id, created_at, digest, data


def put(db: apsw.Connection, row: Row) -> None:
    db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", row)


def find(db: apsw.Connection, snapshot_id: str) -> bytes | None:
    row = db.execute(f"{SNAPSHOTS} WHERE snapshot_id = ?", (snapshot_id,)).fetchone()
    return None if row is None else snapshot_of(row)[2]


def of_session(db: apsw.Connection, session_id: str) -> list[tuple[str, int, bytes]]:
    """Return id, time and data of the session's snapshots."""
    return [
        snapshot_of(row) for row in db.execute(f"{SNAPSHOTS} WHERE session_id = ?", (session_id,)).fetchall()
    ]


def prune(db: apsw.Connection, before_ms: int, session_id: str | None) -> int:
    """Delete older snapshots; return how many."""
    sql = "DELETE FROM snapshots WHERE created_at < ?1 AND (?2 IS NULL OR session_id = ?2)"
    db.execute(sql, (before_ms, session_id))
    return db.changes()


def snapshot_of(row: Row) -> tuple[str, int, bytes]:
    """Return id, time and data of a row with the columns of `SNAPSHOTS`."""
    snapshot_id, session_id, created_at, digest, data = row
    if text_seal("snapshot", snapshot_id, session_id, created_at, data=data) != digest:
        raise RecordCorrupt(f"snapshot {snapshot_id}")
    return snapshot_id, created_at, data
