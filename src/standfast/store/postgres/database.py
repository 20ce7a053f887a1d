"""A PostgreSQL database: one connection that commits for many callers, and a pool of connections that read.

Theory of operation
-------------------
Writes are jobs that share transactions (see `group_writer`). Those that lock one session each are run in one
transaction, which first locks all their sessions in the order of their names, so that two processes do not
wait for each other, and asks for what each job reads first. The others, which find out what to lock while
they run, get a transaction each. A job that fails before it has written
anything fails alone. If one fails after that, the transaction is rolled back and the others are run again.

Rules
-----
1. Acknowledged means on disk: an answer comes after the server has confirmed the commit (see `settings`).
2. An error that may pass (lost connection, failover, conflict, timeout) is retried for up to `RETRY_S`, on a
   new connection if need be, and then raised as `StoreUnavailable`. A transaction is committed whole or not
   at all; if the answer to a commit was lost, the server is asked what became of it. If it cannot know,
   because it was restarted, that is `StoreUnavailable` as well, and nothing is run again.
3. A connection never crosses a fork; the child has to open the store anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import psycopg_pool

from standfast.errors import StandfastError, StoreUnavailable
from standfast.store.postgres.connection import (
    Address,
    PostgresCursor,
    SeveralStatements,
    SingleRead,
    Transaction,
    configure,
    connect,
    is_own,
    is_transient,
    parse_url,
    translated,
)
from standfast.store.postgres.guarded import GuardedWriter
from standfast.store.postgres.notices import Announcer
from standfast.store.postgres.schema import migrate
from standfast.store.postgres.settings import require_durable
from standfast.store.sql.connection import Row
from standfast.store.sql.group_writer import GroupWriter, Haste, Job, Scope

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

MAX_READERS: Final = 8
RETRY_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 1.0
_RACES: Final = 5
"""How often a key that another transaction took meanwhile is met before it counts as an error."""


class PostgresDatabase:
    """The tables of a store at *url*, made or migrated by the first of the programs that open it.

    `write` and `read_consistently` may be called from any thread, `write_soon` from any loop.
    """

    def __init__(self, url: str, *, database_clock: bool = True, retry_s: float = RETRY_S) -> None:
        self.address = parse_url(url)
        self._database_clock = database_clock
        self._retry_s = retry_s
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self._closed = False
        try:
            first = connect(self.address)
            try:
                require_durable(first, self.address.name)
                migrate(first, self.address.schema)
            except BaseException:
                first.close()
                raise
        except psycopg.Error as error:
            raise self._translated(error) from error
        self.announcer = Announcer(self.address)
        self._several: set[str] = set()
        self._group = PostgresWriter(
            first, self.address, self._translated, database_clock, retry_s, self.announcer.announce
        )
        self._readers: psycopg_pool.ConnectionPool[psycopg.Connection[Row]] = psycopg_pool.ConnectionPool(
            self.address.conninfo,
            min_size=0,
            max_size=MAX_READERS,
            open=True,
            num_workers=1,
            configure=lambda raw: configure(raw, self.address.schema),
            kwargs={"autocommit": True, "cursor_factory": PostgresCursor},
            name="standfast-readers",
        )

    def write(self, job: Callable[[Any], T], scope: Scope | None = None) -> T:
        """Run *job* in a transaction; return once it is committed."""
        self.require_open()  # before the gate, which a fork may have left shut
        queued = Job(job, None, scope)
        with self._gate:
            self.require_open()
            self._group.jobs.put(queued)
        self._group.finish(queued)
        if queued.error is not None:
            raise self._translated(queued.error)
        return queued.result

    def write_soon(
        self, job: Callable[[Any], T], scope: Scope | None = None, haste: Haste = ""
    ) -> asyncio.Future[T]:
        """Run *job* in a transaction, whether or not the caller keeps waiting; return after the commit."""
        import asyncio  # blocking callers do not pay for it

        self.require_open()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._gate:
            self.require_open()
            self._group.jobs.put(Job(job, future, scope))
            self._group.wake()
        return future

    def can_read_at_once(self) -> bool:
        """Return False: a query waits for the server."""
        return False

    def read_consistently(self, query: Callable[[Any], T]) -> T:
        """Run *query* in a transaction that sees one state, with every acknowledged write in it."""
        self.require_open()
        attempts = _Attempts(self._retry_s)
        while True:
            try:
                return self._read(query)
            except psycopg.Error as error:
                if not is_transient(error) or not attempts.another():
                    raise self._translated(error) from error
                if error.sqlstate is None:
                    self._readers.check()  # drops the connections that the server has closed
            except UnicodeError as error:
                raise self._translated(error) from error

    def _read(self, query: Callable[[Any], T]) -> T:
        with self._readers.connection(timeout=self._retry_s) as raw:
            try:
                if is_own(raw):
                    with contextlib.suppress(SeveralStatements):
                        return query(SingleRead(raw, self._several))
                with raw.pipeline():
                    transaction = Transaction(raw, self.address, database_clock=self._database_clock)
                    transaction.begin(to_write=False)
                    result = query(transaction)
                    transaction.commit()
                return result
            except BaseException as error:
                roll_back(raw, error)
                raise

    def forget(self, session_ids: Iterable[str]) -> None:
        """Forget the rows of sessions that a write without a scope has changed."""
        for session_id in session_ids:
            self._group.guarded.forget(session_id)

    def require_open(self) -> None:
        """Raise `StoreUnavailable` if the store was closed, or belongs to the parent process."""
        problem, hint = "is closed", None
        if os.getpid() != self._pid:
            problem, hint = "was opened before this process was forked", "open it anew in the child process"
        elif not self._closed:
            return
        error = StoreUnavailable(f"the store {self.address.name} {problem}", hint=hint)
        error.retryable = False
        raise error

    def close(self) -> None:
        """Finish what is queued and disconnect. Twice, or after a fork, it does nothing."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            if self._closed:
                return
            self._closed = True
        self._group.close()
        self.announcer.close()
        self._readers.close()

    def _translated(self, error: BaseException) -> BaseException:
        return translated(error, self.address.name)


