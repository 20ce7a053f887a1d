"""How long a model's server may take, and the watch that is kept on it.

Theory of operation
-------------------
A watch has one timer for a whole reply. Whoever waits notes since when. The timer, when it goes off, looks
whether somebody has waited for too long, and if not sets itself again to when that could be. So a chunk costs
no timer and no task of its own.

Rules
-----
1. Only who waits is interrupted, never who consumes: between two waits the watch does nothing.
2. A wait that is cancelled from outside stays cancelled, whether or not its time was up as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Final

from standfast.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds. The first byte is that of the reply's body, counted from the call as the whole is.

    Whatever comes counts as a chunk, comments too.
    """

    connect_s: float = 10.0
    first_byte_s: float = 300.0
    between_chunks_s: float = 300.0
    total_s: float = 3600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InvalidArgument(f"the deadline {field.name} must be more than 0")


class Overdue(Exception):
    """A wait took too long; `limit` names the deadline. Who waits makes a `ModelError` of it."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


_NEVER: Final = float("inf")


class Watch:
    """`with watch:` around each wait. `each` says how long one may take, `until` how long all together.

    `begin`, `end` and `interrupted` are the same in pieces, for who waits ten thousand times.
    """

    __slots__ = (
        "_cancelling",
        "_due",
        "_each_s",
        "_end",
        "_limit",
        "_loop",
        "_stop",
        "_task",
        "_timer",
        "_went_off",
    )

    def __init__(self, total_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._stop = self._loop.time() + total_s
        self._each_s = self._due = _NEVER
        self._limit = "total_s"
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._went_off = False
        self._timer: asyncio.TimerHandle | None = None

    def each(self, limit: str, seconds: float) -> None:
        """Let each wait from now on take that long."""
        self._limit, self._each_s, self._stop = limit, seconds, self._end
        self._look_at(min(self._loop.time() + seconds, self._end))

    def until(self, limit: str, seconds: float) -> None:
        """Let all waits from now on take that long together."""
        stop = min(self._loop.time() + seconds, self._end)
        self._limit, self._each_s, self._stop = limit, _NEVER, stop
        self._look_at(stop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self) -> None:
        """From now on this task waits; `Overdue` if there is no time left for that."""
        now = self._loop.time()
        if now >= self._stop:
            raise self._overdue()
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._due = now + self._each_s
        self._cancelling = task.cancelling()
        self._task = task

    def end(self) -> None:
        """It has waited."""
        self._task = None

    def interrupted(self) -> Overdue | None:
        """It was cancelled: this is why, or None if somebody else cancelled it."""
        task, self._task = self._task, None
        if not self._went_off or task is None:
            return None
        self._went_off = False
        return self._overdue() if task.uncancel() <= self._cancelling else None

    def __enter__(self) -> None:
        self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        overdue = self.interrupted()
        if overdue is not None and isinstance(error, asyncio.CancelledError):
            raise overdue from None

    def _overdue(self) -> Overdue:
        return Overdue("total_s" if self._loop.time() >= self._end else self._limit)

    def _look_at(self, when: float) -> None:
        self.stop()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """Interrupt a wait that is overdue, or look again when one may be."""
        now = self._loop.time()
        due = min(now + self._each_s if self._task is None else self._due, self._stop)
        self._timer = None
        if now < due:
            self._look_at(due)
        elif self._task is not None:
            self._went_off = True
            self._task.cancel()
