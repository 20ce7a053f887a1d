"""Threads that never keep the process from ending.

A tool that hangs keeps its thread for ever; the standard executor would then hang the interpreter at
exit. These threads are daemons, are made on demand, and wait for more work when they are done.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_Job = Callable[[], None]
_STOP: _Job = lambda: None  # noqa: E731 - compared by identity


class _Deferred(threading.local):
    jobs: list[_Job]


class DaemonThreads:
    """An unbounded set of reusable daemon threads."""

    def __init__(self, name: str = "holdfast") -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()
        self._count = 0
        self._deferred = _Deferred()

    def start(self, job: _Job) -> None:
        """Run *job* on some thread; it must not raise."""
        with self._lock:
            spawn = self._idle == 0
            if spawn:
                self._count += 1
            else:
                self._idle -= 1
        self._jobs.put(job)
        if spawn:
            threading.Thread(target=self._serve, name=f"{self._name}-{self._count}", daemon=True).start()

    async def run(self, job: Callable[[], T]) -> T:
        """Await *job* off the loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.start(lambda: hand_over(loop, future, job))
        return await future

    def defer(self, job: _Job) -> None:
        """From inside a job: do *job* on this thread, after the current one handed its result over."""
        self._deferred.jobs.append(job)

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run *job* on some thread and give a future that any thread can wait for."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

        self.start(work)
        return future

    def close(self) -> None:
        """Let idle threads end. Threads inside a job end when the job does."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._jobs.put(_STOP)

    def _serve(self) -> None:
        deferred = self._deferred.jobs = []
        while (job := self._jobs.get()) is not _STOP:
            job()
            while deferred:
                deferred.pop()()
            del job
            with self._lock:
                self._idle += 1


def hand_over(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], job: Callable[[], T]) -> None:
    """Run *job* here and settle *future* on its own loop, if there still is one."""
    try:
        value = job()
    except BaseException as error:
        settle = _setter(future, None, error)
    else:
        settle = _setter(future, value, None)
    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more


def _setter(future: asyncio.Future[T], value: T | None, error: BaseException | None) -> _Job:
    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    return settle
