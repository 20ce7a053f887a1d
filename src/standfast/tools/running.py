"""Calls while they are executed."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from standfast.ports.journal import CallJournal
from standfast.tools.admission import Admitted
from standfast.tools.loop_threads import LoopJob
from standfast.tools.slots import Slots

if TYPE_CHECKING:
    import asyncio


class RunningCall:
    """A call under way. Its handler's outcome arrives once, on `inbox`, unless it expires first.

    `deadline` is set when the handler starts; waiting for a slot does not count.
    """

    __slots__ = ("_finished", "_slots", "_task", "call", "deadline", "inbox", "journal", "started")

    def __init__(self, call: Admitted, inbox: Listener, journal: CallJournal | None) -> None:
        self.call = call
        self.inbox = inbox
        self.journal = journal
        self.started = 0.0
        self.deadline: float | None = None
        self._finished = threading.Lock()
        self._slots: Slots | None = None
        self._task: LoopJob[Any] | asyncio.Task[Any] | None = None

    def finish(self, value: object, error: BaseException | None) -> None:
        """Called by whoever ran the handler."""
        if self._end():
            self.inbox.put(Arrived(self, value, error))

    def run_here(self) -> Arrived | None:
        """Run the handler on this thread; None if it was abandoned meanwhile."""
        call = self.call
        try:
            arrived = Arrived(self, call.invoke(), None)
        except BaseException as error:
            arrived = Arrived(self, None, error)
        return arrived if self._end() else None

    def abandon(self) -> bool:
        """Give the handler up; what it does later is not heard. False if it had finished."""
        ended = self._end()
        task = self._task
        if not ended or task is None:
            return ended
        if isinstance(task, LoopJob):
            task.cancel()
        else:
            task.get_loop().call_soon_threadsafe(task.cancel)
        return True

    def _end(self) -> bool:
        if not self._finished.acquire(blocking=False):
            return False
        if self._slots is not None:
            self._slots.give_back()
        return True


@dataclass(frozen=True, slots=True)
class Arrived:
    """A handler has returned or raised."""

    running: RunningCall
    value: object
    error: BaseException | None


class Listener(Protocol):
    """Whoever hears about a call: a queue, or something like it."""

    def put(self, item: Any, /) -> None: ...


Inbox = queue.SimpleQueue[Any]
"""Where a caller hears about its calls: `Arrived`, or the `RunningCall` itself when its handler starts."""

UNHEARD: Inbox = queue.SimpleQueue()
"""The inbox of calls whose handlers the caller runs itself; nothing is ever put into it."""
