"""One SQLite file: one writer at a time that commits for many callers, and readers that never wait.

Theory of operation
-------------------
A write is a function of the connection. `write` blocks and may run it on the caller's own thread;
`write_soon` is awaited and leaves it to the writer thread. Either way many callers share one transaction and
one sync (see `writer`). Readers use connections of their own (WAL), one for each thread that reads at the
moment.

Rules
-----
1. Acknowledged means on disk: WAL with `synchronous=FULL`, and an answer comes after the commit.
2. A job that raises undoes only itself. If the commit fails, every job of the group gets the error.
3. A job may be run twice, if SQLite gives up a transaction or another job of its group fails: it touches
   nothing but the connection it is given.
4. A connection never crosses a fork; the child is told to open the file anew.

Not here: tables. A component brings its own through `migrate`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import apsw

from holdfast.errors import SchemaTooNew, StoreUnavailable
from holdfast.store.sqlite.connection import bytes_on_disk, connect, create_file, translated
from holdfast.store.sqlite.writer import GroupWriter, Job

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 10_000
MAX_READERS: Final = 8

_VERSIONS: Final = """
CREATE TABLE IF NOT EXISTS holdfast_schema (
    component TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT
"""


class Database:
    """A SQLite file. `write` and `read` may be called from any thread, `write_soon` from any loop."""

    def __init__(self, path: str | Path, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        self.path = Path(path).absolute()
        self._busy_timeout_ms = busy_timeout_ms
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self._closed = False
        self._readers: list[apsw.Connection] = []
        create_file(self.path)
        try:
            self._writer = self._connect()
        except (apsw.Error, UnicodeError) as error:
            raise self._translated(error) from error
        self._group = GroupWriter(self._writer, self._translated)
        self._jobs = self._group.jobs

    def write(self, job: Callable[[apsw.Connection], T]) -> T:
        """Run *job* in a transaction; returns when that is on disk."""
        self.require_open()  # before the gate, which a fork may have left shut
        queued = Job(job)
        with self._gate:
            self.require_open()
            self._jobs.put(queued)
        self._group.finish(queued)
        if queued.error is not None:
            raise self._translated(queued.error)
        return queued.result

    def write_soon(self, job: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Run *job* in a transaction, off the loop; the answer comes when that is on disk.

        Whoever stops waiting takes nothing back: the job may be written all the same.
        """
        import asyncio  # blocking callers do not pay for it

        self.require_open()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._gate:
            self.require_open()
            self._jobs.put(Job(job, future))
            self._group.wake()
        return future

    def read(self, query: Callable[[apsw.Connection], T]) -> T:
        """Run *query* on a connection that sees every acknowledged write. One statement sees one state."""
        self.require_open()
        try:
            return self._read(query)
        except (apsw.Error, UnicodeError) as error:
            raise self._translated(error) from error

    def read_consistently(self, query: Callable[[apsw.Connection], T]) -> T:
        """Like `read`, and all statements of *query* see one state."""

        def in_transaction(db: apsw.Connection) -> T:
            db.execute("BEGIN")
            try:
                return query(db)
            finally:
                db.execute("COMMIT")

        return self.read(in_transaction)

    def migrate(self, component: str, migrations: Sequence[str]) -> None:
        """Bring the tables of *component* to the last of *migrations*, whoever else does so now."""
        if self.read(lambda db: self._version(db, component)) != len(migrations):
            self.write(lambda db: self._migrate(db, component, migrations))

    def compact(self) -> None:
        """Give the space of what was deleted back to the file system."""
        self.require_open()
        with self._group.pen:
            self.require_open()
            try:
                self._writer.execute("VACUUM")
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except apsw.Error as error:
                raise self._translated(error) from error

    def bytes_on_disk(self) -> int:
        """The size of the file with its write-ahead log."""
        return bytes_on_disk(self.path)

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
        self._group.close()
        while self._readers:
            self._readers.pop().close(True)

    def _connect(self) -> apsw.Connection:
        return connect(self.path, self._busy_timeout_ms)

    def _translated(self, error: BaseException) -> BaseException:
        return translated(error, self.path)

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
        if self._closed or len(self._readers) >= MAX_READERS:
            reader.close(True)
        else:
            self._readers.append(reader)
        return result
