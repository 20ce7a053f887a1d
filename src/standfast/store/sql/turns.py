"""The life cycle of a stored turn: begin, save, park, take over, commit.

Theory of operation
-------------------
A plain turn takes two transactions. `begin` reads the session, with everything that could prevent the turn,
in one statement, and writes the lease and the turn; `commit` reads session and turn in one statement, and
writes the segment, the session and the turn. These statements also check for data that most turns lack
(journal, waits, inputs, approvals), so that it is accessed only if it exists.

Rules
-----
1. Every write of a turn reads the lease in the same transaction, unless the database can tell that nothing
   was written to it since the turn's last write. If the fence or the owner differs, or there is no lease, it
   raises `LeaseLost` and writes nothing.
2. A turn's journal changes only under its lease, and a lease is used through one store: the one that began or
   took over the turn. So the places of its rows, which SQLite's journal has no index for, are cached from one
   save to the next (`SavedEntries`). A store that has not cached them for this lease reads the journal. It
   forgets them when a save begins and learns them when it ends, so that neither a save whose outcome is
   unknown nor two saves at once leave a wrong cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from standfast.errors import LeaseLost, SessionNotFound, TurnNotFound
from standfast.model.session import SessionHead, TurnRecord, TurnState, TurnSummary
from standfast.ports import session_store as port
from standfast.store import rules
from standfast.store.sql import history, inputs, rows, waits
from standfast.store.sql.connection import Connection, Row
from standfast.store.sql.rows import StoredSession, StoredTurn

_replace = msgspec.structs.replace

_MAX_KEPT_BYTES: Final = 1 << 20

_BEGIN: Final = """
SELECT key, id, family, leaf_key, fence, owner, until_ms, digest, head,
    (SELECT turn_id FROM turns WHERE session = sessions.key AND state <> 'ended'),
    EXISTS (SELECT 1 FROM inputs WHERE session = sessions.key AND kind = 'inject')
FROM sessions WHERE id = ?
"""

_RENEWED: Final = """
SELECT key, id, family, leaf_key, fence, owner, until_ms, digest, head,
    (SELECT turn_id FROM turns WHERE session = sessions.key AND state <> 'ended' AND cancel <> 0)
FROM sessions
"""

_REPEATED: Final = f"{rows.TURNS} WHERE sessions.id = ? AND turns.idempotency_key = ?"

_HELD: Final = """
SELECT s.key, s.id, s.family, s.leaf_key, s.fence, s.owner, s.until_ms, s.digest, s.head,
    t.turn_id, t.session, t.state, t.created_at, t.ended_at, t.cancel, t.echoes, t.agent, t.input_digest,
    t.idempotency_key, t.digest, t.summary, t.input,
    EXISTS (SELECT 1 FROM inputs WHERE session = s.key AND kind = 'inject')
