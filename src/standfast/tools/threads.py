"""Threads that never keep the process from ending.

A tool that hangs keeps its thread for ever; the standard executor would then hang the interpreter at
exit. These threads are daemons, are made on demand, and wait for more work when they are done.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_Then = Callable[[], object]
_Job = Callable[[], _Then | None]
_Jobs = queue.SimpleQueue[_Job]


def _stop() -> None:
    """The job that ends a thread; compared by identity."""


class DaemonThreads:
    """A set of reusable daemon threads. The one that was last at work is the next to work.

    With *at_most*, further jobs wait for a thread: for jobs that always end.
    """

    def __init__(self, name: str = "standfast", *, at_most: int | None = None) -> None:
        self._name = name
        self._at_most = at_most
        self._made = 0
        self._idle: list[_Jobs] = []
        self._waiting: deque[_Job] = deque()
        self._closed = False

    def start(self, job: _Job) -> None:
        """Run *job* on some thread; it must not raise.

        What it returns, if anything, is called when the thread is free again: whoever is told then and has
        more to do finds the same thread.
        """
        try:
            jobs = self._idle.pop()
        except IndexError:
            if self._at_most is not None and self._made >= self._at_most:
                self._waiting.append(job)
                self._hand_out()  # a thread may have become idle meanwhile
                return
            jobs = self._make()
        jobs.put(job)

    async def run(self, job: Callable[[], T]) -> T:
        """Await *job* off the loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.start(lambda: hand_over(loop, future, job))
        return await future

    def close(self) -> None:
        """Let idle threads end. Threads inside a job end when the job does."""
        self._closed = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().put(_stop)

    def _make(self) -> _Jobs:
        self._made += 1
        jobs: _Jobs = queue.SimpleQueue()
        name = f"{self._name}-{self._made}"
        threading.Thread(target=self._serve, args=(jobs,), name=name, daemon=True).start()
        return jobs

    def _serve(self, jobs: _Jobs) -> None:
        while (job := jobs.get()) is not _stop:
            then = job()
            del job
            self._idle.append(jobs)
            if then is not None:
                then()
            del then
            self._hand_out()
            if self._closed:
                self.close()

    def _hand_out(self) -> None:
        """Give jobs that wait to threads that do; both sides call it after they began to wait."""
        while self._waiting:
            try:
                jobs = self._idle.pop()
            except IndexError:
                if not self._closed:
                    return
                jobs = self._make()  # the others may have ended
            try:
                jobs.put(self._waiting.popleft())
            except IndexError:  # another thread took it
                self._idle.append(jobs)


def hand_over(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], job: Callable[[], T]) -> _Then:
    """Run *job* here; what settles *future* on its own loop."""
    try:
        return functools.partial(settler(loop, future), job(), None)
    except BaseException as error:
        return functools.partial(settler(loop, future), None, error)


def settler(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]
) -> Callable[[T | None, BaseException | None], None]:
    """A function that settles *future* from any thread, if its loop still runs and nobody gave it up."""

    def on_loop(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def settle(value: T | None, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # a closed loop: nobody waits any more
            loop.call_soon_threadsafe(on_loop, value, error)

    return settle
