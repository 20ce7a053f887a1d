"""Writes of turns that read nothing first, because this process knows the rows that they would read.

Theory of operation
-------------------
A process that has a session's lease wrote the rows of the session and its turn itself, and the process that
ended a session's last turn wrote the row that its next turn begins with. So the statements of a write are
made from the rows as they are known here, by the functions of `store.sql`, and sent together with a *guard*:
it locks the session and fails unless the digests of its rows are still those that are known. Guard, writes
and commit are one round trip. What is not known is read before, for all writes of a group at once.

If the guard fails, or anything else does, nothing was written, and the write is run as every other: it locks,
reads, and finds out what is wrong.

Rules
-----
1. A digest covers all of its row. If it is the same, the row is as it is known here, whatever damage the
   other columns may have: they are not read.
2. What changes none of these rows is asked for by the guard: injected messages, waits, open approvals. An
   unfinished turn and a repeated idempotency key are refused by unique indexes.
3. If the answer is lost, `run` looks for what was sent, under the session's lock, before it writes it again.
4. The process that has the lease numbers the entries of the journal, in a range after all earlier ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import psycopg

from standfast.errors import LeaseLost
from standfast.model.session import SessionHead
from standfast.ports import session_store as port
from standfast.store import rules
from standfast.store.postgres.connection import NOW_MS
from standfast.store.postgres.dialect import ENTRIES_PER_WRITE, to_postgres
from standfast.store.postgres.pipeline import Pipeline, Statement, StatementFailed, Value, read_ints
from standfast.store.sql import inputs, rows
from standfast.store.sql import turns as lifecycle
from standfast.store.sql.connection import Cursor, Row
from standfast.store.sql.group_writer import Job
from standfast.store.sql.rows import StoredSession, StoredTurn

_MAX_SESSIONS: Final = 4_096
_MAX_KEPT_BYTES: Final = 1 << 20
_ATTEMPTS: Final = 3

_NOT_INJECTED, _ALONE = 1, 2
_OF_ONE_WRITE: Final = ("22", "23", "SF")
"""Beginnings of the codes of errors that other writes of the group do not meet: values, keys, the guard."""

# session, its digest, turn, its digest, input, its digest, what else there must not be, whether a turn begins
_GUARD: Final = b"SELECT now_ms, entry, segment FROM standfast_guard($1, $2, $3, $4, $5, $6, $7, $8)"

_JOURNALED: Final = "SELECT digest FROM journal WHERE turn_id = ? AND name = ? AND kind = ?"
_TURN_DIGEST: Final = "SELECT digest FROM turns WHERE turn_id = ?"


class NotKnown(Exception):
    """A write needs something that is not known here."""


class KnownTurn:
    """The unfinished turn of a session, as its row is. `saved` is its journal, if all of it is known."""

    __slots__ = ("digest", "journaled", "last_entry", "next_segment", "saved", "saved_bytes", "turn")

    def __init__(self, turn: StoredTurn, last_entry: int, next_segment: int, *, journaled: bool) -> None:
        self.turn = turn
        self.digest = rows.turn_digest(turn)
        self.last_entry = last_entry
        self.next_segment = next_segment
        self.journaled = journaled
        self.saved: dict[tuple[str, str], port.JournalEntry] | None = None if journaled else {}
        self.saved_bytes = 0

    def add(self, entries: tuple[port.JournalEntry, ...]) -> None:
        """Note that *entries* were saved."""
        self.last_entry += len(entries)
        self.journaled = self.journaled or bool(entries)
        self.saved_bytes += sum(len(entry.body) for entry in entries)
        if self.saved_bytes > _MAX_KEPT_BYTES:
            self.saved = None
        if self.saved is not None:
            for entry in entries:
                self.saved.pop((entry.key, entry.kind), None)  # a later state comes last
                self.saved[entry.key, entry.kind] = entry


class KnownSession:
    """A session as its row is, with its unfinished turn if it has one."""

    __slots__ = ("digest", "session", "turn")

    def __init__(self, session: StoredSession, turn: KnownTurn | None = None) -> None:
        self.session = session
        self.digest = rows.session_digest(session)
        self.turn = turn


class Recording:
    """The statements of a write, as `store.sql` makes them. It implements `store.sql.connection.Connection`.

    Its only answer is that to the question in `known`; any other question raises `NotKnown`. Leases go by
    *now_ms*, or else by the claimant's clock.
    """

    def __init__(self, now_ms: int | None) -> None:
        self._now_ms = now_ms
        self.known: tuple[tuple[str, tuple[Any, ...]], Row] | None = None
        self.statements: list[Statement] = []
        self.announced: list[str] = []

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        if not sql.lstrip().startswith(("SELECT", "WITH")):
            self.statements.append((to_postgres(sql), values))
            return _KnownRow(None)
        if self.known is None or self.known[0] != (sql, tuple(values)):
            raise NotKnown
        return _KnownRow(self.known[1])

    def insert_new(
        self, sql: str, values: Sequence[Any], refusal: Callable[..., Exception], *about: Any
    ) -> None:
        self.statements.append((to_postgres(sql), values))

    def lock_sessions(self, session_ids: Iterable[str]) -> None:
        pass  # the guard does

    def lock_family(self, family: int) -> None:
        raise NotKnown

    def lock_blobs(self) -> None:
        raise NotKnown

    def skip_used_keys(self) -> None:
        raise NotKnown

    def announce(self, text: str) -> None:
        self.announced.append(text)

    def size_bytes(self) -> int:
        raise NotKnown

    def lease_now(self, claimed_ms: int) -> int:
        return claimed_ms if self._now_ms is None else self._now_ms


class _KnownRow:
    """A cursor with one row, or none."""

    def __init__(self, row: Row | None) -> None:
        self._row = row

    def fetchone(self) -> Row | None:
        return self._row

    def fetchall(self) -> list[Row]:
        return [] if self._row is None else [self._row]

    def __iter__(self) -> Any:
        return iter(self.fetchall())

    @property
    def get(self) -> Any:
        raise NotKnown


class Plan(NamedTuple):
    """A guard and the statements after it. `settle` is called with the guard's answer after the commit."""

    guard: Sequence[Value]
    db: Recording
    settle: Callable[[tuple[int, ...]], None]