"""
_OF_TURN: Final = "FROM turns t JOIN sessions s ON s.key = t.session WHERE t.turn_id = ?"
TO_SAVE: Final = f"{_HELD}, {rows.LAST_ENTRY} {_OF_TURN}"
_TO_COMMIT: Final = f"""{_HELD}, {rows.NEXT_SEGMENT},
    {rows.JOURNALED},
    EXISTS (SELECT 1 FROM waits WHERE turn_id = t.turn_id)
        OR EXISTS (SELECT 1 FROM approvals WHERE run_id = t.turn_id AND state = 'pending'),
    {rows.LAST_ENTRY}
{_OF_TURN}"""  # noqa: S608 (a constant)


_OF_RUNNING: Final = f"""
{rows.SESSIONS} WHERE key IN (SELECT session FROM turns WHERE state <> 'ended' AND state = 'running')
"""  # noqa: S608 (a constant)
_COUNTS: Final = """
SELECT (SELECT count(*) FROM inputs WHERE kind = 'queue'), (SELECT count(*) FROM turns WHERE state <> 'ended')
"""
_OWNERS: Final = """
SELECT owner, count(*), sum(CASE WHEN until_ms > ? THEN 1 ELSE 0 END)
FROM turns JOIN sessions ON sessions.key = turns.session
WHERE turns.state <> 'ended' AND turns.state = 'running' GROUP BY owner
"""
_CANCELLED: Final = "SELECT turn_id FROM turns WHERE state <> 'ended' AND state = 'waiting' AND cancel <> 0"


class SavePlace(msgspec.Struct, frozen=True, gc=False):
    """The position for a save of a running turn: new journal entries follow `last_entry`.

    It is valid for one turn under one lease, until the database changes, which `mark` shows.
    """

    session_key: int
    last_entry: int
    cancelled: bool
    injected: bool
    mark: object = None


class SavedEntries:
    """The journal entries that a turn running here has saved under the lease with *fence*.

    `entries` is its journal, None if it is large or if not all of it is known. `place` is where its next save
    goes if nothing else is written before it. `places` are those of its rows, None if they are not known.
    """

    __slots__ = ("_latest", "entries", "fence", "place", "places", "size")

    def __init__(
        self, fence: int = 0, entries: Iterable[port.JournalEntry] = (), places: rows.Places | None = None
    ) -> None:
        self.fence = fence
        self.entries: dict[tuple[str, str], port.JournalEntry] | None = {}
        self.size = 0
        self.place: SavePlace | None = None
        self.places = places
        self._latest: port.Save | None = None
        self.add(entries)

    def take_places(self, save: port.Save) -> rows.Places | None:
        """Return the places of the rows that there are before *save*; they are not known until it ends."""
        places, self.places, self._latest = self.places, None, save
        return places

    def return_places(self, save: port.Save, places: rows.Places) -> None:
        """Set the places of the rows after *save*, unless another save has begun in the meantime."""
        if self._latest is save:
            self.places = places

    def add(self, entries: Iterable[port.JournalEntry]) -> None:
        """Record that *entries* were saved."""
        for entry in entries:
            self.size += len(entry.body)
            if self.entries is not None:
                if entry.kind == "state":
                    self.entries.pop((entry.key, entry.kind), None)  # a later state comes last
                self.entries[entry.key, entry.kind] = entry
        if self.size > _MAX_KEPT_BYTES:
            self.entries = None

    def known(self, rows: int | None = None) -> tuple[port.JournalEntry, ...] | None:
        """Return the journal if it is known, and has as many entries as *rows* if they were counted."""
        if self.entries is None or rows not in (None, len(self.entries)):
            return None
        return tuple(self.entries.values())


class HeldTurn(msgspec.Struct, frozen=True, gc=False):
    """A running turn whose lease was checked, with the related data.

    `next_segment` is the key of the next segment. `journaled` is 0 if the journal has no row of the turn.
    `saved` is the turn's journal and `places` those of its rows, if they are known.
    """

    session: StoredSession
    turn: StoredTurn
    injected: bool
    next_segment: int
    journaled: int
    waits: bool
    last_entry: int
    saved: tuple[port.JournalEntry, ...] | None = None
    places: rows.Places | None = None


Reads = tuple[tuple[str, tuple[str, ...]], ...]
"""The statements, with their values, with which a write begins."""


def begin_reads(new: port.NewTurn) -> Reads:
    reads: Reads = ((_BEGIN, (new.session_id,)),)
    if new.idempotency_key is not None:
        reads += ((_REPEATED, (new.session_id, new.idempotency_key)),)
    if new.consumes is not None:
        reads += ((inputs.INPUT, (new.consumes,)),)
    return reads


def commit_reads(turn_id: str) -> Reads:
    return ((_TO_COMMIT, (turn_id,)),)


def begin(
    db: Connection, new: port.NewTurn, claimant: port.Claimant, is_dead: rules.IsDead
) -> port.Begun | port.Repeated:
    db.lock_sessions((new.session_id,))
    row = db.execute(_BEGIN, (new.session_id,)).fetchone()
    if row is None:
        raise SessionNotFound(new.session_id)
    session = rows.session_of(row[:9])
    if new.idempotency_key is not None:
        found = db.execute(_REPEATED, (new.session_id, new.idempotency_key)).fetchone()
        if found is not None:
            earlier = rows.turn_of(found[:-1], session.id)
            rules.require_same_input(earlier.record, new)
            return port.Repeated(record=rows.whole_record(db, earlier))
    if row[9] is not None and (unfinished := rows.find_turn(db, row[9])) is not None:
        free = rules.is_free(
            session.owner, session.until_ms, db.lease_now(rules.lease_time(claimant)), is_dead
        )
        raise rules.refuse_second_turn(unfinished.record, session.owner, free)
    return begin_at_rest(db, session, new, claimant, injected=row[10])[0]


def begin_at_rest(
    db: Connection, session: StoredSession, new: port.NewTurn, claimant: port.Claimant, *, injected: bool
) -> tuple[port.Begun, StoredSession, StoredTurn]:
    """Begin a turn of a session without an unfinished turn; also return the session and turn as written."""
    if new.consumes is not None:
        inputs.claim(db, session.key, new.consumes)
    body = new.make_input(session.head, inputs.claim_injected(db, session.key) if injected else ())
    lease, leased = _lease(db, session, claimant)
    turn = StoredTurn(rules.new_record(new, claimant.now_ms), session.key, body)
    rows.insert_turn(db, turn)
    if new.blobs:
        inputs.put_blobs(db, new.blobs)
    return port.Begun(lease=lease, head=session.head, record=turn.record, input=body), leased, turn


def take_over(db: Connection, turn_id: str, claimant: port.Claimant, is_dead: rules.IsDead) -> port.Takeover:
    turn = rows.find_locked_turn(db, turn_id)
    if turn is None or turn.input is None:
        raise TurnNotFound(turn_id)
    session = rows.require_session(db, turn.record.session_id)
    free = rules.is_free(session.owner, session.until_ms, db.lease_now(rules.lease_time(claimant)), is_dead)
    rules.require_takeable(turn_id, turn.record, session.owner, free)
    record = rules.taken_over(turn.record)
    rows.update_turn(db, _replace(turn, record=record))
    return port.Takeover(
        lease=_lease(db, session, claimant)[0],
        head=session.head,
        record=record,
        input=turn.input,
        journal=rows.journal(db, turn_id),
    )


def save(db: Connection, lease: port.Lease, save: port.Save) -> port.Saved:
    return save_at(db, find_place(db, lease, save.turn_id), save)[0]


def find_place(db: Connection, lease: port.Lease, turn_id: str) -> SavePlace:
    """Return the place for a save of a turn that runs under *lease*."""
    return _place(_leased_row(db, lease, turn_id, TO_SAVE))


def park(
    db: Connection,
    lease: port.Lease,
    save: port.Save,
    summary: TurnSummary,
    places: rows.Places | None = None,
) -> None:
    row = _leased_row(db, lease, save.turn_id, TO_SAVE)
    save_at(db, _place(row), save, places)
    waits.stand(db, save.turn_id, summary.outcome)
    session, turn = _decoded(row)
    rows.update_turn(db, _replace(turn, record=rules.parked(turn.record, summary)))
    rows.write_lease(db, session, None, 0, session.fence)


def commit(
    db: Connection,
    lease: port.Lease,
    commit: port.TurnCommit,
    entries: bytes,
    saved: SavedEntries | None = None,
) -> SessionHead | port.CommitRefused:
    """End a turn. *entries* are the commit's encoded entries; *saved* is the journal as far as known."""
    held = held_of(_leased_row(db, lease, commit.turn_id, _TO_COMMIT))
    if saved is not None and ((places := saved.places) is not None or db.indexes_journal):
        journal = saved.known(held.journaled if db.indexes_journal else None)
        held = _replace(held, saved=journal, places=places)
    cancelled = held.turn.record.cancel_requested
    if (refused := rules.refuse_commit(commit, cancelled, held.injected)) is not None:
        return refused
    return commit_held(db, held, commit, entries).head


