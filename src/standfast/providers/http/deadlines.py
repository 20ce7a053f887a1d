"""Time limits for a model's server, and the timer that enforces them.

A `WaitTimer` has one timer handle for a whole reply. A task that waits records when it began. When the handle
fires, the timer checks whether a wait is overdue, and otherwise reschedules the handle for the earliest time
at which one could be. So a chunk costs neither a timer nor a task. Only a task that waits for the server is
interrupted, never one that consumes the reply; a wait that is cancelled from outside stays cancelled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields
from typing import Final

from standfast.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Limits in seconds. `first_byte_s` (of the body) and `total_s` run from the call; comments are data."""

    connect_s: float = 10.0
    first_byte_s: float = 300.0
    between_chunks_s: float = 300.0
    total_s: float = 3600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InvalidArgument(f"the deadline {field.name} must be more than 0")


class DeadlineExceeded(Exception):
    """A wait took too long; `limit` names the deadline. The caller converts it to a `ModelError`."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


_NEVER: Final = float("inf")


class WaitTimer:
    """A timer for waits: use `with timer:` around each. `limit_each` limits each wait, `limit_all` their sum.

    `begin`, `end` and `interrupted` are the same in steps, for loops that wait ten thousand times.
    """

    __slots__ = (
        "_cancelling", "_due", "_each_s", "_end", "_fired", "_handle", "_limit", "_loop", "_stop", "_task",
    )  # fmt: skip

    def __init__(self, total_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._stop = self._loop.time() + total_s
        self._each_s = self._due = _NEVER
        self._limit = "total_s"
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._fired = False
        self._handle: asyncio.TimerHandle | None = None

    def limit_each(self, limit: str, seconds: float) -> None:
        """Allow *seconds* for each wait from now on."""
        self._limit, self._each_s, self._stop = limit, seconds, self._end
        self._schedule(min(self._loop.time() + seconds, self._end))

    def limit_all(self, limit: str, seconds: float) -> None:
        """Allow *seconds* for all waits from now on together."""
        stop = min(self._loop.time() + seconds, self._end)
        self._limit, self._each_s, self._stop = limit, _NEVER, stop
        self._schedule(stop)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def begin(self) -> None:
        """Start a wait of this task; raise `DeadlineExceeded` if no time is left for it."""
        now = self._loop.time()
        if now >= self._stop:
            raise self._passed()
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._due = now + self._each_s
        self._cancelling = task.cancelling()
        self._task = task

    def end(self) -> None:
        """End the wait."""
        self._task = None

    def interrupted(self) -> DeadlineExceeded | None:
        """End a wait that was cancelled; return None if this timer did not cancel it."""
        task, self._task = self._task, None
        if not self._fired or task is None:
            return None
        self._fired = False
        return self._passed() if task.uncancel() <= self._cancelling else None

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        passed = self.interrupted()
        if passed is not None and isinstance(error, asyncio.CancelledError):
            raise passed from None

    def _passed(self) -> DeadlineExceeded:
        return DeadlineExceeded("total_s" if self._loop.time() >= self._end else self._limit)

    def _schedule(self, when: float) -> None:
        self.stop()
        self._handle = self._loop.call_at(when, self._check)

    def _check(self) -> None:
        """Interrupt an overdue wait, or reschedule the check for when one may be overdue."""
        now = self._loop.time()
        due = min(now + self._each_s if self._task is None else self._due, self._stop)
        self._handle = None
        if now < due:
            self._schedule(due)
        elif self._task is not None:
            self._fired = True
            self._task.cancel()
