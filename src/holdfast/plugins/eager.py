"""Tasks that begin at once.

Theory of operation
-------------------
Most hooks never wait for anything. A task for each would cost more than the hook: it is run by the loop
later, and whoever started it is woken later still. So the first step of the work is done here and now, as the
task's own: the task is the current one, and the context is its. If the work is over with that, nobody waits
for the task, which finds nothing left to do. If not, the task goes on from where the first step came to.

(Python 3.12 can start tasks like this by itself; 3.11 cannot.)
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")

_NOT_OVER: Any = object()
_SEND, _THROW = "send", "throw"


class Started(Generic[T]):
    """Work that has begun. `task` is there if it is not over yet."""

    __slots__ = ("_error", "_value", "task")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.task: asyncio.Task[T] | None = None
        self._value: T = _NOT_OVER
        self._error: BaseException | None = None
        self._begin(work)

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

    def _begin(self, work: Coroutine[Any, Any, T]) -> None:
        loop = asyncio.get_running_loop()
        rest = _Rest.take(loop)
        rest.work = work
        rest.context = contextvars.copy_context()
        outer = asyncio.current_task()
        assert outer is not None
        _leave_task(loop, outer)
        _enter_task(loop, rest.task)
        try:
            rest.pending = rest.context.run(work.send, None)
        except StopIteration as stop:
            self._value = stop.value
        except BaseException as error:
            self._error = error
        else:
            self.task = rest.task
        finally:
            _leave_task(loop, rest.task)
            _enter_task(loop, outer)
        if self.task is None:
            rest.give_back()


class _Rest:
    """What is left of some work after its first step, to be done by a task.

    A task that was not needed, and that the loop has not come to yet, serves for the next work.
    """

    __slots__ = ("_begun", "_loop", "context", "pending", "task", "work")

    _spare: ClassVar[_Rest | None] = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._begun = False
        self.pending: Any = _NOT_OVER
        self.work: Coroutine[Any, Any, Any]
        self.context: contextvars.Context
        run = self._run()
        run.send(None)  # it has begun: a cancellation that comes first then reaches the work
        self.task: asyncio.Task[Any] = loop.create_task(run)

    @classmethod
    def take(cls, loop: asyncio.AbstractEventLoop) -> _Rest:
        spare, cls._spare = cls._spare, None
        if spare is None or spare._loop is not loop or spare._begun or spare.task.cancelling():
            return cls(loop)
        return spare

    def give_back(self) -> None:
        _Rest._spare = self

    async def _run(self) -> Any:
        return await self._go_on()

    @types.coroutine
    def _go_on(self) -> Generator[Any, Any, Any]:
        """Take over the work in the middle, as `yield from` would have from its beginning."""
        step: Any = None
        given: Any = None
        try:
            yield
        except BaseException as error:
            step, given = _THROW, error
        self._begun = True
        if self.pending is _NOT_OVER:
            return None  # the first step was the last
        pending = self.pending
        while True:
            try:
                if step is not None:
                    pending = self.context.run(getattr(self.work, step), given)
            except StopIteration as stop:
                return stop.value
            try:
                step, given = _SEND, (yield pending)
            except BaseException as error:
                step, given = _THROW, error
