"""Tasks that begin at once.

Theory of operation
-------------------
Most hooks never wait for anything. A task for each would cost more than the hook: it is run by the loop
later, and whoever started it is woken later still. So the first step of the work is done here and now, as a
task's own: the task is the current one, and the context is the work's. If the work is over with that, the
task was not needed and serves for the next one; there are some that wait for that (`Spares`). If not, the
task goes on from where the first step came to.

(Python 3.12 can start tasks like this by itself; 3.11 cannot.)
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from asyncio import current_task, get_running_loop
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_NOT_OVER: Any = object()


class Started(Generic[T]):
    """Work that has begun. `task` is there if it is not over yet."""

    __slots__ = ("_error", "_value", "task")

    def __init__(self, work: Coroutine[Any, Any, T], spares: Spares | None = None) -> None:
        self.task: asyncio.Task[T] | None = None
        self._value: T = _NOT_OVER
        self._error: BaseException | None = None
        loop = get_running_loop()
        outer = current_task(loop)
        assert outer is not None
        rest = _Rest(loop) if spares is None else spares.take(loop)
        context = copy_context()
        _leave_task(loop, outer)
        _enter_task(loop, rest.task)
        try:
            pending = context.run(work.send, None)
        except StopIteration as stop:
            self._value = stop.value
        except KeyboardInterrupt:  # of the thread's own user
            raise
        except BaseException as error:
            self._error = error
        else:
            self.task = rest.task
            rest.take_over(work, context, pending)
        finally:
            _leave_task(loop, rest.task)
            _enter_task(loop, outer)
            if self.task is None:
                rest.let_go() if spares is None else spares.put_back(rest)

    @property
    def over(self) -> bool:
        return self.task is None

    def result(self) -> T:
        """What came of it, once it is over."""
        if self.task is not None:
            return self.task.result()
        if self._error is not None:
            raise self._error
        return self._value


class Spares:
    """Tasks that have nothing to do. Whoever has them closes them."""

    __slots__ = ("_free", "put_back")

    def __init__(self) -> None:
        self._free: list[_Rest] = []
        self.put_back = self._free.append

    def take(self, loop: asyncio.AbstractEventLoop) -> _Rest:
        while self._free:
            rest = self._free.pop()
            if rest.serves(loop):
                return rest
        return _Rest(loop)

    async def close(self) -> None:
        free = self._free.copy()
        self._free.clear()
        loop = asyncio.get_running_loop()
        tasks = [rest.task for rest in free if rest.serves(loop)]
        for rest in free:
            rest.let_go()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Rest:
    """What is left of some work after its first step, to be done by a task that waits for it."""

    __slots__ = ("_context", "_loop", "_pending", "_wake", "_work", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wake: asyncio.Future[None] = loop.create_future()
        self._pending: Any = _NOT_OVER
        self._work: Coroutine[Any, Any, Any]
        self._context: contextvars.Context
        run = self._run()
        run.send(None)  # it has begun: a cancellation that comes first then reaches the work
        self.task: asyncio.Task[Any] = loop.create_task(run, context=contextvars.Context())

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the task still waits, on this loop."""
        return self._loop is loop and not self.task.cancelling()

    def take_over(self, work: Coroutine[Any, Any, Any], context: contextvars.Context, pending: Any) -> None:
        self._work, self._context, self._pending = work, context, pending
        self.let_go()

    def let_go(self) -> None:
        """Let the task go on: with the work that it has taken over, or to its end."""
        if not self._wake.done() and not self._loop.is_closed():
            self._wake.set_result(None)

    async def _run(self) -> Any:
        return await self._go_on()

    @types.coroutine
    def _go_on(self) -> Generator[Any, Any, Any]:
        """Take over the work in the middle, as `yield from` would have from its beginning."""
        step, given = "", None
        try:
            yield
            yield from self._wake
        except BaseException as error:
            step, given = "throw", error
            if self._pending is _NOT_OVER:
                raise
        if self._pending is _NOT_OVER:
            return None  # nobody has needed it
        pending = self._pending
        while True:
            try:
                if step:
                    pending = self._context.run(getattr(self._work, step), given)
            except StopIteration as stop:
                return stop.value
            try:
                step, given = "send", (yield pending)
            except BaseException as error:
                step, given = "throw", error
