"""The waits of turns: timers, external completions and approvals, and the clocks they depend on.

Rules
-----
1. A wait ends once. The call that reports an approval or a completion as expired also stores that, so that no
   answer is accepted afterwards.
2. A waiting turn is resumed when one of its current waits (`stands`) is over; a wait that it has already
   handled does not resume it again.
3. Decisions are in `approvals`, where `run_id` is the id of the requesting turn; the row in `waits` only says
   that a turn is waiting for one.
4. A row is checked whenever it is read. A damaged approval can never be decided, so cancelling deletes it.
5. The first program that notices that the system clock was set shifts the timers, in the transaction that
   records it. So they are shifted once, however many programs notice.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import ApprovalNotFound, RecordCorrupt, TokenNotFound
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.outcome import Outcome, Wait, Waiting, WaitOutcome
from standfast.model.session import TurnRecord, TurnState
from standfast.ports.session_store import WORK, Save, SeenClock
from standfast.store import rules
from standfast.store.sql import rows
from standfast.store.sql.connection import Connection, Row
from standfast.store.sql.rows import RecordDecoder, decoded, encode, seal, text_seal

WAITS: Final = "SELECT turn_id, wait_id, stands, digest, wait, outcome FROM waits"

# Queried every second: SQLite filters out open waits, so that only the others are read and checked. A damaged
# wait counts as over; the process that takes over the turn then gets `RecordCorrupt`.
IS_DUE: Final = "iif(json_valid(CAST(wait AS TEXT)), json_extract(CAST(wait AS TEXT), '$.due_at') <= ?, 1)"
_MAYBE_OVER: Final = f"""
SELECT waits.turn_id, wait_id, stands, waits.digest, wait, outcome
FROM turns JOIN waits ON waits.turn_id = turns.turn_id
WHERE turns.state <> 'ended' AND turns.state = 'waiting' AND (
    outcome IS NOT NULL
    OR (SELECT state FROM approvals WHERE approval_id = wait_id) <> 'pending'
    OR {IS_DUE}
)
"""  # noqa: S608 (a constant)

_waits: RecordDecoder[Wait] = RecordDecoder(Wait)
_outcomes: RecordDecoder[WaitOutcome] = RecordDecoder(WaitOutcome)
_replace = msgspec.structs.replace


class StoredWait(msgspec.Struct, frozen=True):
    """A row of `waits`. Without `wait`, it is a completion that arrived before its wait was saved."""

    turn_id: str
    wait_id: str
    wait: Wait | None = None
    outcome: WaitOutcome | None = None
    stands: bool = False


def save(db: Connection, save: Save) -> None:
    """Write the waits and approval requests of a save; they count as current until the turn parks."""
    for wait in save.waits:
        stored = _find(db, save.turn_id, wait.wait_id) or StoredWait(save.turn_id, wait.wait_id)
        _write(db, _replace(stored, wait=wait, stands=True))
    for approval in save.approvals:
        insert_approval(db, approval)


def stand(db: Connection, turn_id: str, outcome: Outcome) -> None:
    """Mark the waits of a parking turn's outcome as its current ones, and no others."""
    if not isinstance(outcome, Waiting) or not outcome.waits:
        return
    wanted = {wait.wait_id: wait for wait in outcome.waits}
    for stored in of_turn(db, turn_id):
        wait = wanted.pop(stored.wait_id, None)
        if (wait is not None) != stored.stands or stored.wait is None:
            # Keep the stored wait: it was shifted if the system clock was set, the turn's copy was not.
            _write(db, _replace(stored, wait=stored.wait or wait, stands=wait is not None))
    for wait_id, wait in wanted.items():
        _write(db, StoredWait(turn_id, wait_id, wait, stands=True))


def drop(db: Connection, turn_id: str) -> None:
    """Delete a turn's waits and cancel its open approvals."""
    db.execute("DELETE FROM waits WHERE turn_id = ?", (turn_id,))
    pending = f"{APPROVALS} WHERE run_id = ? AND state = 'pending'"
    for row in db.execute(pending, (turn_id,)).fetchall():
        try:
            update_approval(db, rules.cancelled(approval_of(row)))
        except RecordCorrupt:
            db.execute("DELETE FROM approvals WHERE approval_id = ?", (row[0],))


