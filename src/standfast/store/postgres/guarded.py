"""Writes of turns that need no read first, because this process has cached the rows that they would read.

Theory of operation
-------------------
The process that holds a session's lease wrote the rows of the session and its turn itself, and the process
that ended a session's last turn wrote the row that its next turn begins with. So the functions of `store.sql`
compute the statements of a write from the cached rows. The statements are sent together with a *guard*, which
locks the session, or writes its new row, and fails unless the digests of its rows still equal those of the
cached rows. Guard, writes and commit take one round trip. Rows that are not cached are read first, for all
writes of a group at once.

If the guard or any statement fails, nothing was written, and the write is run like any other: it locks the
session, reads its rows, and reports the error.

Rules
-----
1. A digest covers its whole row. If it is the same, the stored row equals the cached one; damage to other
   columns has no effect, because they are not read.
2. The guard checks for data that is not part of these rows: injected messages, waits, open approvals. Unique
   indexes reject an unfinished turn and a repeated idempotency key.
3. If the answer is lost, `run` checks, under the session's lock, whether the write was committed before it
   writes again.
4. The process that holds the lease numbers the entries of the journal, in a range after all earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from standfast.errors import LeaseLost
from standfast.model.session import SessionHead
from standfast.ports import session_store as port
from standfast.store import rules
from standfast.store.postgres.dialect import ENTRIES_PER_WRITE, is_query, to_postgres
from standfast.store.postgres.pipeline import Statement
from standfast.store.sql import inputs, rows
from standfast.store.sql import turns as lifecycle
from standfast.store.sql.connection import ResultRows, Row
from standfast.store.sql.rows import StoredSession, StoredTurn

# session, its digest, input, its digest, the values of `rows.UPDATE_LEASE` but the last
_BEGIN: Final = b"SELECT standfast_begin($1, $2, $3, $4, $5, $6, $7, $8)"
# session, its digest, turn, its digest, whether no message may be injected
_HOLDS: Final = b"SELECT standfast_holds($1, $2, $3, $4, $5)"
# session, its digest, turn, its digest, the values of `rows.UPDATE_SESSION` and `UPDATE_TURN` but the last
_END: Final = (
    b"SELECT standfast_end($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"
)

_JOURNALED: Final = "SELECT digest FROM journal WHERE turn_id = ? AND name = ? AND kind = ?"
_TURN_DIGEST: Final = "SELECT digest FROM turns WHERE turn_id = ?"


class NotKnown(Exception):
    """A write needs a row that is not cached."""


class KnownTurn(msgspec.Struct):
    """The cached row of a session's unfinished turn. `saved` is its journal."""

    turn: StoredTurn
    digest: bytes
    last_entry: int
    next_segment: int
    journaled: bool
    saved: lifecycle.SavedEntries = msgspec.field(default_factory=lifecycle.SavedEntries)

    def __post_init__(self) -> None:
        if self.journaled:
            self.saved.entries = None

    def add(self, entries: tuple[port.JournalEntry, ...]) -> None:
        """Record that *entries* were saved."""
        self.last_entry += len(entries)
        self.journaled = self.journaled or bool(entries)
        self.saved.add(entries)


class KnownSession:
    """The cached row of a session, with its unfinished turn if it has one."""

    __slots__ = ("digest", "session", "turn")

    def __init__(self, session: StoredSession, turn: KnownTurn | None = None) -> None:
        self.session = session
        self.digest = rows.session_digest(session)
        self.turn = turn


