"""One SQLite file: one writer at a time that commits for many callers, and readers that never wait.

Theory of operation
-------------------
A write is a function of the connection. Callers queue theirs and line up for the pen; whoever holds it runs
everything that is queued in one transaction and commits once, so that thirty callers pay for one sync, and a
caller that is alone pays for no change of threads. Inside the transaction each job has a savepoint of its
own. Readers use connections of their own (WAL), one for each thread that reads at the moment.

Rules
-----
1. Acknowledged means on disk: WAL with `synchronous=FULL`, and `write` returns after the commit.
2. A job that raises undoes only itself. If the commit fails, every job of the group gets the error.
3. A job may be run twice, if SQLite gives up a transaction because of another one: it touches nothing but
   the connection it is given.
4. A connection never crosses a fork; the child is told to open the file anew.

Not here: tables. A component brings its own through `migrate`.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import apsw

from holdfast.errors import InvalidArgument, RecordCorrupt, SchemaTooNew, StoreError, StoreUnavailable

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 10_000
_MAX_GROUP: Final = 512
_MAX_IDLE_READERS: Final = 8

_PRAGMAS: Final = """
PRAGMA synchronous = FULL;
PRAGMA foreign_keys = ON;
PRAGMA journal_size_limit = 16777216;
"""

_VERSIONS: Final = """
CREATE TABLE IF NOT EXISTS holdfast_schema (
    component TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT
"""


class _Job(Generic[T]):
    """A write that waits for its transaction. `done` tells that there is an answer."""

    __slots__ = ("done", "error", "result", "run")

    result: T

    def __init__(self, run: Callable[[apsw.Connection], T]) -> None:
        self.run = run
        self.error: BaseException | None = None
        self.done = False


class _TransactionLost(Exception):
    """SQLite rolled the whole transaction back because of one job."""


class Database:
    """A SQLite file. `write` and `read` may be called from any thread."""

    def __init__(self, path: str | Path, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        self.path = Path(path).absolute()
        self._busy_timeout_ms = busy_timeout_ms
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self._closed = False
        self._readers: list[apsw.Connection] = []
        self._pen = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job[Any]] = queue.SimpleQueue()
        _create_file(self.path)
        try:
            self._writer = self._connect()
        except (apsw.Error, UnicodeError) as error:
            raise self._translated(error) from error

    def write(self, job: Callable[[apsw.Connection], T]) -> T:
        """Run *job* in a transaction; returns when that is on disk."""
        self.require_open()  # before the gate, which a fork may have left shut
        queued = _Job(job)
        with self._gate:
            self.require_open()
            self._jobs.put(queued)
        with self._pen:
            while not queued.done:
                self._write_group()
        if queued.error is not None:
            raise self._translated(queued.error)
        return queued.result

    def read(self, query: Callable[[apsw.Connection], T]) -> T:
        """Run *query* on a connection that sees every acknowledged write. One statement sees one state."""
        self.require_open()
        try:
            return self._read(query)
        except (apsw.Error, UnicodeError) as error:
            raise self._translated(error) from error

    def migrate(self, component: str, migrations: Sequence[str]) -> None:
        """Bring the tables of *component* to the last of *migrations*, whoever else does so now."""
        if self.read(lambda db: self._version(db, component)) != len(migrations):
            self.write(lambda db: self._migrate(db, component, migrations))

    def require_open(self) -> None:
        """Refuse to go on with a file that was closed, or that belongs to the parent process."""
        if self._closed:
            raise StoreUnavailable(f"the store {self.path} is closed")
        if os.getpid() != self._pid:
            raise StoreUnavailable(
                f"the store {self.path} was opened before this process was forked",
                hint="open it anew in the child process",
            )

    def close(self) -> None:
        """Finish what is queued and let go of the file. Twice, or after a fork, it does nothing."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            if self._closed:
                return
            self._closed = True
        with self._pen:
            while not self._jobs.empty():
                self._write_group()
            self._writer.close(True)
        while self._readers:
            self._readers.pop().close(True)

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path))
        patience = _Patience(self._busy_timeout_ms)
        connection.set_busy_handler(patience)
        try:
            _enter_wal(connection, patience)
            connection.execute(_PRAGMAS)
        except BaseException:
            connection.close(True)
            raise
        return connection

    # Migrations

    def _version(self, db: apsw.Connection, component: str) -> int:
        # `table_exists` would answer from what this connection knew before others made the table.
        if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holdfast_schema'").get is None:
            return 0
        found = db.execute("SELECT version FROM holdfast_schema WHERE component = ?", (component,)).get
        return int(found or 0)

    def _migrate(self, db: apsw.Connection, component: str, migrations: Sequence[str]) -> None:
        version = self._version(db, component)
        if version > len(migrations):
            raise SchemaTooNew(
                f"{self.path} has version {version} of the {component} tables, "
                f"this Holdfast knows versions up to {len(migrations)}",
                hint="upgrade Holdfast, or use another file",
            )
        db.execute(_VERSIONS)
        for migration in migrations[version:]:
            db.execute(migration)
        db.execute(
            "INSERT INTO holdfast_schema VALUES (?1, ?2) ON CONFLICT DO UPDATE SET version = ?2",
            (component, len(migrations)),
        )

    # The readers

    def _read(self, query: Callable[[apsw.Connection], T]) -> T:
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._connect()
        try:
            result = query(reader)
        except BaseException:
            reader.close(True)  # a statement left open would hold the next reader in the past
            raise
        if self._closed or len(self._readers) >= _MAX_IDLE_READERS:
            reader.close(True)
        else:
            self._readers.append(reader)
        return result

    # The writer

    def _write_group(self) -> None:
        """Commit what is queued, up to a bound. The caller holds the pen."""
        jobs = self._next_group()
        self._transact(jobs)
        for job in jobs:
            job.done = True

    def _next_group(self) -> list[_Job[Any]]:
        jobs: list[_Job[Any]] = []
        while len(jobs) < _MAX_GROUP and not self._jobs.empty():
            jobs.append(self._jobs.get())
        return jobs

    def _transact(self, jobs: list[_Job[Any]]) -> None:
        job = jobs[0]
        alone = len(jobs) == 1
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for job in jobs:
                self._attempt(job, alone)
            self._writer.execute("COMMIT")
        except _TransactionLost:
            self._transact_each([other for other in jobs if other is not job])
        except BaseException as error:
            self._roll_back()
            for job in jobs:
                job.error = error

    def _attempt(self, job: _Job[Any], alone: bool) -> None:
        """Run one job. Its failure is its own, unless SQLite gave up the transaction."""
        if not alone:
            self._writer.execute("SAVEPOINT job")
        try:
            job.result = job.run(self._writer)
        except BaseException as error:
            if alone:
                raise
            job.error = error
            if not self._writer.in_transaction:
                raise _TransactionLost from None
            self._writer.execute("ROLLBACK TO job")
        if not alone:
            self._writer.execute("RELEASE job")

    def _transact_each(self, jobs: list[_Job[Any]]) -> None:
        for job in jobs:
            job.error = None
            self._transact([job])

    def _roll_back(self) -> None:
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except apsw.Error:  # the transaction is over either way; the caller hears of the first error
            pass

    # What went wrong, in words

    def _translated(self, error: BaseException) -> BaseException:
        match error:
            case apsw.Error():
                translated: BaseException = _store_error(error, self.path)
            case UnicodeDecodeError():
                translated = _damaged(f"{self.path} holds text that is not UTF-8")
            case UnicodeEncodeError():
                translated = InvalidArgument("a string holds a lone surrogate")
            case _:
                return error
        translated.__cause__ = error
        return translated


