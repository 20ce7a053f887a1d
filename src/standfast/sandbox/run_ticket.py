"""What a run is given when it is let in: a way to cancel it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from standfast.sandbox.run_errors import cancelled_error
from standfast.sandbox.session_engine import SessionRun


class RunTicket:
    """A way to cancel a run that may not have begun yet, from another thread.

    With `go_on` the run is driven on a thread of ours, and is taken up by another if a handler keeps it.
    """

    __slots__ = ("_cancelled", "_lock", "_run", "go_on")

    def __init__(self, go_on: Callable[[], None] | None = None) -> None:
        self.go_on = go_on
        self._lock = threading.Lock()
        self._run: SessionRun | None = None
        self._cancelled = False

    def admit(self, run: SessionRun) -> None:
        """The run begins: from now on cancelling stops it."""
        with self._lock:
            self._run = run
            if self._cancelled:
                run.stop(cancelled_error())

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._run is not None:
                self._run.stop(cancelled_error())