class PostgresWriter(GroupWriter):
    """Commits groups of jobs on one connection, which is replaced when it breaks."""

    def __init__(
        self,
        first: psycopg.Connection[Row],
        address: Address,
        translated: Callable[[BaseException], BaseException],
        database_clock: bool,
        retry_s: float,
        announce: Callable[[list[str]], None],
    ) -> None:
        super().__init__(translated)
        self._announce = announce
        self.guarded = GuardedWriter(database_clock=database_clock, announce=announce)
        self._connection: psycopg.Connection[Row] | None = first
        self._address = address
        self._database_clock = database_clock
        self._retry_s = retry_s

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def transact(self, jobs: list[Job[Any]]) -> None:
        left = self._send_guarded(jobs)
        together = [job for job in left if job.scope is not None]
        for group in (together, *([job] for job in left if job.scope is None)):
            self._transact(group)
        for job in together:
            assert job.scope is not None
            self.guarded.forget(job.scope.session_id)

    def _send_guarded(self, jobs: list[Job[Any]]) -> list[Job[Any]]:
        """Send the writes that need not read first; return the others, and those that were refused."""
        if all(job.scope is None or job.scope.guarded is None for job in jobs):
            return jobs
        try:
            if self._connection is None:
                self._connection = connect(self._address)
            return self.guarded.run(self._connection, jobs) if is_own(self._connection) else jobs
        except Exception as error:  # the jobs meet it again, and wait for it to pass
            if self._connection is not None and not roll_back(self._connection, error):
                self._connection = None
            return jobs

    def _transact(self, jobs: list[Job[Any]]) -> None:
        """Run the jobs in one transaction, again while errors may pass, and without jobs that fail alone."""
        attempts = _Attempts(self._retry_s)
        while jobs:
            try:
                self._attempt(jobs, attempts)
                return
            except _JobFailed as failed:
                failed.job.error = failed.error
                jobs = [job for job in jobs if job is not failed.job]
            except BaseException as error:
                if attempts.may_pass(error) and attempts.another():
                    continue
                if len(jobs) == 1 or is_transient(error) or isinstance(error, StoreUnavailable):
                    for job in jobs:
                        job.error = error
                else:
                    for job in jobs:
                        self._transact([job])
                return

    def _attempt(self, jobs: list[Job[Any]], attempts: _Attempts) -> None:
        if self._connection is None:
            self._connection = connect(self._address)
        raw = self._connection
        transaction = Transaction(raw, self._address, database_clock=self._database_clock)
        try:
            with raw.pipeline():
                transaction.begin(to_write=True)
                _prepare(jobs, transaction)
                for job in jobs:
                    _run(job, transaction)
                transaction.commit()
        except BaseException as error:
            if not roll_back(raw, error):
                self._connection = None
                if transaction.committing and self._was_committed(transaction, attempts):
                    self._announce(transaction.announced)
                    return
            sender, refusal = transaction.failed()
            if isinstance(error, psycopg.errors.UniqueViolation) and refusal and isinstance(sender, Job):
                raise _JobFailed(sender, refusal) from error
            raise
        self._announce(transaction.announced)

    def _was_committed(self, transaction: Transaction, attempts: _Attempts) -> bool:
        """Ask the server what became of a transaction whose commit was sent and not answered.

        A server that crashed gives the numbers of transactions that it lost to others. So one that was
        started since can say that a transaction was not committed, and not that it was.
        """
        while True:
            try:
                if self._connection is None:
                    self._connection = connect(self._address)
                status, server_start = self._connection.execute(
                    b"SELECT pg_xact_status($1::text::xid8), pg_postmaster_start_time()::text",
                    (transaction.number,),
                ).fetchone() or ("", "")
                if status == "aborted":
                    return False
                if status == "committed" and server_start == transaction.server_start:
                    return True
                if status == "committed":
                    raise self._outcome_unknown()
            except psycopg.errors.InvalidParameterValue:
                return False  # a standby that never received it was promoted
            except psycopg.Error as error:
                self.disconnect()
                if not is_transient(error):
                    raise
            if not attempts.another():
                raise self._outcome_unknown()

    def _outcome_unknown(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"PostgreSQL at {self._address.name} did not answer a commit, whose outcome is unknown",
            hint="read the session again before you retry",
        )


