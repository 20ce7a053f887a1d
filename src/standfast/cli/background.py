"""An event loop on a thread of its own, while the main thread types, waits and hears signals.

Theory of operation
-------------------
Ctrl-C and SIGTERM arrive on the main thread, which only ever waits for a future or for a line: so they are
heard at once, whatever a tool does to the event loop. The loop goes on while somebody types, and with it
everything that the runtime does by itself.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from standfast.tools.loop_thread import LoopThread

T = TypeVar("T")

_PATIENCE_S = 5.0
"""How long leaving waits for a loop that a tool may have blocked."""


class Terminated(Exception):
    """SIGTERM came: leave, and leave everything in order."""


class Leave(Exception):
    """Ctrl-C came again: leave now. What runs stays unfinished and can be taken up again."""


class Background:
    """Runs coroutines on its loop and waits for them on the calling thread."""

    def __init__(self) -> None:
        self._thread = LoopThread()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of *work*. Ctrl-C gives it up."""
        future = self._begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def attend(self, work: Coroutine[Any, Any, T], interrupt: Callable[[], Coroutine[Any, Any, None]]) -> T:
        """The result of *work*. Ctrl-C runs *interrupt*, which should bring it to an end; then `Leave`."""
        future = self._begin(work)
        interrupted = False
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                if interrupted:
                    raise Leave from None
                interrupted = True
                self._begin(interrupt())

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        """Do a last thing, unless the loop does not answer, and end the loop."""
        with suppress(TimeoutError):
            self._begin(work).result(_PATIENCE_S)
        self._thread.close()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._thread.loop)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Make SIGTERM raise `Terminated` on the main thread, wherever it waits."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not on the main thread, where no signal arrives
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
