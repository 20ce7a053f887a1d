"""Commits the writes of a PostgreSQL store, on the thread of an event loop or on a thread that may wait.

Theory of operation
-------------------
A turn's writes are guarded (`guarded_writer`): one message to the server, one answer. The thread of the event
loop that a turn runs on sends them itself and returns to the loop, which calls `_land` when the answer
arrives. Until then the group is *in flight*; it has *landed* when the answer was handled, and the lock
`writing` is held meanwhile. Jobs queued in the meantime form the next group. So no turn waits for another
thread, and no event loop waits for the server.

Everything else runs on the writer thread, or on that of a blocking caller: writes that read first, sessions
that are not cached, lost connections, and writes that were rejected. Jobs that lock one session each run in
one transaction. It first locks all their sessions in the order of their names, which prevents deadlocks
between processes, and sends the first reads of each job ahead. Other jobs, which determine what to lock while
they run, get a transaction each. A job that fails before it has written anything fails alone. If a job fails
later, the transaction is rolled back and the other jobs are run again.

Rules
-----
1. The thread of an event loop never waits, neither for the server nor for another thread.
2. A group in flight is never lost. If its loop was stopped or is busy, a thread that may wait lands it.
3. Once a job was left to the writer thread, nothing is sent before that job is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg

from standfast.errors import StandfastError, StoreUnavailable
from standfast.store.postgres.connection import (
    Address,
    Transaction,
    connect,
    is_own,
    is_transient,
    pipelined,
)
from standfast.store.postgres.guarded_writer import GroupOutcome, GuardedWriter, is_guarded
from standfast.store.postgres.pipeline import Pipeline
from standfast.store.sql.connection import Row
from standfast.store.sql.group_writer import GroupWriter, Job

_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 1.0
_RACES: Final = 5
"""How many conflicts with keys of concurrent transactions are retried before they count as an error."""
_LANDING_S: Final = 0.05
"""How long a thread waits for a loop to land its group before it checks whether the loop can."""


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
        self._changing = threading.Lock()
        """Held, briefly, while deciding which thread writes the queued jobs."""
        self._watch: _Watch | None = None
        self._is_flying = False
        """Whether a group is in flight, or about to be sent, so that `writing` is held for it."""
        self._is_waiting = False
        """Whether the group's answer is outstanding, and no thread is reading it."""
        self._left: list[Job[Any]] = []
        """Jobs that were taken from the queue and left to a thread that may wait."""
        self._due: set[asyncio.AbstractEventLoop] = set()

    # On the thread of an event loop

    def write_soon(self, job: Job[Any], loop: asyncio.AbstractEventLoop, *, at_once: bool) -> None:
        """Queue *job*; if it is guarded and brief, send it on this thread, which runs *loop*."""
        with self._changing:
            self.jobs.put(job)
            if self._is_flying_for(loop):
                return  # it is sent once the group in flight has landed
        if not job.brief or not is_guarded(job):
            self.wake()
        elif at_once:
            self._send_queued(loop)
        elif loop not in self._due:
            self._due.add(loop)
            loop.call_soon(self._send_queued, loop)  # with jobs that this iteration still queues

    def _send_queued(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due.discard(loop)
        with self._changing:
            if self.jobs.empty() or self._is_flying_for(loop):
                return
            sends = not self._left and self.writing.acquire(blocking=False)
            self._is_flying = self._is_flying or sends
        if sends:
            self._launch(loop)
        else:
            self.wake()

    def _is_flying_for(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._is_flying and self._watch is not None and self._watch.loop is loop

    def _launch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send the queued jobs. This thread holds `writing`; the thread that lands the group releases it."""
        jobs = self.take()
        watch = self._watch_for(loop)
        left = jobs if watch is None else self.guarded.launch(jobs)
        self._left += left
        if watch is None or len(left) == len(jobs):
            self._leave()
            return
        watch.set_writing(watch.pipeline.unsent)
        self._is_waiting = True

    def _watch_for(self, loop: asyncio.AbstractEventLoop) -> _Watch | None:
        """Return a watch that calls `_land` when the server answers; None if a thread has to wait instead."""
        pipeline = self.guarded.pipeline_of(self._connection)
        watch = self._watch
        if watch is not None and watch.loop is loop and watch.pipeline is pipeline:
            return watch
        self._end_watch()
        if pipeline is not None:
            with contextlib.suppress(OSError, NotImplementedError):  # no descriptor; a loop without readers
                self._watch = _Watch(loop, pipeline, self._land)
        return self._watch

    def _land(self, watch: _Watch) -> None:
        """Read the server's answers; after the last one, answer the jobs and send those queued since."""
        with self._changing:
            if self._watch is not watch or not self._is_waiting:  # another thread uses the connection
                watch.end()
                self._watch = None if self._watch is watch else self._watch
                return
            self._is_waiting = False
        landed = self.guarded.land()
        if landed is None and watch.has_failed():
            landed = self.guarded.land(wait=True)  # nothing more will arrive, and not every loop calls again
        if landed is None:
            watch.set_writing(watch.pipeline.unsent)
            self._is_waiting = True
            return
        watch.set_writing(False)
        try:
            self._settle_group(landed, watch.loop)
        finally:  # a turn that is continued by it may raise SystemExit
            self._send_next(watch.loop)

    def _send_next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send the jobs that were queued while a group was in flight; without any, release `writing`."""
        with self._changing:
            if self.jobs.empty() and not self._left:
                self._is_flying = False
                self.writing.release()
                return
        if self._left:
            self._leave()
        else:
            self._launch(loop)

    def _settle_group(self, landed: GroupOutcome, here: asyncio.AbstractEventLoop | None = None) -> None:
        if landed.lost:
            self.disconnect()
        self._left += landed.refused
        self.answer(landed.done, here)

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()

    def _leave(self) -> None:
        """Release `writing`, and let the writer thread handle the remaining jobs."""
        with self._changing:
            self._is_flying = False
            self.writing.release()
        self.wake()

    # On a thread that may wait

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        while not self.writing.acquire(timeout=_LANDING_S):
            if self._land_for_loop():
                break
        try:
            yield
        finally:
            self.writing.release()

    def _land_for_loop(self) -> bool:
        """Land the group in flight if its loop does not; this thread then holds `writing`."""
        with self._changing:
            if not self._is_waiting or self._watch is None:
                return False
            if self._watch.loop.is_running() and not self._watch.is_ready():
                return False
            self._is_waiting = False
        try:
            landed = self.guarded.land(wait=True)
        except BaseException:  # such as Ctrl-C; another thread may land it
            self._is_waiting = True
            raise
        assert landed is not None
        self._settle_group(landed)
        with self._changing:
            self._is_flying = False
            more = not self.jobs.empty()
        if more:
            self.wake()  # they were queued for the end of this group
        return True

    def take(self) -> list[Job[Any]]:
        left, self._left = self._left, []
        return left + super().take()

    def disconnect(self) -> None:
        self._end_watch()
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
        """Send the writes that need no read first; return the other jobs, and those that were rejected."""
        if not any(map(is_guarded, jobs)):
            return jobs
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._address)
            return self.guarded.run(self._connection, jobs) if is_own(self._connection) else jobs
        except Exception as error:  # running the jobs raises it again, or succeeds after retries
            if self._connection is not None and not roll_back(self._connection, error):
                self._connection = None
            return jobs

    def _transact(self, jobs: list[Job[Any]]) -> None:
        """Run the jobs in one transaction; retry after transient errors, and without jobs that fail alone."""
        attempts = Attempts(self._retry_s)
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

    def _attempt(self, jobs: list[Job[Any]], attempts: Attempts) -> None:
        if self._connection is None:
            self._connection = connect(self._address)
        raw = self._connection
        transaction = Transaction(raw, self._address, database_clock=self._database_clock)
        try:
            with pipelined(raw):
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

    def _was_committed(self, transaction: Transaction, attempts: Attempts) -> bool:
        """Ask the server for the outcome of a transaction whose commit was sent but not answered.

        A server that crashed reuses the numbers of the transactions that it lost. So a server that was
        started since then can tell that a transaction was not committed, but not that it was.
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
    """Lock the sessions of all jobs and send the first reads of each ahead: one round trip for the group.

    Of several jobs on one session only the first reads ahead, because the others must see its writes.
    """
    scopes = [job.scope for job in jobs if job.scope is not None]
    transaction.lock_sessions(scope.session_id for scope in scopes)
    for scope in {scope.session_id: scope for scope in reversed(scopes)}.values():
        for sql, values in scope.reads:
            transaction.ask(sql, values)


def _run(job: Job[Any], transaction: Transaction) -> None:
    """Run a job. If it fails before it has written anything, its error is its result."""
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
    """Roll back a connection's transaction after *error*; if it is unusable, close it and return False.

    If the pipeline that should prepare a statement failed, psycopg still considers the statement prepared;
    only a new connection corrects that.
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


class _Watch:
    """Calls *call* on the thread of *loop* whenever *pipeline* has something to read.

    It uses a duplicate of the socket's descriptor, because psycopg may close the connection on another
    thread, after which the number of the original descriptor may belong to another socket.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pipeline: Pipeline, call: Callable[[_Watch], None]
    ) -> None:
        self.loop = loop
        self.pipeline = pipeline
        self._number = os.dup(pipeline.socket)
        self._call = call
        self._is_writing = False
        try:
            loop.add_reader(self._number, call, self)
        except BaseException:
            self._close()
            raise

    def set_writing(self, wanted: bool) -> None:
        """Set whether to call also when the socket becomes writable."""
        if wanted is not self._is_writing:
            self._is_writing = wanted
            if wanted:
                self.loop.add_writer(self._number, self._call, self)
            else:
                self.loop.remove_writer(self._number)

    def is_ready(self) -> bool:
        """Return whether there is something to read, or an error."""
        return bool(self._poll())

    def has_failed(self) -> bool:
        """Return whether the connection was reset, so that nothing more can arrive."""
        return any(state & (select.POLLERR | select.POLLHUP) for _, state in self._poll())

    def _poll(self) -> list[tuple[int, int]]:
        poll = select.poll()
        poll.register(self._number, select.POLLIN)
        return poll.poll(0)

    def end(self) -> None:
        """Stop the calls. May be called from any thread."""
        try:
            self.loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop is closed
            self._close()

    def _end(self) -> None:
        if self._number >= 0:
            self.loop.remove_reader(self._number)
            self.loop.remove_writer(self._number)
            self._close()

    def _close(self) -> None:
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)


class _JobFailed(Exception):
    """A job failed after it had written something, so the transaction must be repeated without it."""

    def __init__(self, job: Job[Any], error: BaseException) -> None:
        super().__init__(str(error))
        self.job = job
        self.error = error


class Attempts:
    """Attempts of one transaction, with growing pauses in between, for a limited time."""

    def __init__(self, limit_s: float) -> None:
        self._until = time.monotonic() + limit_s
        self._pause_s = _FIRST_PAUSE_S
        self._races = 0

    def may_pass(self, error: BaseException) -> bool:
        """Return whether a retry may succeed after *error*: it is transient, or lost a race for a key."""
        if isinstance(error, psycopg.errors.UniqueViolation):
            self._races += 1
            return self._races <= _RACES
        return is_transient(error)

    def another(self) -> bool:
        """Pause before another attempt; return False if the time is up."""
        if time.monotonic() + self._pause_s > self._until:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True