class GuardedWrite(Protocol):
    """A write of one session that may be sent with a guard."""

    session_id: str
    result: Any
    uncertain: bool
    """Whether it was sent and not answered."""

    def knows(self, known: KnownSession) -> bool:
        """Return whether *known* is all that the write needs."""

    def reads(self) -> lifecycle.Reads:
        """Return the statements that read what it needs: the session first."""

    def learn(self, found: list[Row]) -> KnownSession | None:
        """Return the session of the rows that were found, if the write may be made of it."""

    def plan(self, known: KnownSession, now_ms: int | None) -> Plan | None:
        """Make the statements of the write; None if it has to be run."""


class GuardedSave:
    """`SessionStore.save` without blobs, waits and approvals."""

    def __init__(self, lease: port.Lease, save: port.Save) -> None:
        self.session_id = lease.session_id
        self.uncertain = False
        self._lease, self._save = lease, save
        self._first: tuple[str, str, str] = "", "", ""
        self._sent: set[bytes] = set()
        """The digests of the first entry, which has another number in each attempt."""
        self.result: port.Saved

    def repeats(self, lease: port.Lease, save: object) -> bool:
        return self._lease == lease and self._save is save

    def run(self, db: Any) -> port.Saved:
        """Write without a guard."""
        if self.uncertain and db.execute(_JOURNALED, self._first).get in self._sent:
            return self.result
        return lifecycle.save(db, self._lease, self._save)

    def reads(self) -> lifecycle.Reads:
        return lifecycle.commit_reads(self._save.turn_id)

    def learn(self, found: list[Row]) -> KnownSession | None:
        return _leased(found[0], self._lease)

    def knows(self, known: KnownSession) -> bool:
        return _is_held(known, self._lease, self._save.turn_id)

    def plan(self, known: KnownSession, now_ms: int | None) -> Plan | None:
        turn, db = known.turn, Recording(now_ms)
        assert turn is not None
        place = lifecycle.SavePlace(
            known.session.key, turn.last_entry, turn.turn.record.cancel_requested, injected=False
        )
        self.result = lifecycle.save_at(db, place, self._save)
        made = self.result.checkpoint
        entries = self._save.entries if made is None else (*self._save.entries, made)
        if not entries or turn.last_entry % ENTRIES_PER_WRITE + len(entries) >= ENTRIES_PER_WRITE:
            return None
        _, turn_id, name, kind, digest, _ = db.statements[0][1]
        self._first = turn_id, name, kind  # type: ignore[assignment]
        self._sent.add(digest)  # type: ignore[arg-type]
        injected = 0 if self._save.make_checkpoint is None else _NOT_INJECTED
        return Plan(_guard(known, turn, injected), db, lambda answer: turn.add(entries))


