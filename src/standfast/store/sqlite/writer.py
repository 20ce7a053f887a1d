"""The one writer of a SQLite file: it runs the jobs of all waiting callers and commits once.

Theory of operation
-------------------
Jobs are queued. A caller that blocks takes the lock `writing` and runs everything that is queued in one
transaction; a caller that awaits leaves that to the one writer thread, which is started with the first such
job. Both drain the same queue, so that they share transactions and syncs.

A group is first run as it is. A job that fails before it has written anything fails alone; if one fails after
that, the transaction is given up and the group is run again with a savepoint for each job.

Rules
-----
1. A job that raises undoes only itself. If the commit fails, every job of the group gets the error.
2. A job may be run twice: it touches nothing but the connection it is given.
3. A group wakes each event loop once, however many of its jobs were waited for there.
4. No caller has to wait for the answer: a cancelled awaiter, or a closed loop, changes nothing here.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import apsw

from standfast.errors import StandfastError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_MAX_GROUP: Final = 512


class Job(Generic[T]):
    """A write that waits for its transaction. `done` tells that there is an answer; `future` may want it."""

    __slots__ = ("done", "error", "future", "result", "run")

    result: T

    def __init__(self, run: Callable[[apsw.Connection], T], future: asyncio.Future[T] | None = None) -> None:
        self.run = run
        self.future = future
        self.error: BaseException | None = None
        self.done = False


class _TransactionLost(Exception):
    """SQLite rolled the whole transaction back because of one job."""


class GroupWriter:
    """Runs queued jobs on one connection, in groups. `translated` makes errors fit for callers."""

    def __init__(
        self, connection: apsw.Connection, translated: Callable[[BaseException], BaseException]
    ) -> None:
        self.jobs: queue.SimpleQueue[Job[Any]] = queue.SimpleQueue()
        self.writing = threading.Lock()
        self.connection = connection
        self._translated = translated
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._thread: threading.Thread | None = None
        self._ended = False

    def wake(self) -> None:
        """Have the writer thread write what is queued. One caller at a time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="standfast-writer", daemon=True)
            self._thread.start()
        if self._asleep.locked():
            self._asleep.release()

    def finish(self, job: Job[Any]) -> None:
        """Write here and now until *job* has its answer."""
        with self.writing:
            while not job.done:
                self._write_group()

    def close(self) -> None:
        """Write what is queued, end the thread and close the connection. Nothing may be queued after it."""
        with self.writing:
            self._drain()
            self.connection.close(True)
        self._ended = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self.wake()
            self._thread.join()

    def _serve(self) -> None:
        while True:
            self._asleep.acquire()
            if self._ended:
                return
            with self.writing:
                self._drain()

    def _drain(self) -> None:
        while not self.jobs.empty():
            self._write_group()

    def _write_group(self) -> None:
        """Commit what is queued, up to a bound. The caller holds `writing`."""
        jobs: list[Job[Any]] = []
        while len(jobs) < _MAX_GROUP and not self.jobs.empty():
            jobs.append(self.jobs.get())
        self._transact(jobs)
        for job in jobs:
            job.done = True
        self._answer(jobs)

    def _answer(self, jobs: list[Job[Any]]) -> None:
        """Settle the futures of *jobs*, each on its own loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
        for job in jobs:
            if job.future is not None:
                by_loop.setdefault(job.future.get_loop(), []).append(job)
        for loop, settled in by_loop.items():
            with contextlib.suppress(RuntimeError):  # a closed loop: no caller waits any more
                loop.call_soon_threadsafe(self._settle, settled)

    def _settle(self, jobs: list[Job[Any]]) -> None:
        for job in jobs:
            assert job.future is not None
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(self._translated(job.error))

    # Transactions

    def _transact(self, jobs: list[Job[Any]]) -> None:
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            if whole := self._run_all(jobs):
                self.connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            for job in jobs:
                job.error = error
            return
        if not whole:
            self._roll_back()
            if len(jobs) > 1:
                self._transact_apart(jobs)

    def _run_all(self, jobs: list[Job[Any]]) -> bool:
        """Run the jobs; false if one failed in a way that may concern the others."""
        db = self.connection
        for job in jobs:
            before = db.total_changes()
            try:
                job.result = job.run(db)
            except BaseException as error:
                job.error = error
                harmless = isinstance(error, StandfastError) and db.total_changes() == before
                if not harmless or not db.in_transaction:
                    return False
        return True

    def _transact_apart(self, jobs: list[Job[Any]]) -> None:
        """Run the jobs in one transaction, each in a savepoint of its own."""
        job = jobs[0]
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                self._attempt(job)
            self.connection.execute("COMMIT")
        except _TransactionLost:
            for other in jobs:
                if other is not job:
                    other.error = None
                    self._transact([other])
        except BaseException as error:
            self._roll_back()
            for job in jobs:
                job.error = error

    def _attempt(self, job: Job[Any]) -> None:
        """Run one job. Its failure is its own, unless SQLite gave up the transaction."""
        self.connection.execute("SAVEPOINT job")
        try:
            job.error = None
            job.result = job.run(self.connection)
        except BaseException as error:
            job.error = error
            if not self.connection.in_transaction:
                raise _TransactionLost from None
            self.connection.execute("ROLLBACK TO job")
        self.connection.execute("RELEASE job")

    def _roll_back(self) -> None:
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except apsw.Error:  # the transaction is over either way; the caller hears of the first error
            pass