def _prepare(jobs: list[Job[Any]], transaction: Transaction) -> None:
    """Lock the sessions of all jobs and send what each reads first: one round trip for the whole group.

    Of several jobs on one session only the first reads ahead, because the others see what it writes.
    """
    scopes = [job.scope for job in jobs if job.scope is not None]
    transaction.lock_sessions(scope.session_id for scope in scopes)
    for scope in {scope.session_id: scope for scope in reversed(scopes)}.values():
        for sql, values in scope.reads:
            transaction.ask(sql, values)


def _run(job: Job[Any], transaction: Transaction) -> None:
    """Run a job. If it fails before it has written anything, that is its answer."""
    before, transaction.sender = transaction.writes, job
    job.error = None
    try:
        job.result = job.run(transaction)
    except psycopg.Error:
        raise
    except BaseException as error:
        if transaction.writes > before or not isinstance(error, StandfastError):
            raise _JobFailed(job, error) from error
        job.error = error
    finally:
        for read in () if job.scope is None else job.scope.reads:
            transaction.asked.pop(read, None)  # what the job wrote may have changed it


def roll_back(raw: psycopg.Connection[Row], error: BaseException) -> bool:
    """End the transaction of a connection after *error*; false if the connection is of no more use.

    It is then closed. psycopg believes that a statement is prepared if the pipeline that was to prepare it
    failed before, and can be told only by a new connection.
    """
    try:
        if isinstance(error, psycopg.errors.InvalidSqlStatementName):
            raw.close()
        if raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            raw.execute(b"ROLLBACK")
        return not raw.closed
    except psycopg.Error:
        raw.close()
        return False


class _JobFailed(Exception):
    """A job failed after it had written something: the transaction has to be run again without it."""

    def __init__(self, job: Job[Any], error: BaseException) -> None:
        super().__init__(str(error))
        self.job = job
        self.error = error


class _Attempts:
    """Attempts at one transaction, with growing pauses between them, for a limited time."""

    def __init__(self, limit_s: float) -> None:
        self._until = time.monotonic() + limit_s
        self._pause_s = _FIRST_PAUSE_S
        self._races = 0

    def may_pass(self, error: BaseException) -> bool:
        """Whether another attempt may not meet *error*: it is transient, or another process was faster."""
        if isinstance(error, psycopg.errors.UniqueViolation):
            self._races += 1
            return self._races <= _RACES
        return is_transient(error)

    def another(self) -> bool:
        """Pause before another attempt; false if the time is over."""
        if time.monotonic() + self._pause_s > self._until:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True