def commit_held(db: Connection, held: HeldTurn, commit: port.TurnCommit, entries: bytes) -> StoredSession:
    """End a turn whose commit was checked before; return the session as written."""
    session = held.session
    if commit.state is not None:
        session = history.write_state(db, session, commit.state, commit.turn_id, len(commit.entries))
    if commit.blobs:
        inputs.put_blobs(db, commit.blobs)
    grown = history.grow(
        db,
        session,
        commit.turn_id,
        commit.entries,
        entries,
        commit.now_ms,
        model_calls=commit.model_calls,
        usage=commit.usage,
        key=held.next_segment,
    )
    after = rows.update_session(db, _replace(grown, owner=None, until_ms=0))
    rows.end_turn(db, held.turn, commit.summary, commit.entries, commit.now_ms)
    if commit.journal is not None:
        saved = held.saved
        if saved is None:
            saved = rows.journal(db, commit.turn_id) if held.journaled else ()
        nodes = entries if commit.entries else b""
        rows.keep_journal(db, held.turn, (*saved, *commit.journal), nodes, commit.now_ms)
    if held.journaled:
        rows.delete_journal(db, commit.turn_id, held.places)
    if held.waits:
        waits.drop(db, commit.turn_id)
    if held.injected:
        inputs.queue_injected(db, held.session.key)
    for item in commit.enqueue:
        inputs.put(db, item)
    return after


