"""The rows of `approvals`, which the sandbox's runs and the turns of agents share.

An approval's `run_id` is the id of the run or of the turn that asked.
"""

from __future__ import annotations

from typing import Final

import apsw

from standfast.errors import ApprovalNotFound, RecordCorrupt
from standfast.model.approval import Approval, Decision
from standfast.store import memory as rules
from standfast.store.sqlite import schema

APPROVALS: Final = "SELECT approval_id, session_id, run_id, state, digest, body FROM approvals"


def find(db: apsw.Connection, approval_id: str) -> Approval | None:
    row = db.execute(f"{APPROVALS} WHERE approval_id = ?", (approval_id,)).fetchone()
    return None if row is None else schema.approval_of(row)


def find_all(
    db: apsw.Connection, *, session_id: str | None = None, run_id: str | None = None
) -> list[Approval]:
    """Approvals of a session and a run, or of all of them, oldest first."""
    if run_id is not None:
        rows = db.execute(f"{APPROVALS} WHERE run_id = ?", (run_id,)).fetchall()
    elif session_id is not None:
        rows = db.execute(f"{APPROVALS} WHERE session_id = ?", (session_id,)).fetchall()
    else:
        rows = db.execute(APPROVALS).fetchall()
    found = [item for item in map(schema.approval_of, rows) if session_id in (None, item.session_id)]
    return sorted(found, key=rules.approval_order)


def check_all(db: apsw.Connection) -> int:
    """Check the digest of every approval; return how many there are."""
    return sum(1 for _ in map(schema.approval_of, db.execute(APPROVALS)))


def insert(db: apsw.Connection, row: schema.Row) -> None:
    db.execute("INSERT INTO approvals VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
    if not db.changes():
        raise rules.already_requested(row[0])


def update(db: apsw.Connection, approval: Approval) -> None:
    approval_id, _, _, *rest = schema.approval_row(approval)
    sql = "UPDATE approvals SET state = ?, digest = ?, body = ? WHERE approval_id = ?"
    db.execute(sql, (*rest, approval_id))


def decide(
    db: apsw.Connection, approval_id: str, decision: Decision, now_ms: int, edited_digest: str | None
) -> Approval:
    """Leave `pending`, once."""
    approval = find(db, approval_id)
    if approval is None:
        raise ApprovalNotFound(approval_id)
    after = rules.decided(approval, decision, now_ms=now_ms, edited_digest=edited_digest)
    update(db, after)
    return after


def cancel_of_run(db: apsw.Connection, run_id: str) -> None:
    """Cancel what a run or a turn still asks for."""
    pending = f"{APPROVALS} WHERE run_id = ? AND state = 'pending'"
    cancel(db, db.execute(pending, (run_id,)).fetchall())


def cancel(db: apsw.Connection, rows: list[schema.Row]) -> None:
    """Cancel open approvals. One that is damaged could never be decided, so it goes."""
    for row in rows:
        try:
            update(db, rules.cancelled(schema.approval_of(row)))
        except RecordCorrupt:
            db.execute("DELETE FROM approvals WHERE approval_id = ?", (row[0],))
