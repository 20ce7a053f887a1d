"""The group writer: a queue of write jobs, and a thread that commits them in groups.

Theory of operation
-------------------
A write is a job: a function of the connection. Jobs are queued. A caller that blocks takes the lock `writing`
and runs everything that is queued in one transaction (`finish`); a caller that awaits leaves that to the one
writer thread, which is started with the first such job (`wake`). A database that commits in a fraction of a
millisecond may also run brief jobs on the thread of the loop that queued them, immediately or at the end of
the loop's cycle (`Haste`), because two thread switches cost more than such a commit. All waiting jobs are in
one queue, so they share transactions and syncs.

Rules
-----
1. A job that raises undoes only itself. If the commit fails, every job of the group gets the error.
2. A job may be run twice, so it must have no effects except on the connection passed to it.
3. A group wakes each event loop once. A cancelled awaiter, or a closed loop, changes nothing.
4. A loop's thread never waits for a lock: if another thread or process is writing, the writer thread takes
   over.

Not here: how a group becomes a transaction. Each database has its own `GroupWriter`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec

if TYPE_CHECKING:
    import asyncio

    from standfast.durable.prompt_future import PromptFuture

T = TypeVar("T")

_MAX_GROUP: Final = 512


class WriteScope(msgspec.Struct, frozen=True):
    """The properties of a write known before it runs: the only session that it locks, and its first reads.

    `guarded` is the same write for a database that can write without reading first (`postgres.guarded`).
    """

    session_id: str
    reads: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    guarded: Any = None


Haste = Literal["", "brief", "alone"]
"""How quickly a write may be run: a `brief` one takes much less than a millisecond. One that is `alone` is
also brief, and no other turn is running that could share its transaction."""


class Job(msgspec.Struct, Generic[T], eq=False):
    """A write that waits for its transaction. `done` means that it has a result; a `future`, if any, gets it.

    A `brief` job may be run by the thread of a loop.
    """

    run: Callable[[Any], T]
    future: PromptFuture[T] | None = None
    scope: WriteScope | None = None
    brief: bool = False
    result: T = msgspec.UNSET  # type: ignore[assignment]
    error: BaseException | None = None
    done: bool = False


class GroupWriter:
    """Runs queued jobs in groups. `translated` converts errors of the database to errors of the store."""

    def __init__(self, translated: Callable[[BaseException], BaseException]) -> None:
        self.jobs: queue.SimpleQueue[Job[Any]] = queue.SimpleQueue()
        self.writing = threading.Lock()
        self._translated = translated
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = False

    def transact(self, jobs: list[Job[Any]]) -> None:
        """Run the jobs and commit what they wrote; give each its result or its error."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Close the connection."""
        raise NotImplementedError

    def wake(self) -> None:
        """Wake the writer thread, which runs the queued jobs."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="standfast-writer", daemon=True)
                    self._thread.start()
        with contextlib.suppress(RuntimeError):  # it is awake
            self._asleep.release()

    def hold(self) -> AbstractContextManager[object]:
        """Take `writing`, on a thread that may wait."""
        return self.writing

    def take(self) -> list[Job[Any]]:
        """Take jobs off the queue, up to a bound. The caller holds `writing`."""
        jobs: list[Job[Any]] = []
        while len(jobs) < _MAX_GROUP and not self.jobs.empty():
            jobs.append(self.jobs.get())
        return jobs

    def finish(self, job: Job[Any]) -> None:
        """Run queued jobs on this thread until *job* has its result."""
        with self.hold():
            while not job.done:
                jobs = self.take()
                self.transact(jobs)
                self.answer(jobs)
            self.tidy()

    def close(self) -> None:
        """Run the queued jobs, end the thread and close the connection. No job may be queued after this."""
        with self.hold():
            self._drain()
            self.disconnect()
        self._ended = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self.wake()
            self._thread.join()

    def _serve(self) -> None:
        while True:
            self._asleep.acquire()
            if self._ended:
                return
            with self.hold():
                self._drain()
                self.tidy()

    def tidy(self) -> None:
        """Do the maintenance work that follows a commit. The caller holds `writing`."""

    def _drain(self) -> None:
        while jobs := self.take():
            self.transact(jobs)
            self.answer(jobs)

    def answer(self, jobs: list[Job[Any]], here: asyncio.AbstractEventLoop | None = None) -> None:
        """Settle the futures of *jobs*, each on its own loop; *here* is the one that runs on this thread.

        Their awaiters may continue within this call.
        """
        by_loop: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
        for job in jobs:
            job.done = True
            if job.future is not None:
                by_loop.setdefault(job.future.get_loop(), []).append(job)
        for loop, settled in by_loop.items():
            if loop is here:
                self._settle(settled)
                continue
            with contextlib.suppress(RuntimeError):  # a closed loop: no caller waits any more
                loop.call_soon_threadsafe(self._settle, settled)

    def _settle(self, jobs: Iterable[Job[Any]], *, at_once: bool = True) -> None:
        unsettled = iter(jobs)
        try:
            for job in unsettled:
                assert job.future is not None
                if job.future.done():
                    continue
                if job.error is None:
                    job.future.set_result(job.result, at_once=at_once)
                else:
                    job.future.set_exception(self._translated(job.error), at_once=at_once)
        finally:
            if at_once:  # nothing is left unless an awaiter has raised what ends its loop
                self._settle(unsettled, at_once=False)