def renew(db: Connection, leases: tuple[port.Lease, ...], now_ms: int, lease_ms: int) -> port.Renewed:
    lost: set[str] = set()
    cancelled: set[str] = set()
    until_ms = db.lease_now(now_ms) + lease_ms
    if not lease_ms:
        db.announce(port.WORK)  # the lease was released, so another process can take over
    db.lock_sessions({lease.session_id for lease in leases})
    places = ", ".join("?" * len(leases)) or "NULL"
    found = db.execute(f"{_RENEWED} WHERE id IN ({places})", [it.session_id for it in leases]).fetchall()
    sessions = {row[1]: (rows.session_of(row[:9]), row[9]) for row in found}
    for lease in leases:
        session, turn_id = sessions.get(lease.session_id, (None, None))
        if session is None or not _matches(session, lease):
            lost.add(lease.session_id)
            continue
        rows.write_lease(db, session, session.owner, until_ms, session.fence)
        if turn_id is not None:
            cancelled.add(turn_id)
    return port.Renewed(lost=frozenset(lost), cancelled=frozenset(cancelled))


def cancel(db: Connection, turn_id: str) -> bool:
    turn = rows.find_locked_turn(db, turn_id)
    if turn is None or turn.record.state == TurnState.ENDED:
        return False
    rows.update_turn(db, _replace(turn, record=_replace(turn.record, cancel_requested=True)))
    db.announce(port.WORK)
    return True


def cancelled(db: Connection, turn_ids: tuple[str, ...]) -> frozenset[str]:
    among = ", ".join("?" * len(turn_ids)) or "NULL"
    found = rows.find_turns(db, f"turns.turn_id IN ({among}) AND turns.cancel <> 0", *turn_ids)
    return frozenset(turn.record.turn_id for turn in found)


def unfinished(db: Connection, now_ms: int, lease_now_ms: int, is_dead: rules.IsDead) -> list[TurnRecord]:
    """Return the turns that no process runs and that can continue now, oldest first."""
    awake, lease_now_ms = waits.awake(db, now_ms), db.lease_now(lease_now_ms)
    found = rows.find_turns(
        db,
        "turns.state <> 'ended' AND (turns.state <> 'waiting' OR turns.cancel <> 0 "
        f"OR turns.turn_id IN ({', '.join('?' * len(awake)) or 'NULL'}))",
        *sorted(awake),
    )
    sessions = map(rows.session_of, db.execute(_OF_RUNNING).fetchall())
    free = {it.id: rules.is_free(it.owner, it.until_ms, lease_now_ms, is_dead) for it in sessions}
    return [
        record
        for record in (turn.record for turn in found)
        if rules.can_continue(
            record, free=free.get(record.session_id, True), wait_over=record.turn_id in awake
        )
    ]


