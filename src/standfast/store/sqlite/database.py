"""One SQLite file: one writer that commits for many callers, and readers that never wait.

Theory of operation
-------------------
Writes are jobs that share transactions (see `group_writer`). Readers use connections of their own (WAL), one
for each thread that reads at the moment.

Rules
-----
1. An acknowledged write is on disk: WAL with `synchronous=FULL`, and a method returns after the commit.
2. A connection is never used after a fork; the child process has to open the file again.
3. A file that this process cannot write to is opened read-only (see `connection`).
4. Every page of the file has a checksum (see `connection`). A file without checksums is upgraded before
   anything else uses it.

Not here: tables. Each component defines its own as migrations (see `schema`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import apsw

from standfast.durable.prompt_future import PromptFuture
from standfast.errors import StandfastError, StoreUnavailable
from standfast.store.sql.group_writer import GroupWriter, Haste, Job, WriteScope
from standfast.store.sqlite import connection
from standfast.store.sqlite.connection import SqliteConnection
from standfast.store.sqlite.schema import Components, has_old_tables, is_behind, migrate_all, refuse_newer

if TYPE_CHECKING:
    import asyncio
    from tempfile import TemporaryDirectory

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 10_000
UPGRADE_TIMEOUT_MS: Final = 60_000
"""How long to wait for other programs before a file without checksums can be upgraded."""

MAX_READERS: Final = 8

_CHECKPOINT_PAGES: Final = 1000
"""The length of the write-ahead log at which it is copied to the file."""
_SLOW_S: Final = 0.003
"""The longest average commit for which a loop's thread writes by itself."""
NO_COMPONENTS: Final[Components] = MappingProxyType({})