class StatementRecorder:
    """Records the statements of a write. It implements `store.sql.connection.Connection`.

    It can answer only the query in `known`; any other query raises `NotKnown`. Leases use *now_ms*, or the
    claimant's clock if it is None.
    """

    indexes_journal = True

    def __init__(self, now_ms: int | None) -> None:
        self._now_ms = now_ms
        self.known: tuple[tuple[str, tuple[Any, ...]], Row] | None = None
        self.statements: list[Statement] = []
        self.announced: list[str] = []

    def execute(self, sql: str, values: Sequence[Any] = ()) -> ResultRows:
        if not is_query(sql):
            self.statements.append((to_postgres(sql), values))
            return _NO_ROW
        if self.known is None or self.known[0] != (sql, tuple(values)):
            raise NotKnown
        return _KnownRow(self.known[1])

    def insert_new(
        self, sql: str, values: Sequence[Any], refusal: Callable[..., Exception], *about: Any
    ) -> None:
        self.statements.append((to_postgres(sql), values))

    def take(self, sql: str) -> Sequence[Any]:
        """Return the values of the statement *sql*, and leave it out: the guard does what it says."""
        place = [one for one, _ in self.statements].index(to_postgres(sql))
        return self.statements.pop(place)[1]

    def lock_sessions(self, session_ids: Iterable[str]) -> None:
        pass  # the guard locks it

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


_NO_ROW: Final = _KnownRow(None)


class GuardedPlan(NamedTuple):
    """A guard and the statements after it. `settle` is called with the guard's answer."""

    guard: Statement
    db: StatementRecorder
    settle: Callable[[tuple[int, ...]], None]


class GuardedWrite(Protocol):
    """A write to one session that can be sent with a guard."""

    session_id: str
    result: Any
    uncertain: bool
    """Whether it was sent and its answer was lost."""

    def knows(self, known: KnownSession) -> bool:
        """Return whether *known* has all the rows that the write needs."""

    def reads(self) -> lifecycle.Reads:
        """Return the statements that read the rows it needs, the session's first."""

    def learn(self, found: list[Row]) -> KnownSession | None:
        """Return the session in the rows that were read, None if the write cannot be based on it."""

    def plan(self, known: KnownSession, now_ms: int | None) -> GuardedPlan | None:
        """Return the statements of the write, None if it must be run without a guard."""


class _LeasedWrite:
    """A write of the turn *turn_id*, which runs under *lease*; *content* is what the caller writes."""

    def __init__(self, lease: port.Lease, turn_id: str, content: object) -> None:
        self.session_id = lease.session_id
        self.uncertain = False
        self._lease, self.turn_id, self._content = lease, turn_id, content

    def repeats(self, lease: port.Lease, content: object) -> bool:
        return self._lease == lease and self._content is content

    def reads(self) -> lifecycle.Reads:
        return lifecycle.commit_reads(self.turn_id)

    def learn(self, found: list[Row]) -> KnownSession | None:
        if not lifecycle.is_leased(found[0], self._lease):
            return None
        held = lifecycle.held_of(found[0])
        if held.injected or held.waits:
            return None
        digest = rows.turn_digest(held.turn)
        turn = KnownTurn(held.turn, digest, held.last_entry, held.next_segment, journaled=held.journaled > 0)
        return KnownSession(held.session, turn)

    def knows(self, known: KnownSession) -> bool:
        session, turn, lease = known.session, known.turn, self._lease
        return (
            turn is not None
            and turn.turn.record.turn_id == self.turn_id
            and session.fence == lease.fence
            and session.owner == lease.owner
        )


class GuardedSave(_LeasedWrite):
    """`SessionStore.save` without blobs, waits and approvals."""

    def __init__(self, lease: port.Lease, save: port.Save) -> None:
        super().__init__(lease, save.turn_id, save)
        self._save = save
        self._first: tuple[str, str, str] = "", "", ""
        self._sent: set[bytes] = set()
        """The digests of the first entry, one per attempt, because its number differs."""
        self.result: port.Saved

    def run(self, db: Any) -> port.Saved:
        """Write without a guard."""
        if self.uncertain and db.execute(_JOURNALED, self._first).get in self._sent:
            return self.result
        return lifecycle.save(db, self._lease, self._save)

    def plan(self, known: KnownSession, now_ms: int | None) -> GuardedPlan | None:
        turn, db = known.turn, StatementRecorder(now_ms)
        assert turn is not None
        place = lifecycle.SavePlace(
            known.session.key, turn.last_entry, turn.turn.record.cancel_requested, injected=False
        )
        self.result, _ = lifecycle.save_at(db, place, self._save)
        made = self.result.checkpoint
        entries = self._save.entries if made is None else (*self._save.entries, made)
        if not entries or turn.last_entry % ENTRIES_PER_WRITE + len(entries) >= ENTRIES_PER_WRITE:
            return None
        _, turn_id, name, kind, digest = db.statements[0][1][:5]
        self._first = turn_id, name, kind  # type: ignore[assignment]
        self._sent.add(digest)  # type: ignore[arg-type]
        guard = _HOLDS, (*_digests(known, turn), int(made is not None))
        return GuardedPlan(guard, db, lambda answer: turn.add(entries))


