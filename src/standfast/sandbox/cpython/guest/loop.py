"""The event loop of guest code: it waits for the host, and for nothing else.

Theory of operation
-------------------
When nothing is ready, every task waits for an answer or for a moment. A moment is waited for by a call like
any other, `sleep`, so that the time that passes is the host's; then the host is asked for one answer.

Rules
-----
1. One answer at a time, and everything that it lets go on runs before the next one.
2. What code hands to another thread with `run_in_executor` is run at once, in this one: the order of things
   stays what the code says.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from .calls import SLEEP, Bridge, Later
from .clock import Surroundings

_THREAD_PATIENCE_S: Final = 0.05
_TICK_S: Final = 0.001
"""The host's clock counts milliseconds: a moment that is nearer has come."""
_real_monotonic: Final = time.monotonic


class HostLoop(asyncio.BaseEventLoop):
    """An event loop without a selector of its own."""

    def __init__(self, bridge: Bridge, around: Surroundings) -> None:
        super().__init__()
        self._bridge = bridge
        self._around = around
        self._reached = 0.0
        self._alarms: dict[int, tuple[float, Later]] = {}
        self._woken = threading.Event()
        self._selector = self
        self._clock_resolution = _TICK_S  # seconds since 1970 are too large for a float to hold less

    def time(self) -> float:
        return max(self._around.seconds(), self._reached)

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until something is ready. Asked whenever the loop has run what was."""
        if timeout is not None and timeout <= 0:
            return []
        if threading.active_count() > 1 and self._wait_for_threads():
            return []
        depth = sys.getrecursionlimit()
        sys.setrecursionlimit(depth + 400)
        try:
            self._set_alarm()
            self._bridge.settle_one()
            self._hear_alarms()
        finally:
            sys.setrecursionlimit(depth)
        return []

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _set_alarm(self) -> None:
        """Have the host wait for the next moment that a task waits for."""
        moments: list[Any] = self._scheduled  # type: ignore[attr-defined]
        if not moments:
            return
        when = moments[0]._when
        if all(at != when for at, _ in self._alarms.values()):
            alarm = self._bridge.call_later(SLEEP, (), {"seconds": max(0.0, when - self.time())})
            self._alarms[alarm.number] = (when, alarm)

    def _hear_alarms(self) -> None:
        for number, (when, alarm) in list(self._alarms.items()):
            if alarm.is_settled():
                del self._alarms[number]
                self._reached = max(self._reached, when)

    def _wait_for_threads(self) -> bool:
        """Whether another thread made something ready, given a moment to do so."""
        end = _real_monotonic() + _THREAD_PATIENCE_S
        while threading.active_count() > 1 and _real_monotonic() < end:
            if self._woken.wait(0.005):
                break
        woken = self._woken.is_set()
        self._woken.clear()
        return woken

    def _write_to_self(self) -> None:
        self._woken.set()

    def _process_events(self, events: list[Any]) -> None:
        """There are none: answers are settled where they are awaited."""


class HostPolicy(asyncio.DefaultEventLoopPolicy):
    """Gives guest code this loop whenever it asks for one."""

    def __init__(self, make: Callable[[], HostLoop]) -> None:
        super().__init__()
        self._make = make

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return self._make()


def install(bridge: Bridge, around: Surroundings) -> None:
    """Make asyncio wait for the host."""

    async def sleep(delay: float, result: Any = None) -> Any:
        if delay <= 0:
            await _yield_once()
        else:
            await bridge.call_later(SLEEP, (), {"seconds": float(delay)})
        return result

    asyncio.sleep = asyncio.tasks.sleep = sleep
    asyncio.set_event_loop_policy(HostPolicy(lambda: HostLoop(bridge, around)))


class _yield_once:  # noqa: N801
    """Lets the other tasks run."""

    def __await__(self) -> Any:
        yield None


def run_to_end(coroutine: Any) -> Any:
    """Run a coroutine as `asyncio.run` does."""
    with asyncio.Runner() as runner:
        return runner.run(coroutine)