class Database:
    """A SQLite file. `write` and `read` may be called from any thread, `write_soon` from any loop.

    *components* are the migrations of the file's tables, by component name. All of them are applied, once,
    even if several programs open the file concurrently.
    """

    def __init__(
        self,
        path: str | Path,
        components: Components = NO_COMPONENTS,
        *,
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    ) -> None:
        self.path = Path(path).absolute()
        self._busy_timeout_ms = busy_timeout_ms
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self._closed = False
        self._readers: list[SqliteConnection] = []
        self._group: SqliteWriter | None = None
        self._private: TemporaryDirectory[str] | None = None
        self._read_path = self.path
        self._for_writing = connection.can_write(self.path)
        try:
            if self._for_writing:
                self._open_for_writing(components)
            else:
                self._open_for_reading(components)
        except (apsw.Error, UnicodeError) as error:
            self.close()
            raise self._translated(error) from error
        except BaseException:
            self.close()
            raise

    def _open_for_writing(self, components: Components) -> None:
        connection.create_file(self.path)
        patience = connection.LockWait(max(self._busy_timeout_ms, UPGRADE_TIMEOUT_MS))
        connection.ensure_checksums(self.path, patience, lambda db: migrate_all(db, components, self.path))
        self._group = SqliteWriter(self._connect(), self._translated)
        if self.read(lambda db: is_behind(db, components)):
            self.write(lambda db: migrate_all(db, components, self.path))

    def _open_for_reading(self, components: Components) -> None:
        """Open the file in place, or a private copy that can be upgraded."""
        with contextlib.suppress(apsw.CantOpenError):
            reader = self._connect()
            self._readers.append(reader)
            refuse_newer(reader, components, self.path)
            if not has_old_tables(reader, components):
                return
            self._readers.pop().close(True)
        self._private, self._read_path = connection.copy_to_private_directory(self.path)
        Database(self._read_path, components).close()

    @property
    def writable(self) -> bool:
        """Whether this process may write to the file; if not, `write` raises `StoreUnavailable`."""
        return self._group is not None

    def write(self, job: Callable[[SqliteConnection], T], scope: WriteScope | None = None) -> T:
        """Run *job* in a transaction; return when it is on disk."""
        self.require_open()  # first, because a fork may have left the lock taken
        queued = Job(job)
        with self._gate:
            group = self._require_writable()
            group.jobs.put(queued)
        group.finish(queued)
        if queued.error is not None:
            raise self._translated(queued.error)
        return queued.result

    def write_soon(
        self, job: Callable[[SqliteConnection], T], scope: WriteScope | None = None, haste: Haste = ""
    ) -> asyncio.Future[T]:
        """Run *job* in a transaction, whether or not the caller keeps waiting; return once it is on disk."""
        group = self._require_writable()
        future: PromptFuture[T] = PromptFuture()
        with self._gate:
            self.require_open()
            group.jobs.put(Job(job, future))
            if haste:
                group.write_soon(future.get_loop())
            else:
                group.wake()
        return future

    def begin_at_once(self) -> SqliteWriter | None:
        """Return the writer with a transaction for `run_at_once`; None if that would make a loop wait."""
        group = self._group
        if group is None or self._closed or os.getpid() != self._pid or not group.jobs.empty():
            return None
        return group if group.begin_at_once() else None

    def can_read_at_once(self) -> bool:
        """Whether a brief query can run without waiting for a connection to be opened."""
        return bool(self._readers)

    def read(self, query: Callable[[SqliteConnection], T]) -> T:
        """Run *query* on a connection that sees every acknowledged write; each statement sees one state."""
        self.require_open()
        try:
            return self._read(query)
        except (apsw.Error, UnicodeError) as error:
            raise self._translated(error) from error

    def read_consistently(self, query: Callable[[SqliteConnection], T]) -> T:
        """Like `read`, but all statements of *query* see the same state."""

        def in_transaction(db: SqliteConnection) -> T:
            db.execute("BEGIN")
            result = query(db)
            db.execute("COMMIT")  # after an error the connection is closed instead, see `_read`
            return result

        return self.read(in_transaction)

    def compact(self) -> None:
        """Return the space of deleted data to the file system."""
        group = self._require_writable()
        with group.writing:
            self.require_open()
            try:
                group.connection.execute("VACUUM")
                group.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except apsw.Error as error:
                raise self._translated(error) from error

    def bytes_on_disk(self) -> int:
        """The size of the file with its write-ahead log."""
        return connection.bytes_on_disk(self.path)

    def require_open(self) -> None:
        """Raise `StoreUnavailable` if the file was closed, or belongs to the parent process."""
        if self._closed:
            raise _for_good(StoreUnavailable(f"the store {self.path} is closed"))
        if os.getpid() != self._pid:
            raise _for_good(
                StoreUnavailable(
                    f"the store {self.path} was opened before this process was forked",
                    hint="open it again in the child process",
                )
            )

    def close(self) -> None:
        """Run the queued jobs and close the file. Does nothing if it is closed, or after a fork."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            if self._closed:
                return
            self._closed = True
        if self._group is not None:
            self._group.close()
        while self._readers:
            self._readers.pop().close(True)
        if self._private is not None:
            self._private.cleanup()

    def _require_writable(self) -> SqliteWriter:
        self.require_open()
        if self._group is None:
            raise _for_good(
                StoreUnavailable(
                    f"{self.path} cannot be written to",
                    hint="check the permissions of the file and its directory",
                )
            )
        return self._group

    def _connect(self) -> SqliteConnection:
        if self._for_writing:
            return connection.connect(self.path, self._busy_timeout_ms)
        return connection.connect_read_only(self._read_path, self._busy_timeout_ms)

    def _translated(self, error: BaseException) -> BaseException:
        return connection.translated(error, self.path)

    # The readers

    def _read(self, query: Callable[[SqliteConnection], T]) -> T:
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._connect()
        try:
            result = query(reader)
        except BaseException:
            reader.close(True)  # with an open statement, the next reader would see an old state
            raise
        if self._closed or len(self._readers) >= MAX_READERS:
            reader.close(True)
        else:
            self._readers.append(reader)
        return result


def _for_good(error: StoreUnavailable) -> StoreUnavailable:
    """Return the error as one that is not retryable."""
    error.retryable = False
    return error


# The writer


class SqliteWriter(GroupWriter):
    """Commits groups of jobs on one connection.

    A job that fails before it has written anything fails alone. If one fails after that, the transaction is
    rolled back and the other jobs of its group are run again.

    Brief jobs are run on the thread of their loop while the disk is fast. The write-ahead log is never copied
    to the file on a loop's thread.
    """

    def __init__(self, db: SqliteConnection, translated: Callable[[BaseException], BaseException]) -> None:
        super().__init__(translated)
        self.connection = db
        self._due: set[asyncio.AbstractEventLoop] = set()
        self._commit_s = 0.0
        self._log_pages = 0
        self._checkpoint_at = _CHECKPOINT_PAGES
        db.set_wal_hook(self._note_log)

    def disconnect(self) -> None:
        self.connection.close(True)

    def write_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run brief jobs at the end of this cycle of *loop*, with those queued until then."""
        if self._commit_s > _SLOW_S:
            self.wake()
        elif loop not in self._due:
            self._due.add(loop)
            loop.call_soon(self._write_here, loop)

    def run_at_once(self, run: Callable[[SqliteConnection], T]) -> T:
        """Run and commit a job for which `begin_at_once` has begun a transaction."""
        try:
            result = run(self.connection)
            self._commit()
        except BaseException as error:
            self._roll_back()
            raise self._translated(error)  # noqa: B904 (it names its cause)
        finally:
            self.writing.release()
        if self._log_pages >= self._checkpoint_at:
            self.wake()
        return result

    def _write_here(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due.discard(loop)
        if self.jobs.empty():
            return
        if not self.begin_at_once():
            self.wake()
            return
        jobs = self.take()
        try:
            self.transact(jobs)
        finally:
            self.writing.release()
        if not self.jobs.empty() or self._log_pages >= self._checkpoint_at:
            self.wake()
        self.answer(jobs, loop)

    def begin_at_once(self) -> bool:
        """Take `writing` and begin a transaction on a loop's thread; return False if that means waiting."""
        if self._commit_s > _SLOW_S or not self.writing.acquire(blocking=False):
            return False
        patience = self.connection.patience
        patience.waits = False
        try:
            self.connection.execute("BEGIN IMMEDIATE")
        except apsw.Error:  # the writer thread's attempt waits, or raises it again
            self.writing.release()
            return False
        finally:
            patience.waits = True
        return True

    def _note_log(self, db: object, name: str, pages: int) -> int:
        if pages < self._log_pages:  # the log has been restarted
            self._checkpoint_at = _CHECKPOINT_PAGES
        self._log_pages = pages
        return apsw.SQLITE_OK

    def tidy(self) -> None:
        """Copy the write-ahead log to the file if it is long, except the parts that readers still need."""
        if self._log_pages >= self._checkpoint_at:
            with contextlib.suppress(
                apsw.Error
            ):  # the next attempt may succeed, and a commit raises any error
                self.connection.wal_checkpoint()
            self._checkpoint_at = self._log_pages + _CHECKPOINT_PAGES

    def transact(self, jobs: list[Job[Any]]) -> None:
        while jobs:
            try:
                if not self.connection.in_transaction:
                    self.connection.execute("BEGIN IMMEDIATE")
                failed = self._run_all(jobs)
                if failed is None:
                    self._commit()
                    return
            except BaseException as error:
                self._roll_back()
                for job in jobs:
                    job.error = error
                return
            self._roll_back()
            jobs = [job for job in jobs if job is not failed]

    def _commit(self) -> None:
        began = time.monotonic()
        self.connection.execute("COMMIT")
        self._commit_s += (time.monotonic() - began - self._commit_s) / 8

    def _run_all(self, jobs: list[Job[Any]]) -> Job[Any] | None:
        """Run the jobs; return the first that failed in a way that may affect the others."""
        db = self.connection
        for job in jobs:
            before, job.error = db.total_changes(), None
            try:
                job.result = job.run(db)
            except BaseException as error:
                job.error = error
                harmless = isinstance(error, StandfastError) and db.total_changes() == before
                if not harmless or not db.in_transaction:
                    return job
        return None

    def _roll_back(self) -> None:
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except apsw.Error:  # the transaction is over either way; the caller gets the first error
            pass