class GuardedCommit(_LeasedWrite):
    """`SessionStore.commit` of a turn that writes only its nodes and, if it is kept, its journal."""

    def __init__(self, lease: port.Lease, commit: port.TurnCommit, entries: bytes) -> None:
        super().__init__(lease, commit.turn_id, commit)
        self._commit, self._entries = commit, entries
        self._ended: bytes = b""
        self.result: SessionHead | port.CommitRefused

    def run(self, db: Any) -> SessionHead | port.CommitRefused:
        """Write without a guard."""
        if self.uncertain and db.execute(_TURN_DIGEST, (self._commit.turn_id,)).get == self._ended:
            return self.result
        return lifecycle.commit(db, self._lease, self._commit, self._entries)

    def plan(self, known: KnownSession, now_ms: int | None) -> GuardedPlan | None:
        turn, db = known.turn, StatementRecorder(now_ms)
        assert turn is not None
        if rules.refuse_commit(self._commit, turn.turn.record.cancel_requested, injected=False) is not None:
            return None
        after = lifecycle.commit_held(db, _held(known, turn), self._commit, self._entries)
        session_row, turn_row = db.take(rows.UPDATE_SESSION)[:-1], db.take(rows.UPDATE_TURN)[:-1]
        self.result, self._ended = after.head, turn_row[4]
        guard = _END, (*_digests(known, turn), *session_row, *turn_row)

        def settle(answer: tuple[int, ...]) -> None:
            known.session, known.digest, known.turn = after, session_row[4], None

        return GuardedPlan(guard, db, settle)


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
        """The digest of the turn as it was sent."""
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

    def plan(self, known: KnownSession, now_ms: int | None) -> GuardedPlan | None:
        db = StatementRecorder(now_ms)
        if self._input is not None:
            db.known = (inputs.INPUT, (self._new.consumes,)), self._input
        self.result, leased, turn = lifecycle.begin_at_rest(
            db, known.session, self._new, self._claimant, injected=False
        )
        lease, digest = db.take(rows.UPDATE_LEASE)[:-1], db.statements[-1][1][10]
        assert isinstance(digest, bytes)  # that of the turn, which is inserted last
        self._begun = digest
        consumed = (None, None) if self._input is None else (self._input[1], self._input[5])
        guard = _BEGIN, (known.session.key, known.digest, *consumed, *lease)

        def settle(answer: tuple[int, ...]) -> None:
            _, entry, segment = answer
            known.session, known.digest = leased, lease[3]
            known.turn = KnownTurn(turn, digest, entry, segment, journaled=False)

        return GuardedPlan(guard, db, settle)


def _held(known: KnownSession, turn: KnownTurn) -> lifecycle.HeldTurn:
    saved = turn.saved.entries
    return lifecycle.HeldTurn(
        session=known.session,
        turn=turn.turn,
        injected=False,
        next_segment=turn.next_segment,
        journaled=turn.journaled,
        waits=False,
        last_entry=turn.last_entry,
        saved=None if saved is None else tuple(saved.values()),
    )


def _digests(known: KnownSession, turn: KnownTurn) -> tuple[int, bytes, str, bytes]:
    """Return the keys and digests of the rows of a session and its turn, as they are known."""
    return known.session.key, known.digest, turn.turn.record.turn_id, turn.digest
