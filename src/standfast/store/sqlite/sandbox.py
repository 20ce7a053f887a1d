"""Sandbox sessions in one SQLite file that several processes may use at once.

Rules
-----
1. Whoever changes a record reads it in the same transaction (`BEGIN IMMEDIATE`): a comparison made
   there is a compare-and-set.
2. The lock of a session keeps other processes from starting what they could not commit; it is not what
   keeps the data right. The epoch does that, also where there are no locks.
3. Lock files are never deleted: a process that waits on a deleted one would hold a lock of its own.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, TypeVar

import apsw
import msgspec

from standfast.errors import StoreUnavailable
from standfast.model.approval import Approval, Decision
from standfast.model.call import SettledCall
from standfast.model.ids import SessionId
from standfast.ports.sandbox_store import StoredSession, WaitingRun
from standfast.store import memory as rules
from standfast.store.sqlite import approvals, schema
from standfast.store.sqlite.approvals import insert as insert_approval
from standfast.store.sqlite.database import Database

try:
    import fcntl
except ImportError:  # no flock on this platform: rule 2
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

_MAX_IDLE_LOCKS: Final = 128

_HEADS: Final = "SELECT id, epoch, expires_at, meta, head_digest, length(state) FROM sandbox_sessions"


class SqliteSandboxStore:
    """A `SandboxStore` in the file *path*, made if need be, for this user only."""

    durable = True

    def __init__(self, path: str | Path) -> None:
        self.database = Database(path, {schema.COMPONENT: schema.MIGRATIONS})
        self._locks = _FileLocks(self.database.path.parent / "locks")

    def hold(self, session_id: str) -> AbstractContextManager[None]:
        self.database.require_open()
        return _Held(self._locks, SessionId(session_id))

    def close(self) -> None:
        self.database.close()
        self._locks.close()

    # Sessions

    def load_session(self, session_id: str) -> StoredSession | None:
        sql = (
            "SELECT id, epoch, expires_at, meta, head_digest, state_digest, state "
            "FROM sandbox_sessions WHERE id = ?"
        )
        row = self._row(sql, session_id)
        return None if row is None else schema.session_of(row)

    def stamp(self, session_id: str) -> tuple[int | None, bool]:
        sql = (
            "SELECT (SELECT epoch FROM sandbox_sessions WHERE id = ?1), "
            "EXISTS (SELECT 1 FROM sandbox_runs WHERE session_id = ?1)"
        )
        ((epoch, waits),) = self.database.read(lambda db: db.execute(sql, (session_id,)).fetchall())
        return None if epoch is None else int(epoch), bool(waits)

    def session_state_bytes(self, session_id: str) -> int:
        row = self._row(f"{_HEADS} WHERE id = ?", session_id)
        if row is None:
            return 0
        schema.session_head_of(row)
        return int(row[-1])

    def list_sessions(self) -> list[StoredSession]:
        heads = self.database.read(lambda db: db.execute(_HEADS).fetchall())
        return sorted(map(schema.session_head_of, heads), key=rules.session_order)

    def save_session(self, session: StoredSession, *, finished_run: str | None = None) -> StoredSession:
        next_one = msgspec.structs.replace(session, epoch=session.epoch + 1)
        row = schema.session_row(next_one) if session.epoch else ()  # digests are made off the writer

        def job(db: apsw.Connection) -> StoredSession:
            saved = _update_session(db, session, next_one, row) if row else _insert_session(db, session)
            if finished_run is not None:
                _forget_run(db, finished_run)
            return saved

        return self.database.write(job)

    def delete_session(self, session_id: str) -> bool:
        def job(db: apsw.Connection) -> bool:
            existed = _retire_session(db, session_id)
            sql = "SELECT run_id FROM sandbox_runs WHERE session_id = ?"
            runs = db.execute(sql, (session_id,)).fetchall()
            for (run_id,) in runs:
                _forget_run(db, str(run_id))
            pending = f"{approvals.APPROVALS} WHERE session_id = ? AND state = 'pending'"
            approvals.cancel(db, db.execute(pending, (session_id,)).fetchall())
            return existed or bool(runs)

        return self.database.write(job)

    # Snapshots

    def put_snapshot(self, snapshot_id: str, session_id: str, data: bytes, created_at: int) -> None:
        row = schema.snapshot_row(snapshot_id, session_id, created_at, data)
        self.database.write(lambda db: _write_snapshot(db, row))

    def get_snapshot(self, snapshot_id: str) -> bytes | None:
        sql = (
            "SELECT snapshot_id, session_id, created_at, digest, data "
            "FROM sandbox_snapshots WHERE snapshot_id = ?"
        )
        row = self._row(sql, snapshot_id)
        return None if row is None else schema.snapshot_of(row)

    # Waiting runs

    def park(self, run: WaitingRun, snapshot: bytes, approvals: list[Approval]) -> None:
        parked = schema.run_row(msgspec.structs.replace(run, owner=None))
        stored = schema.snapshot_row(run.snapshot_id, run.session_id, run.created_at, snapshot)
        requested = [schema.approval_row(approval) for approval in approvals]

        def job(db: apsw.Connection) -> None:
            other = db.execute("SELECT run_id FROM sandbox_runs WHERE session_id = ?", (run.session_id,)).get
            if other is not None and other != run.run_id:
                raise rules.already_waiting(run.session_id, other)
            _write_run(db, parked)
            _write_snapshot(db, stored)
            for row in requested:
                insert_approval(db, row)

        self.database.write(job)

    def waiting_run(self, session_id: str) -> WaitingRun | None:
        row = self._row(
            "SELECT run_id, session_id, digest, body FROM sandbox_runs WHERE session_id = ?", session_id
        )
        return None if row is None else schema.run_of(row)

    def get_run(self, run_id: str) -> WaitingRun | None:
        return self.database.read(lambda db: _run(db, run_id))

    def claim_run(self, run_id: str, owner: str, previous: str | None) -> bool:
        return self.database.write(lambda db: _change_owner(db, run_id, owner, previous))

    def release_run(self, run_id: str, owner: str) -> None:
        self.database.write(lambda db: _change_owner(db, run_id, None, owner))

    def drop_run(self, run_id: str) -> bool:
        return self.database.write(lambda db: _forget_run(db, run_id))

    # Approvals

    def approvals(self, *, session_id: str | None = None, run_id: str | None = None) -> list[Approval]:
        return self.database.read(lambda db: approvals.find_all(db, session_id=session_id, run_id=run_id))

    def approval(self, approval_id: str) -> Approval | None:
        return self.database.read(lambda db: approvals.find(db, approval_id))

    def decide(
        self, approval_id: str, decision: Decision, *, now_ms: int, edited_digest: str | None
    ) -> Approval:
        return self.database.write(
            lambda db: approvals.decide(db, approval_id, decision, now_ms, edited_digest)
        )

    # The journal of calls

    def intend(self, run_id: str, call_id: int, request_digest: str) -> None:
        row = schema.call_row(run_id, call_id, request_digest, None)

        def job(db: apsw.Connection) -> None:
            db.execute("INSERT INTO sandbox_calls VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
            if not db.changes():
                raise rules.call_in_the_way(run_id, call_id)

        self.database.write(job)

    def settle(self, run_id: str, call_id: int, settled: SettledCall) -> None:
        row = schema.call_row(run_id, call_id, settled.record.request_digest, settled)

        def job(db: apsw.Connection) -> None:
            db.execute(
                "INSERT INTO sandbox_calls VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE "
                "SET digest = ?4, outcome = ?5 "
                "WHERE request_digest = ?3 AND (outcome IS NULL OR outcome = ?5)",
                row,
            )
            if not db.changes():
                raise rules.call_in_the_way(run_id, call_id)

        self.database.write(job)

    def found(self, run_id: str, call_id: int, request_digest: str) -> SettledCall | Literal[True] | None:
        sql = (
            "SELECT run_id, call_id, request_digest, digest, outcome "
            "FROM sandbox_calls WHERE run_id = ? AND call_id = ?"
        )
        row = self._row(sql, run_id, call_id)
        if row is None:
            return None
        found = schema.call_of(row)
        if row[2] != request_digest:
            raise rules.call_in_the_way(run_id, call_id)
        return found

    def _row(self, sql: str, *keys: str | int) -> schema.Row | None:
        return self.database.read(lambda db: db.execute(sql, keys).fetchone())


def _insert_session(db: apsw.Connection, session: StoredSession) -> StoredSession:
    """A new session starts above every epoch that a deleted one had."""
    retired = db.execute("SELECT epoch FROM sandbox_retired").get or 0
    saved = msgspec.structs.replace(session, epoch=retired + 1)
    sql = "INSERT INTO sandbox_sessions VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    db.execute(sql, schema.session_row(saved))
    if not db.changes():
        raise rules.stale_session(session)
    return saved


def _update_session(
    db: apsw.Connection, session: StoredSession, next_one: StoredSession, row: schema.Row
) -> StoredSession:
    db.execute(
        "UPDATE sandbox_sessions SET epoch = ?2, expires_at = ?3, meta = ?4, head_digest = ?5, "
        "state_digest = ?6, state = ?7 WHERE id = ?1 AND epoch = ?8",
        (*row, session.epoch),
    )
    if not db.changes():
        raise rules.stale_session(session)
    return next_one


def _retire_session(db: apsw.Connection, session_id: str) -> bool:
    """Delete a session unread: one that is damaged can be destroyed too. (RETURNING reads all columns.)"""
    epoch = db.execute("SELECT epoch FROM sandbox_sessions WHERE id = ?", (session_id,)).get
    if epoch is None:
        return False
    db.execute("DELETE FROM sandbox_sessions WHERE id = ?", (session_id,))
    db.execute(
        "INSERT INTO sandbox_retired VALUES (0, ?1) ON CONFLICT DO UPDATE SET epoch = max(epoch, ?1)",
        (epoch,),
    )
    return True


def _write_snapshot(db: apsw.Connection, row: schema.Row) -> None:
    db.execute("INSERT OR REPLACE INTO sandbox_snapshots VALUES (?, ?, ?, ?, ?)", row)


def _run(db: apsw.Connection, run_id: str) -> WaitingRun | None:
    sql = "SELECT run_id, session_id, digest, body FROM sandbox_runs WHERE run_id = ?"
    row = db.execute(sql, (run_id,)).fetchone()
    return None if row is None else schema.run_of(row)


def _write_run(db: apsw.Connection, row: schema.Row) -> None:
    db.execute("INSERT OR REPLACE INTO sandbox_runs VALUES (?, ?, ?, ?)", row)


def _change_owner(db: apsw.Connection, run_id: str, owner: str | None, previous: str | None) -> bool:
    run = _run(db, run_id)
    if run is None or run.owner != previous:
        return False
    _write_run(db, schema.run_row(msgspec.structs.replace(run, owner=owner)))
    return True


def _forget_run(db: apsw.Connection, run_id: str) -> bool:
    """Delete a run and its calls, unread, and cancel what it still asked for."""
    db.execute("DELETE FROM sandbox_calls WHERE run_id = ?", (run_id,))
    approvals.cancel_of_run(db, run_id)
    db.execute("DELETE FROM sandbox_runs WHERE run_id = ?", (run_id,))
    return db.changes() > 0


class _FileLocks:
    """Open lock files by session. A lock belongs to an open file, so no two holders share one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._guard = threading.Lock()
        self._idle: OrderedDict[str, int] = OrderedDict()
        self._closed = False

    def acquire(self, session_id: str) -> int:
        """Wait for the session's lock; gives what `release` wants back."""
        if fcntl is None:
            return -1
        with self._guard:
            held = self._idle.pop(session_id, None)
        if held is None:
            held = _outside(lambda: self._open(session_id))
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
        except BaseException as error:
            os.close(held)
            if isinstance(error, OSError):
                raise StoreUnavailable(f"session {session_id!r} cannot be locked: {error}") from error
            raise
        return held

    def _open(self, session_id: str) -> int:
        """Open a lock file. The directory is made with the first: reading needs no locks."""
        path = self._directory / f"{session_id}.lock"
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def release(self, session_id: str, held: int) -> None:
        if fcntl is None:
            return
        fcntl.flock(held, fcntl.LOCK_UN)
        for surplus in self._give_back(session_id, held):
            os.close(surplus)

    def _give_back(self, session_id: str, held: int) -> list[int]:
        """Keep the open file for the next time; returns those that are one too many."""
        with self._guard:
            if self._closed or session_id in self._idle:
                return [held]
            self._idle[session_id] = held
            return [self._idle.popitem(last=False)[1]] if len(self._idle) > _MAX_IDLE_LOCKS else []

    def close(self) -> None:
        with self._guard:
            self._closed = True
            while self._idle:
                os.close(self._idle.popitem()[1])


class _Held:
    """The lock of one session, while the `with` lasts."""

    __slots__ = ("_held", "_locks", "_session_id")

    def __init__(self, locks: _FileLocks, session_id: str) -> None:
        self._locks = locks
        self._session_id = session_id
        self._held = -1

    def __enter__(self) -> None:
        self._held = self._locks.acquire(self._session_id)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._locks.release(self._session_id, self._held)


def _outside(call: Callable[[], T]) -> T:
    """Run *call*, which touches the file system; its failure is the store's."""
    try:
        return call()
    except OSError as error:
        raise StoreUnavailable(
            f"a lock file cannot be made: {error}", hint="check the data directory"
        ) from error