class GuardedCommit:
    """`SessionStore.commit` of a turn that leaves nothing but its nodes and, if it is kept, its journal."""

    def __init__(self, lease: port.Lease, commit: port.TurnCommit, entries: bytes) -> None:
        self.session_id = lease.session_id
        self.uncertain = False
        self._lease, self._commit, self._entries = lease, commit, entries
        self._ended: bytes = b""
        self.result: SessionHead | port.CommitRefused

    def repeats(self, lease: port.Lease, commit: object) -> bool:
        return self._lease == lease and self._commit is commit

    def run(self, db: Any) -> SessionHead | port.CommitRefused:
        """Write without a guard."""
        if self.uncertain and db.execute(_TURN_DIGEST, (self._commit.turn_id,)).get == self._ended:
            return self.result
        return lifecycle.commit(db, self._lease, self._commit, self._entries)

    def reads(self) -> lifecycle.Reads:
        return lifecycle.commit_reads(self._commit.turn_id)

    def learn(self, found: list[Row]) -> KnownSession | None:
        return _leased(found[0], self._lease)

    def knows(self, known: KnownSession) -> bool:
        return _is_held(known, self._lease, self._commit.turn_id)

    def plan(self, known: KnownSession, now_ms: int | None) -> Plan | None:
        turn, db = known.turn, Recording(now_ms)
        assert turn is not None
        if rules.refuse_commit(self._commit, turn.turn.record.cancel_requested, injected=False) is not None:
            return None
        after = lifecycle.commit_held(db, _held(known, turn), self._commit, self._entries)
        self.result, self._ended = after.head, _written_turn(db)

        def settle(answer: tuple[int, ...]) -> None:
            known.session, known.digest, known.turn = after, rows.session_digest(after), None

        return Plan(_guard(known, turn, _ALONE), db, settle)


class GuardedBegin:
    """`SessionStore.begin` of a turn without blobs."""

    def __init__(
        self,
        new: port.NewTurn,
        claimant: port.Claimant,
        is_dead: rules.IsDead,
        input_row: Row | None,
    ) -> None:
        self.session_id = new.session_id
        self.uncertain = False
        self._new, self._claimant, self._is_dead = new, claimant, is_dead
        self._input = input_row
        self._begun: bytes = b""
        self.result: port.Begun

    def run(self, db: Any) -> port.Begun | port.Repeated:
        """Write without a guard."""
        if self.uncertain and db.execute(_TURN_DIGEST, (self._new.turn_id,)).get == self._begun:
            session = rows.require_session(db, self.session_id)
            if (session.fence, session.owner) != (self.result.lease.fence, self.result.lease.owner):
                raise LeaseLost(self.session_id)
            return self.result
        return lifecycle.begin(db, self._new, self._claimant, self._is_dead)

    def reads(self) -> lifecycle.Reads:
        reads = lifecycle.begin_reads(self._new)
        return reads[:1] if self._new.consumes is None else (reads[0], reads[-1])

    def learn(self, found: list[Row]) -> KnownSession | None:
        session, self._input = found[0], found[-1] if self._new.consumes is not None else None
        unfinished, injected = session[9], session[10]
        return None if unfinished or injected else KnownSession(rows.session_of(session[:9]))

    def knows(self, known: KnownSession) -> bool:
        return known.turn is None and (self._new.consumes is None or self._input is not None)

    def plan(self, known: KnownSession, now_ms: int | None) -> Plan | None:
        db = Recording(now_ms)
        if self._input is not None:
            db.known = (inputs.INPUT, (self._new.consumes,)), self._input
        self.result, leased, turn = lifecycle.begin_at_rest(
            db, known.session, self._new, self._claimant, injected=False
        )
        self._begun = rows.turn_digest(turn)
        consumed = (None, None) if self._input is None else (self._input[1], self._input[5])
        guard = (known.session.key, known.digest, None, None, *consumed, _NOT_INJECTED, 1)

        def settle(answer: tuple[int, ...]) -> None:
            known.session, known.digest = leased, rows.session_digest(leased)
            known.turn = KnownTurn(turn, answer[1], answer[2], journaled=False)

        return Plan(guard, db, settle)


