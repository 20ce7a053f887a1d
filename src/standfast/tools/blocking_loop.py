"""An event loop for callers that have none: callbacks run on the calling thread, and there is no I/O.

Theory of operation
-------------------
`run` drives one coroutine to its end on the calling thread. Whatever the coroutine awaits is a future that a
callback settles: one that is due at once, a timer, or one that another thread has posted. While none is due,
the thread waits for a post. There is no selector and no wake-up pipe, so that a coroutine that never waits
costs little more than a call.

Rule: a loop belongs to the thread that made it; only `call_soon_threadsafe` may be called from others.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from standfast.tools.eager import Spares

T = TypeVar("T")
log: Final = logging.getLogger("standfast")

_loops: Final = threading.local()


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end on this thread. An event loop that runs here, as in a notebook, waits."""
    loop: BlockingLoop | None = getattr(_loops, "loop", None)
    if loop is None or loop.is_running():
        loop = _loops.loop = BlockingLoop()  # type: ignore[abstract]
    return loop.run(work)


class BlockingLoop(asyncio.AbstractEventLoop):
    """Implements what futures and tasks need of a loop, and nothing else."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self._posted: queue.SimpleQueue[asyncio.Handle] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0
        self._running = False
        self.spares = Spares()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* to its end, and every callback that is due until then."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._running = True
        try:
            task = asyncio.Task(work, loop=self)
            try:
                while not task.done():
                    self._step()
            except BaseException:  # Ctrl-C: end the work, then let the caller have the exception
                task.cancel()
                while not task.done():
                    self._step()
                raise
            while self._ready:  # tasks that the work has cancelled end now
                self._step()
            return task.result()
        finally:
            self._running = False
            asyncio._set_running_loop(outer)

    def _step(self) -> None:
        """Run what is due, or wait until something is."""
        ready = self._ready
        if not ready:
            self._wait()
        while not self._posted.empty():
            ready.append(self._posted.get())
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _wait(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        timeout = max(0.0, timers[0][0] - time.monotonic()) if timers else None
        try:
            self._ready.append(self._posted.get(timeout=timeout))
        except queue.Empty:
            self._ready.append(heapq.heappop(timers)[2])

    # What asyncio asks of a loop

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._posted.put(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is dropped when it is the next one."""

    def time(self) -> float:
        return time.monotonic()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # spares wait as long as the loop lives
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        log.error("%s", context.get("message"), exc_info=context.get("exception"))