def count(db: Connection, now_ms: int, lease_now_ms: int, is_dead: rules.IsDead) -> port.TurnCounts:
    lease_now_ms = db.lease_now(lease_now_ms)
    queued, unfinished = db.execute(_COUNTS).get
    owners = db.execute(_OWNERS, (lease_now_ms,)).fetchall()
    owned = sum(turns for _, turns, _ in owners)
    running = sum(live for owner, _, live in owners if owner is not None and not is_dead(owner))
    awake = len(waits.awake(db, now_ms) | {turn_id for (turn_id,) in db.execute(_CANCELLED).fetchall()})
    waiting = unfinished - owned - awake
    return port.TurnCounts(
        queued=queued, running=running, waiting=waiting, stuck=unfinished - running - waiting
    )


def _lease(
    db: Connection, session: StoredSession, claimant: port.Claimant
) -> tuple[port.Lease, StoredSession]:
    """Write a lease for the claimant: the returned lease uses its own clock, the row uses the store's."""
    lease = rules.lease_for(session.id, claimant, session.fence + 1)
    until_ms = db.lease_now(rules.lease_time(claimant)) + claimant.lease_ms
    return lease, rows.write_lease(db, session, lease.owner, until_ms, lease.fence)


def _matches(session: StoredSession, lease: port.Lease) -> bool:
    return session.fence == lease.fence and session.owner == lease.owner


def is_leased(row: Row | None, lease: port.Lease) -> bool:
    """Return whether a row of `TO_SAVE` or `commit_reads` belongs to a turn that runs under *lease*.

    The digests of the session and the turn are checked here, so that decoding need not check them.
    """
    if row is None or row[1] != lease.session_id:
        return False
    rows.check_session(row[:9])
    rows.check_turn(row[9:22], row[1])
    return (row[4], row[5], row[11]) == (lease.fence, lease.owner, TurnState.RUNNING)


def held_of(row: Row) -> HeldTurn:
    """Return the turn and its session of a row that `commit_reads` found and `is_leased` checked."""
    session, turn = _decoded(row)
    return HeldTurn(session, turn, bool(row[22]), row[23], row[24], bool(row[25]), row[26])


def _decoded(row: Row) -> tuple[StoredSession, StoredTurn]:
    return rows.session_of(row[:9], checked=True), rows.turn_of(row[9:22], row[1], checked=True)


def _place(row: Row) -> SavePlace:
    """Return the place for a save in a row that `TO_SAVE` found."""
    return SavePlace(row[0], row[23], bool(row[14]), bool(row[22]))


def _leased_row(db: Connection, lease: port.Lease, turn_id: str, sql: str) -> Row:
    """Return the row of a turn; raise `LeaseLost`, or `TurnNotFound` if the lease is for another turn."""
    db.lock_sessions((lease.session_id,))
    row = db.execute(sql, (turn_id,)).fetchone()
    if row is not None and is_leased(row, lease):
        return row
    found = rows.find_session(db, lease.session_id)
    if found is not None and _matches(found, lease):
        raise TurnNotFound(turn_id)
    raise LeaseLost(lease.session_id)


def save_at(
    db: Connection, place: SavePlace, save: port.Save, places: rows.Places | None = None
) -> tuple[port.Saved, rows.Places]:
    """Save; return also what `rows.append_journal` returns, which is passed *places*."""
    entries = save.entries
    checkpoint = None
    if save.make_checkpoint is not None:
        claimed = inputs.claim_injected(db, place.session_key) if place.injected else ()
        checkpoint = save.make_checkpoint(claimed)
        entries = (*entries, checkpoint)
    added = rows.append_journal(db, save.turn_id, entries, save.blobs, place.last_entry, places)
    if save.blobs:
        inputs.put_blobs(db, save.blobs)
    if save.waits or save.approvals:
        waits.save(db, save)
    return port.Saved(cancel_requested=place.cancelled, checkpoint=checkpoint), added
