"""Drives a generator whose handlers may hang.

Theory of operation
-------------------
A drive yields each call whose handler is to run on the driving thread, and is sent what came of it. While the
handler runs the generator is suspended, so any other thread may take the drive up: a handler that hangs keeps
its thread, and the drive goes on without both.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from standfast.tools.running import Arrived, RunningCall
from standfast.tools.threads import DaemonThreads

T = TypeVar("T")
Driven = Generator[RunningCall, Arrived | None, T]
"""A part of a drive. It yields calls whose handlers are to be run by whoever drives."""


def finish(drive: Driven[T]) -> T:
    """Run a drive that yields nothing to its end."""
    try:
        next(drive)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise RuntimeError("a drive on a caller's thread wanted to run a handler there")


class Pump(Generic[T]):
    """Drives on threads of ours and delivers the result, or the error, once."""

    def __init__(
        self, threads: DaemonThreads, deliver: Callable[[T | None, BaseException | None], None]
    ) -> None:
        self._threads = threads
        self._deliver = deliver
        self._drive: Driven[T] | None = None

    def start(self, drive: Driven[T]) -> None:
        """Begin on a thread of its own."""
        self._drive = drive
        self._threads.start(lambda: self._run(None))

    def go_on(self) -> None:
        """Take the drive up on another thread, without what the handler would have answered."""
        self._threads.start(lambda: self._run(None))

    def _run(self, answer: Arrived | None) -> None:
        assert self._drive is not None
        try:
            while True:
                running = self._drive.send(answer)
                answer = running.run_here()
                if answer is None:
                    return  # left behind; another thread drives
        except StopIteration as stop:
            self._deliver(stop.value, None)
        except BaseException as error:
            self._deliver(None, error)
