"""A future that can resume its awaiter without a further cycle of the loop.

Theory of operation
-------------------
A result that another thread has made reaches its task in two cycles of the task's loop: the first runs the
callback that sets the result of a future, the second resumes the task. Each polls the files of the loop. The
callback of a `PromptFuture` resumes the task itself.

Rules
-----
1. Code that runs within a task cannot resume another one, so there it is resumed in the next cycle.
2. Code that settles a future at once holds no lock that the task may wait for, and is prepared for what the
   task may raise through it: `SystemExit` or `KeyboardInterrupt`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class PromptFuture(asyncio.Future[T]):
    """A future for one task. Any other callback is called as that of a plain future."""

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
        """Settle the future; resume the task that awaits it *at_once*, or in the next cycle."""
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
