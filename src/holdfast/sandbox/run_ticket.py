"""What a run is given when it is let in: a way to cancel it, and a place among the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.sandbox.monty.run import MontyRun
from holdfast.sandbox.monty.run_errors import cancelled_error
from holdfast.sandbox.monty.workers import Worker


class RunTicket:
    """A way to cancel a run that may not have begun yet, from another thread.

    With `go_on` the run is driven on a thread of ours, and is taken up by another if a handler keeps it.
    """

    __slots__ = ("_cancelled", "_lock", "_run", "go_on")

    def __init__(self, go_on: Callable[[], None] | None = None) -> None:
        self.go_on = go_on
        self._lock = threading.Lock()
        self._run: MontyRun | None = None
        self._cancelled = False

    def admit(self, run: MontyRun) -> None:
        """The run begins: from now on cancelling stops it."""
        run.go_on = self.go_on
        with self._lock:
            self._run = run
            if self._cancelled:
                run.stop(cancelled_error())

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._run is not None:
                self._run.stop(cancelled_error())


class Slot:
    """A place among the workers, and what is in it."""

    __slots__ = ("worker",)

    def __init__(self, worker: Worker | None) -> None:
        self.worker = worker

    def fill(self, worker: Worker) -> Worker:
        self.worker = worker
        return worker