def complete(db: Connection, token: str, outcome: WaitOutcome, now_ms: int) -> TurnRecord:
    turn = rows.find_locked_turn(db, rules.turn_of_token(token))
    if turn is None or turn.record.state == TurnState.ENDED:
        raise TokenNotFound(token)
    stored = _find(db, turn.record.turn_id, token) or StoredWait(turn.record.turn_id, token)
    rules.require_completable(token, stored.wait, stored.outcome, now_ms)
    _write(db, _replace(stored, outcome=outcome))
    db.announce(WORK)
    return turn.record


def ended(db: Connection, turn_id: str, now_ms: int) -> tuple[tuple[tuple[str, WaitOutcome], ...], bool]:
    """Return each wait of the turn that is over, and whether an expiry has not been stored yet."""
    open_turn = "SELECT 1 FROM turns WHERE turn_id = ? AND state <> 'ended'"
    if db.execute(open_turn, (turn_id,)).get is None:
        return (), False
    asked = {item.approval_id: item for item in find_approvals(db, turn_id=turn_id)}
    found: list[tuple[str, WaitOutcome]] = []
    unwritten = False
    for stored in of_turn(db, turn_id):
        if stored.wait is None or stored.wait_id in asked:
            continue
        outcome = rules.outcome_of(stored.wait, now_ms, approval=None, completion=stored.outcome)
        if outcome is not None:
            found.append((stored.wait_id, outcome))
            unwritten |= stored.outcome is None and stored.wait.kind == "completion"
    for approval in asked.values():
        if (answer := rules.answer_of(rules.expired(approval, now_ms))) is not None:
            found.append((approval.approval_id, answer))
            unwritten |= approval.state == ApprovalState.PENDING
    return tuple(found), unwritten


def expire(db: Connection, turn_id: str, now_ms: int) -> tuple[tuple[str, WaitOutcome], ...]:
    """Store which waits and approvals have expired; return the waits that are over."""
    rows.lock_session_of(db, "SELECT session FROM turns WHERE turn_id = ?", turn_id)
    for approval in find_approvals(db, turn_id=turn_id):
        if (after := rules.expired(approval, now_ms)) is not approval:
            update_approval(db, after)
    for stored in of_turn(db, turn_id):
        if stored.outcome is None and stored.wait is not None and stored.wait.kind == "completion":
            outcome = rules.outcome_of(stored.wait, now_ms, approval=None, completion=None)
            if outcome is not None:
                _write(db, _replace(stored, outcome=outcome))
    return ended(db, turn_id, now_ms)[0]


def awake(db: Connection, now_ms: int) -> set[str]:
    """Return the waiting turns of which a current wait is over."""
    found: set[str] = set()
    for stored in map(wait_of, db.execute(_MAYBE_OVER, (now_ms,)).fetchall()):
        if not stored.stands or (wait := stored.wait) is None:
            continue
        approval = find_approval(db, stored.wait_id) if wait.kind == "approval" else None
        if rules.outcome_of(wait, now_ms, approval=approval, completion=stored.outcome) is not None:
            found.add(stored.turn_id)
    return found


def of_turn(db: Connection, turn_id: str) -> list[StoredWait]:
    return [wait_of(row) for row in db.execute(f"{WAITS} WHERE turn_id = ?", (turn_id,)).fetchall()]


def _find(db: Connection, turn_id: str, wait_id: str) -> StoredWait | None:
    row = db.execute(f"{WAITS} WHERE turn_id = ? AND wait_id = ?", (turn_id, wait_id)).fetchone()
    return None if row is None else wait_of(row)


def _write(db: Connection, stored: StoredWait) -> None:
    keys = (stored.turn_id, stored.wait_id, int(stored.stands))
    wait = None if stored.wait is None else encode(stored.wait)
    outcome = None if stored.outcome is None else encode(stored.outcome)
    db.execute(
        "INSERT INTO waits (turn_id, wait_id, stands, digest, wait, outcome) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (turn_id, wait_id) DO UPDATE SET stands = excluded.stands, digest = excluded.digest, "
        "wait = excluded.wait, outcome = excluded.outcome",
        (*keys, seal("wait", *keys, wait, outcome), wait, outcome),
    )


def wait_of(row: Row) -> StoredWait:
    turn_id, wait_id, stands, digest, wait, outcome = row
    what = f"wait {wait_id} of turn {turn_id}"
    if seal("wait", turn_id, wait_id, stands, wait, outcome) != digest:
        raise RecordCorrupt(what)
    return StoredWait(
        turn_id,
        wait_id,
        None if wait is None else decoded(_waits, wait, what),
        None if outcome is None else decoded(_outcomes, outcome, what),
        bool(stands),
    )


# Approvals

APPROVALS: Final = "SELECT approval_id, session_id, run_id, state, digest, body FROM approvals"

