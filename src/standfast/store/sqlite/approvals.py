"""Rows of `approvals`. An approval's `run_id` is the id of the turn that asked.

Rule: a row is checked whenever it is read. A damaged one can never be decided, so cancelling deletes it.
"""

from __future__ import annotations

from typing import Final

import apsw
import msgspec

from standfast.errors import ApprovalNotFound, RecordCorrupt
from standfast.model.approval import Approval, Decision
from standfast.store import rules
from standfast.store.sqlite.schema import Row, decoded, text_seal

APPROVALS: Final = "SELECT approval_id, session_id, run_id, state, digest, body FROM approvals"

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Approval)


def find(db: apsw.Connection, approval_id: str) -> Approval | None:
    row = db.execute(f"{APPROVALS} WHERE approval_id = ?", (approval_id,)).fetchone()
    return None if row is None else approval_of(row)


def find_all(
    db: apsw.Connection, *, session_id: str | None = None, turn_id: str | None = None
) -> list[Approval]:
    """Return the approvals of a session, of a turn or of all, oldest first."""
    if turn_id is not None:
        rows = db.execute(f"{APPROVALS} WHERE run_id = ?", (turn_id,)).fetchall()
    elif session_id is not None:
        rows = db.execute(f"{APPROVALS} WHERE session_id = ?", (session_id,)).fetchall()
    else:
        rows = db.execute(APPROVALS).fetchall()
    found = [item for item in map(approval_of, rows) if session_id in (None, item.session_id)]
    return sorted(found, key=rules.approval_order)


def insert(db: apsw.Connection, approval: Approval) -> None:
    sql = "INSERT INTO approvals VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    db.execute(sql, _row_of(approval))
    if not db.changes():
        raise rules.already_requested(approval.approval_id)


def update(db: apsw.Connection, approval: Approval) -> None:
    approval_id, _, _, *rest = _row_of(approval)
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


def cancel_of_turn(db: apsw.Connection, turn_id: str) -> None:
    """Cancel the open approvals of a turn."""
    pending = f"{APPROVALS} WHERE run_id = ? AND state = 'pending'"
    for row in db.execute(pending, (turn_id,)).fetchall():
        try:
            update(db, rules.cancelled(approval_of(row)))
        except RecordCorrupt:
            db.execute("DELETE FROM approvals WHERE approval_id = ?", (row[0],))


def approval_of(row: Row) -> Approval:
    """Return the approval of a row with the columns of `APPROVALS`."""
    *keys, digest, body = row
    what = f"approval {keys[0]}"
    if not isinstance(body, bytes) or text_seal("approval", *keys, data=body) != digest:
        raise RecordCorrupt(what)
    return decoded(_decoder, body, what)


def _row_of(approval: Approval) -> Row:
    """approval_id, session_id, run_id, state, digest, body."""
    keys = (approval.approval_id, approval.session_id, approval.run_id, str(approval.state))
    body = _encode(approval)
    return *keys, text_seal("approval", *keys, data=body), body