def _leased(row: Row, lease: port.Lease) -> KnownSession | None:
    if not lifecycle.is_leased(row, lease):
        return None
    held = lifecycle.held_of(row)
    if held.injected or held.waits:
        return None
    turn = KnownTurn(held.turn, held.last_entry, held.next_segment, journaled=held.journaled)
    return KnownSession(held.session, turn)


def _is_held(known: KnownSession, lease: port.Lease, turn_id: str) -> bool:
    session, turn = known.session, known.turn
    return (
        turn is not None
        and turn.turn.record.turn_id == turn_id
        and session.fence == lease.fence
        and session.owner == lease.owner
    )


def _held(known: KnownSession, turn: KnownTurn) -> lifecycle.Held:
    saved = None if turn.saved is None else tuple(turn.saved.values())
    return lifecycle.Held(
        session=known.session,
        turn=turn.turn,
        injected=False,
        next_segment=turn.next_segment,
        journaled=turn.journaled,
        waits=False,
        last_entry=turn.last_entry,
        saved=saved,
    )


def _guard(known: KnownSession, turn: KnownTurn, without: int) -> Sequence[Value]:
    turn_id = turn.turn.record.turn_id
    return known.session.key, known.digest, turn_id, turn.digest, None, None, without, 0


def _written_turn(db: Recording) -> bytes:
    """Return the digest of the turn that was recorded last."""
    update = to_postgres(rows.UPDATE_TURN)
    for sql, values in reversed(db.statements):
        if sql == update:
            digest = values[4]
            assert isinstance(digest, bytes)
            return digest
    raise NotKnown