_approvals: RecordDecoder[Approval] = RecordDecoder(Approval)


def find_approval(db: Connection, approval_id: str) -> Approval | None:
    row = db.execute(f"{APPROVALS} WHERE approval_id = ?", (approval_id,)).fetchone()
    return None if row is None else approval_of(row)


def find_approvals(
    db: Connection, *, session_id: str | None = None, turn_id: str | None = None
) -> list[Approval]:
    where, values = "", tuple[str, ...]()
    if turn_id is not None:
        where, values = " WHERE run_id = ?", (turn_id,)
    elif session_id is not None:
        where, values = " WHERE session_id = ?", (session_id,)
    found = map(approval_of, db.execute(APPROVALS + where, values).fetchall())
    matching = [item for item in found if session_id in (None, item.session_id)]
    return sorted(matching, key=rules.approval_order)


def insert_approval(db: Connection, approval: Approval) -> None:
    sql = (
        "INSERT INTO approvals (approval_id, session_id, run_id, state, digest, body) "
        "VALUES (?, ?, ?, ?, ?, ?)"
    )
    db.insert_new(sql, _approval_row(approval), rules.already_requested, approval.approval_id)


def update_approval(db: Connection, approval: Approval) -> None:
    approval_id, _, _, *rest = _approval_row(approval)
    sql = "UPDATE approvals SET state = ?, digest = ?, body = ? WHERE approval_id = ?"
    db.execute(sql, (*rest, approval_id))


def decide(
    db: Connection, approval_id: str, decision: Decision, *, now_ms: int, edited_digest: str | None
) -> Approval:
    session_id: str | None = db.execute(
        "SELECT session_id FROM approvals WHERE approval_id = ?", (approval_id,)
    ).get
    db.lock_sessions(() if session_id is None else (session_id,))
    approval = find_approval(db, approval_id)
    if approval is None:
        raise ApprovalNotFound(approval_id)
    after = rules.decided(approval, decision, now_ms=now_ms, edited_digest=edited_digest)
    update_approval(db, after)
    db.announce(WORK)
    return after


def approval_of(row: Row) -> Approval:
    """Return the approval of a row with the columns of `APPROVALS`."""
    *keys, digest, body = row
    what = f"approval {keys[0]}"
    if not isinstance(body, bytes) or text_seal("approval", *keys, data=body) != digest:
        raise RecordCorrupt(what)
    return decoded(_approvals, body, what)


def _approval_row(approval: Approval) -> Row:
    """approval_id, session_id, run_id, state, digest, body."""
    keys = (approval.approval_id, approval.session_id, approval.run_id, str(approval.state))
    body = encode(approval)
    return *keys, text_seal("approval", *keys, data=body), body


# Clocks

CLOCKS: Final = "SELECT boot, lease_offset_ms, seen_offset_ms, digest FROM clocks"


def find_clock(db: Connection, boot: str) -> tuple[int, int] | None:
    """Return the lease offset and the last offset of the clocks of *boot*."""
    row: Row | None = db.execute(f"{CLOCKS} WHERE boot = ?", (boot,)).fetchone()
    if row is None:
        return None
    check_clock(row)
    return row[1], row[2]


def see_clock(db: Connection, boot: str, offset_ms: int) -> SeenClock:
    """Record the offset of the clocks, and shift timers if the system clock was set."""
    seen = rules.seen_clock(find_clock(db, boot), offset_ms)
    row = (boot, seen.lease_offset_ms, offset_ms)
    db.execute(
        "INSERT INTO clocks (boot, lease_offset_ms, seen_offset_ms, digest) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (boot) DO UPDATE SET lease_offset_ms = excluded.lease_offset_ms, "
        "seen_offset_ms = excluded.seen_offset_ms, digest = excluded.digest",
        (*row, seal("clock", *row)),
    )
    for turn in rows.find_turns(db, "turns.state <> 'ended'") if seen.shift_ms else ():
        for stored in of_turn(db, turn.record.turn_id):
            if stored.wait is not None and stored.outcome is None:
                _write(db, _replace(stored, wait=rules.moved_along(stored.wait, seen.shift_ms)))
        moved = rules.record_moved_along(turn.record, seen.shift_ms)
        if moved is not turn.record:
            rows.update_turn(db, _replace(turn, record=moved))
    return seen


def check_clock(row: Row) -> None:
    boot, lease_offset_ms, seen_ms, digest = row
    if seal("clock", boot, lease_offset_ms, seen_ms) != digest:
        raise RecordCorrupt(f"clock of boot {boot}")
