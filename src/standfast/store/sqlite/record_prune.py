"""Forgetting records by age: turns, approvals, occurrences, what sandbox runs left; blobs that nobody names.

Rules
-----
1. Nothing goes that an unfinished turn or a waiting run still needs.
2. The journal of a sandbox run has no date. One that no waiting run owns is noted when it is first seen, and
   goes once that was long enough ago.
3. A blob is named where its digest stands as text: in nodes, in inputs that wait, and in the input and the
   journal of an unfinished turn, whatever else these hold; and in the list that comes with a state.
"""

from __future__ import annotations

import re
from typing import Final

import apsw

from standfast.store.sqlite import approvals, schema

_DIGEST: Final = re.compile(rb"[0-9a-f]{64}")

_TEXTS: Final = (
    "SELECT body FROM segments",
    "SELECT input FROM turns WHERE input IS NOT NULL",
    "SELECT body FROM journal",
    "SELECT body FROM inputs WHERE body IS NOT NULL",
    "SELECT blobs FROM states",
)

_DONE_WITH: Final = """
WHERE state <> 'pending' AND (?1 IS NULL OR session_id = ?1)
AND run_id NOT IN (SELECT run_id FROM sandbox_runs)
AND run_id NOT IN (SELECT turn_id FROM turns WHERE state <> 'ended')
"""

_NOTE_LEFTOVERS: Final = """
INSERT INTO sandbox_leftovers
SELECT DISTINCT run_id, CAST(unixepoch('subsec') * 1000 AS INTEGER) FROM sandbox_calls
WHERE run_id NOT IN (SELECT run_id FROM sandbox_runs) ON CONFLICT DO NOTHING
"""


def old_records(db: apsw.Connection, before_ms: int, session_id: str | None) -> int:
    """Delete records that are older; returns how many."""
    return (
        _old_turns(db, before_ms, session_id)
        + _old_approvals(db, before_ms, session_id)
        + _old_snapshots(db, before_ms, session_id)
        + (0 if session_id is not None else _old_occurrences(db, before_ms))
        + (0 if session_id is not None else _sandbox_leftovers(db, before_ms))
    )


def unnamed_blobs(db: apsw.Connection) -> int:
    """Delete the blobs that nothing names; returns how many."""
    digests = {str(digest).encode() for (digest,) in db.execute("SELECT digest FROM blobs").fetchall()}
    for texts in _TEXTS if digests else ():
        for (text,) in db.execute(texts):
            digests.difference_update(_DIGEST.findall(text))
    for digest in digests:
        db.execute("DELETE FROM blobs WHERE digest = ?", (digest.decode(),))
    return len(digests)


def _old_turns(db: apsw.Connection, before_ms: int, session_id: str | None) -> int:
    db.execute(
        "DELETE FROM turns WHERE state = 'ended' AND ended_at < ?1 "
        "AND (?2 IS NULL OR session = (SELECT key FROM sessions WHERE id = ?2))",
        (before_ms, session_id),
    )
    return db.changes()


def _old_approvals(db: apsw.Connection, before_ms: int, session_id: str | None) -> int:
    sql = f"{approvals.APPROVALS} {_DONE_WITH}"
    decided = map(schema.approval_of, db.execute(sql, (session_id,)).fetchall())
    old = [item.approval_id for item in decided if (item.decided_at or item.requested_at) < before_ms]
    for approval_id in old:
        db.execute("DELETE FROM approvals WHERE approval_id = ?", (approval_id,))
    return len(old)


def _old_snapshots(db: apsw.Connection, before_ms: int, session_id: str | None) -> int:
    """Delete snapshots of sandbox sessions, except those that a waiting run goes on from."""
    rows = db.execute("SELECT run_id, session_id, digest, body FROM sandbox_runs").fetchall()
    needed = {schema.run_of(row).snapshot_id for row in rows}
    sql = (
        "SELECT snapshot_id FROM sandbox_snapshots WHERE created_at < ?1 AND (?2 IS NULL OR session_id = ?2)"
    )
    found = {snapshot_id for (snapshot_id,) in db.execute(sql, (before_ms, session_id)).fetchall()}
    for snapshot_id in found - needed:
        db.execute("DELETE FROM sandbox_snapshots WHERE snapshot_id = ?", (snapshot_id,))
    return len(found - needed)


def _old_occurrences(db: apsw.Connection, before_ms: int) -> int:
    """Delete what occurred; whoever tells of it so much later is heard again."""
    db.execute("DELETE FROM occurrences WHERE at_ms < ?", (before_ms,))
    return db.changes()


def _sandbox_leftovers(db: apsw.Connection, before_ms: int) -> int:
    """Delete journals of sandbox runs that died, and note those that are new to us."""
    db.execute(
        "DELETE FROM sandbox_calls WHERE run_id IN (SELECT run_id FROM sandbox_leftovers WHERE seen_at < ?) "
        "AND run_id NOT IN (SELECT run_id FROM sandbox_runs)",
        (before_ms,),
    )
    count = db.changes()
    db.execute("DELETE FROM sandbox_leftovers WHERE run_id NOT IN (SELECT run_id FROM sandbox_calls)")
    db.execute(_NOTE_LEFTOVERS)
    return count
