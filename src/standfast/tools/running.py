"""Calls while they are executed, and the limit on how many of a tool run at once. Waiting costs no thread."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from standfast.tools.admission import Admitted
from standfast.tools.context import RunContext
from standfast.tools.loop_threads import LoopJob

if TYPE_CHECKING:
    import asyncio


class Slots:
    """Grants a number of slots, in order; whoever gives one back starts the next in line."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()

    def take(self, granted: Callable[[], None]) -> None:
        """Call *granted* when there is a slot: now, or from the thread that gives one back."""
        with self._lock:
            if self._free == 0:
                self._queue.append(granted)
                return
            self._free -= 1
        granted()

    def give_back(self) -> None:
        with self._lock:
            if not self._queue:
                self._free += 1
                return
            granted = self._queue.popleft()
        granted()


class RunningCall:
    """A call under way. Its handler's outcome arrives once, on `inbox`, unless it expires first.

    `deadline` is set when the handler starts; waiting for a slot does not count.
    """

    __slots__ = ("_finished", "_slots", "_task", "call", "deadline", "inbox", "started")

    def __init__(self, call: Admitted, inbox: Listener) -> None:
        self.call = call
        self.inbox = inbox
        self.started = 0.0
        self.deadline: float | None = None
        self._finished = threading.Lock()
        self._slots: Slots | None = None
        self._task: LoopJob[Any] | asyncio.Task[Any] | None = None

    def finish(self, value: object, error: BaseException | None) -> None:
        """Called by whoever ran the handler."""
        if self._end():
            self.inbox.put(Arrived(self, value, error))

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


def invoke(call: Admitted) -> Any:
    """Call the handler; of an async tool, what is to be awaited."""
    bound = call.bound
    if call.tool.isolate:
        return call.tool.handler(*bound.args, timeout_ms=call.timeout_ms)
    if not call.tool.takes_context:
        return call.tool.handler(*bound.args, **bound.kwargs)
    context = call.run_context or RunContext(None, call.session_id, call_id=call.call_id)
    return call.tool.handler(context, *bound.args, **bound.kwargs)


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
