"""Detection of tools and plugins that block the runtime's event loop.

Only code that is declared to run on that loop (`loop="runtime"`), and plain functions of plugins, can block
it. Such code cannot be stopped from outside, so the log reports immediately which code it is, with its stack.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import traceback
import types
from collections.abc import Awaitable, Generator, Iterator
from typing import Any, Final, TypeVar

T = TypeVar("T")

log: Final = logging.getLogger("standfast.tools")

STALL_S: Final = 0.1
_LOOK_S: Final = 0.05
_IDLE_LOOKS: Final = 100


class StallWatch:
    """Logs a warning with the stack, from a daemon thread, if code blocks its thread for over *limit_s*."""

    def __init__(self, limit_s: float = STALL_S) -> None:
        self._limit_s = limit_s
        self._now: _Section | None = None
        self._is_looking = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def holding(self, what: str) -> Iterator[None]:
        """Watch the code in this block. The warning begins with *what*."""
        outer, self._now = self._now, _Section(what)
        if not self._is_looking:
            with self._lock:
                begins, self._is_looking = not self._is_looking, True
            if begins:
                with contextlib.suppress(RuntimeError):  # the system has no more threads
                    threading.Thread(target=self._look, name="standfast-stalls", daemon=True).start()
        try:
            yield
        finally:
            self._now = outer

    def _look(self) -> None:
        idle = 0
        while idle < _IDLE_LOOKS:
            time.sleep(_LOOK_S)
            section = self._now
            if section is None:
                idle += 1
                continue
            idle = 0
            if not section.is_reported and time.monotonic() - section.began > self._limit_s:
                section.is_reported = True
                section.report()
        self._is_looking = False


class _Section:
    __slots__ = ("_thread_id", "_what", "began", "is_reported")

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread_id = threading.get_ident()
        self.began = time.monotonic()
        self.is_reported = False

    def report(self) -> None:
        frame = sys._current_frames().get(self._thread_id)
        stack = "" if frame is None else "".join(traceback.format_stack(frame)[-12:])
        log.warning(
            "%s blocks the runtime's event loop, so every session waits. Stack of the blocked thread:\n%s",
            self._what,
            stack,
        )


@types.coroutine
def watched(work: Awaitable[T], watch: StallWatch, what: str) -> Generator[Any, Any, T]:
    """Await *work*, watching each of its steps with *watch*."""
    steps: Any = work.__await__()
    step, given = steps.send, None
    while True:
        try:
            with watch.holding(what):
                waits_for = step(given)
        except StopIteration as stop:
            value: T = stop.value
            return value
        try:
            step, given = steps.send, (yield waits_for)
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:
            step, given = steps.throw, error