class _Patience:
    """How long to wait for another process. Short steps, because SQLite's own let it starve."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._until = 0.0

    def __call__(self, attempt: int) -> bool:
        if attempt == 0:
            self._until = time.monotonic() + self._timeout_s
        elif time.monotonic() > self._until:
            return False
        time.sleep(min(0.000_2 * (attempt + 1), 0.005))
        return True


def _enter_wal(connection: apsw.Connection, patience: _Patience) -> None:
    """Switch to WAL. SQLite asks no busy handler here, so the waiting is ours."""
    attempt = 0
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").get
            break
        except apsw.BusyError:
            if not patience(attempt):
                raise
            attempt += 1
    if mode != "wal":
        raise StoreUnavailable(
            f"{connection.filename} cannot be used in WAL mode",
            hint="put the file on a local disk that this process may write to",
        )


def _create_file(path: Path) -> None:
    """Make the file and its directory, for this user only. What exists keeps its mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except (OSError, ValueError) as error:
        raise StoreUnavailable(f"cannot open {path}: {error}", hint="check the path and its mode") from error


def _store_error(error: apsw.Error, path: Path) -> StoreError:
    match error:
        case apsw.FullError():
            return StoreUnavailable(
                f"the disk is full, {path} was not written", hint="free space, then retry"
            )
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return StoreUnavailable(f"{path} is locked by another process", hint="retry, or end that process")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreUnavailable(
                f"{path} cannot be written to", hint="check the mode of file and directory"
            )
        case apsw.CantOpenError():
            return StoreUnavailable(
                f"{path} cannot be opened", hint="check the path, its mode and free space"
            )
        case apsw.IOError():
            return StoreUnavailable(
                f"the disk failed on {path}: {error}", hint="check the disk and its free space"
            )
        case apsw.NotADBError():
            return StoreError(f"{path} is not a SQLite database", hint="name another file, or move it away")
        case apsw.CorruptError():
            return _damaged(f"{path} is damaged: {error}")
        case _:
            return StoreError(f"SQLite refused on {path}: {error}")


def _damaged(message: str) -> RecordCorrupt:
    """A record so broken that SQLite could not hand it over, hence without its name."""
    error = RecordCorrupt("")
    error.message = message
    return error