class GuardedWriter:
    """Sends the guarded writes of a group, on connections that one thread at a time uses."""

    def __init__(self, *, database_clock: bool, announce: Callable[[list[str]], None]) -> None:
        self._database_clock = database_clock
        self._announce = announce
        self._known: dict[str, KnownSession] = {}
        self._raw: psycopg.Connection[Row] | None = None
        self._pipeline: Pipeline | None = None
        self._read_at: tuple[int, float] | None = None

    def forget(self, session_id: str) -> None:
        """Forget a session that another kind of write has changed."""
        self._known.pop(session_id, None)

    def run(self, raw: psycopg.Connection[Row], jobs: list[Job[Any]]) -> list[Job[Any]]:
        """Send the guarded writes of *jobs* and commit; return the jobs that have to be run.

        Any error means that the connection is closed and the writes are `uncertain`.
        """
        first = {job.scope.session_id: job for job in reversed(jobs) if _is_guarded(job)}
        wanted = [first[session_id] for session_id in sorted(first)]  # as sessions are locked
        done: set[int] = set()
        self._use(raw)
        for _ in range(_ATTEMPTS):
            plans = self._plans(raw, wanted)
            if not plans:
                break
            failed = self._send(plans)
            if failed is None:
                done.update(id(job) for job, _ in plans)
                break
            if failed < 0:
                break
            refused = plans[failed][0]
            self.forget(_write_of(refused).session_id)
            wanted = [job for job, _ in plans if job is not refused]
        return [job for job in jobs if id(job) not in done]

    def _use(self, raw: psycopg.Connection[Row]) -> None:
        if self._raw is not raw:
            if self._pipeline is not None:
                self._pipeline.close()
            self._raw, self._pipeline, self._read_at = raw, Pipeline(raw), None
        if self._read_at is None and self._database_clock:
            found = raw.execute(b"SELECT " + NOW_MS).fetchone()
            assert found is not None
            self._read_at = int(found[0]), time.monotonic()

    def _lease_now_ms(self) -> int | None:
        """Return the server's time, no later than it is: what it last said, and the time since then."""
        if self._read_at is None:
            return None
        read_ms, at_s = self._read_at
        return read_ms + int((time.monotonic() - at_s) * 1000)

    def _plans(self, raw: psycopg.Connection[Row], jobs: list[Job[Any]]) -> list[tuple[Job[Any], Plan]]:
        self._load(raw, [job for job in jobs if not self._knows(_write_of(job))])
        now_ms = self._lease_now_ms()
        plans: list[tuple[Job[Any], Plan]] = []
        for job in jobs:
            write = _write_of(job)
            if not self._knows(write):
                continue
            try:
                plan = write.plan(self._known[write.session_id], now_ms)
            except Exception:  # noqa: S112 - `run` meets it again, and reports it
                continue
            if plan is not None:
                plans.append((job, plan))
        return plans

    def _knows(self, write: GuardedWrite) -> bool:
        known = self._known.get(write.session_id)
        return known is not None and write.knows(known)

    def _load(self, raw: psycopg.Connection[Row], jobs: list[Job[Any]]) -> None:
        """Read what is not known yet, for all jobs in one round trip."""
        if not jobs:
            return
        asked: list[tuple[GuardedWrite, list[psycopg.Cursor[Row]]]] = []
        with raw.pipeline():
            for write in map(_write_of, jobs):
                reads = write.reads()
                asked.append(
                    (
                        write,
                        [raw.cursor(binary=True).execute(to_postgres(sql), values) for sql, values in reads],
                    )
                )
        for write, cursors in asked:
            found = [row for cursor in cursors if (row := cursor.fetchone()) is not None]
            try:
                known = write.learn(found) if len(found) == len(cursors) else None
            except Exception:  # noqa: S112 - `run` meets it again, and reports it
                continue
            if known is not None:
                self._known.pop(write.session_id, None)
                self._known[write.session_id] = known
        while len(self._known) > _MAX_SESSIONS:
            self._known.pop(next(iter(self._known)))

    def _send(self, plans: list[tuple[Job[Any], Plan]]) -> int | None:
        """Commit the plans; return which of them failed, -1 if all may have, None if none has."""
        assert self._pipeline is not None
        begins: list[int] = []
        statements: list[Statement] = []
        for _, plan in plans:
            begins.append(len(statements))
            statements += [(_GUARD, plan.guard), *plan.db.statements]
        try:
            results = self._pipeline.transact(statements)
        except StatementFailed as failed:
            if failed.sqlstate[:2] not in _OF_ONE_WRITE or failed.index >= len(statements):
                return -1
            return max(place for place, begin in enumerate(begins) if begin <= failed.index)
        except BaseException:
            for job, _ in plans:
                _write_of(job).uncertain = True
                self.forget(_write_of(job).session_id)
            assert self._raw is not None
            self._raw.close()
            raise
        for (job, plan), begin in zip(plans, begins, strict=True):
            answer = read_ints(results[begin])
            plan.settle(answer)
            job.result, job.error = _write_of(job).result, None
            if plan.db.announced:
                self._announce(plan.db.announced)
        if self._database_clock:
            self._read_at = answer[0], time.monotonic()
        return None


def _is_guarded(job: Job[Any]) -> bool:
    return job.scope is not None and job.scope.guarded is not None


def _write_of(job: Job[Any]) -> GuardedWrite:
    assert job.scope is not None
    write: GuardedWrite = job.scope.guarded
    return write
