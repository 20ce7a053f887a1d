"""A future that can resume the task awaiting it without another cycle of the event loop.

Theory of operation
-------------------
With a plain future, a result from another thread reaches its task in two cycles of the task's loop: the first
runs the callback that sets the future's result, the second resumes the task. Each cycle polls the loop's file
descriptors. Setting the result of a `PromptFuture` can resume the task directly, in the first cycle.

Rules
-----
1. Code that runs within a task cannot resume another task, so from there the awaiter is resumed in the next
   cycle.
2. A caller that passes `at_once` must not hold a lock that the task may wait for, and must let `SystemExit`
   and `KeyboardInterrupt`, which the task may raise, pass through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class PromptFuture(asyncio.Future[T]):
    """A future that one task awaits. Other callbacks are called as those of a plain future are."""

    _resume: Callable[[Any], object] | None = None
    _context: Context | None = None

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        if context is None or self._resume is not None or self.done():
            super().add_done_callback(fn, context=context)
        else:
            self._resume, self._context = fn, context

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        if fn != self._resume:
            return super().remove_done_callback(fn)
        self._resume = None
        return 1 + super().remove_done_callback(fn)

    def set_result(self, result: T, /, *, at_once: bool = False) -> None:
        """Set the result, and resume the awaiting task in the next cycle or, with *at_once*, immediately."""
        super().set_result(result)
        self._wake(at_once)

    def set_exception(self, exception: type | BaseException, /, *, at_once: bool = False) -> None:
        super().set_exception(exception)
        self._wake(at_once)

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self._wake(at_once=False)
        return cancelled

    def _wake(self, at_once: bool) -> None:
        resume, context = self._resume, self._context
        if resume is None or context is None:
            return
        self._resume = self._context = None
        if at_once and asyncio.current_task() is None:
            context.run(resume, self)
        else:
            self.get_loop().call_soon(resume, self, context=context)
