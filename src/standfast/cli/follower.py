"""Runs work on a session in a background event loop, and follows the session's events meanwhile.

The event loop has its own thread. Ctrl-C and SIGTERM arrive on the main thread, which only ever waits for a
future or for a line of input, so they take effect immediately whatever a tool does to the loop. A `Follower`
reads the live feed of the session, not one turn, so it also shows turns that the runtime resumes or starts by
itself. Following ends when the work is done and nothing runs; later events are shown the next time.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from standfast.cli.agent_host import AgentHost
from standfast.cli.turn_report import TurnReport, report_turn
from standfast.errors import TurnNotFound
from standfast.model.events import Event, TurnBegan
from standfast.runtime.sessions.live_session import LiveSession
from standfast.runtime.turn import Subscription
from standfast.tools.loop_threads import LoopThread
from standfast.tools.threads import interruptible_result

T = TypeVar("T")

_LOOK_S = 0.05
"""The interval for checking whether the turns that the runtime started by itself have ended."""
_PATIENCE_S = 5.0
"""The time limit on leaving if a tool has blocked the loop."""


class Terminated(Exception):
    """SIGTERM arrived: shut down in order."""


class InterruptedTwice(Exception):
    """Ctrl-C arrived twice: leave now. The turn stays unfinished and can be resumed."""


class BackgroundLoop:
    """Runs coroutines on its loop and waits for them on the calling thread."""

    def __init__(self) -> None:
        self._thread = LoopThread()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of *work*. Ctrl-C cancels it."""
        future = self._begin(work)
        try:
            return interruptible_result(future)
        except BaseException:
            future.cancel()
            raise

    def attend(self, work: Coroutine[Any, Any, T], interrupt: Callable[[], Coroutine[Any, Any, None]]) -> T:
        """Return the result of *work*. Ctrl-C runs *interrupt*; a second one raises `InterruptedTwice`."""
        future = self._begin(work)
        interrupted = False
        while True:
            try:
                return interruptible_result(future)
            except KeyboardInterrupt:
                if interrupted:
                    raise InterruptedTwice from None
                interrupted = True
                self._begin(interrupt())

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work*, unless the loop does not respond, and stop the loop."""
        with suppress(TimeoutError):
            self._begin(work).result(_PATIENCE_S)
        self._thread.close()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._thread.loop)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Make SIGTERM raise `Terminated` on the main thread."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread; no signal arrives here
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Follower:
    """Runs work on one session of a host and shows the session's events. Used on the host's loop."""

    def __init__(self, host: AgentHost, session_id: str, show: Callable[[Event], None]) -> None:
        self.session_id = session_id
        self.host = host
        self._show = show
        self._subscription: Subscription | None = None
        self._work: asyncio.Future[Any] | None = None

    @property
    def _live(self) -> LiveSession:
        return self.host.runtime.live(self.session_id)

    async def follow(self, work: Coroutine[Any, Any, Any]) -> TurnReport | None:
        """Await *work* and show events; return the report of the last turn that ran, if any did."""
        if self._subscription is None:
            self._subscription = self._live.events.feed.listen(Subscription())
        subscription = self._subscription
        self._work = task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: subscription.ring())
        turn_id = None
        is_over = False
        try:
            while True:
                while (event := subscription.take()) is not None:
                    if isinstance(event, TurnBegan):
                        turn_id = event.turn_id
                    self._show(event)
                if is_over:
                    break
                if not task.done():
                    await subscription.wait()
                elif self._live.tasks():
                    await subscription.wait(_LOOK_S)
                else:
                    is_over = True  # show the remaining events
        finally:
            task.cancel()
            self._work = None
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, TurnNotFound):  # another process has finished the turn
            raise error
        return None if turn_id is None else await report_turn(self.host.runtime, turn_id)

    async def cancel(self) -> None:
        """Cancel the running turn; if there is none, cancel the work."""
        driver = self._live.driver
        if driver is not None and await self._live.cancel(driver.turn_id):
            return
        for task in (self._work, *self._live.tasks()):
            if task is not None:
                task.cancel()


def carry_out(
    follower: Follower, work: Coroutine[Any, Any, Any], on_cancel: Callable[[], None]
) -> TurnReport | None:
    """Follow *work* with its host open. Ctrl-C cancels the turn; a second one raises `InterruptedTwice`."""
    background = BackgroundLoop()

    async def cancel() -> None:
        on_cancel()
        await follower.cancel()

    with sigterm_raises():
        background.run(follower.host.__aenter__())
        try:
            return background.attend(follower.follow(work), cancel)
        finally:
            background.leave(follower.host.__aexit__(None, None, None))
