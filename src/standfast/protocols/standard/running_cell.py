"""One cell while it runs: on a thread of the engine, or standing still until the turn has a result for it.

Theory of operation
-------------------
The engine computes on a thread until the code ends or stands still. Then the turn is asked for the next
result, and hands it over whenever it has it; both happen on the turn's loop, and the engine goes on at once::

    run ─ thread: start ─ loop: ask ─ … ─ loop: hear ─ thread: answer ─ loop: ask ─ … ─ through ─ end

When the code is through, the turn may hear of it while the engine still stores what was left.

Rule: everything but the engine is touched on the turn's loop alone, except where it says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

from standfast.errors import Code, ErrorObject
from standfast.plugins.protocol import CodeExecutionContext
from standfast.ports.code_engine import (
    CallAnswer,
    CellEnd,
    CellPause,
    CellRequest,
    CellRun,
    CellStep,
    CodeEngine,
)
from standfast.tools.blocking_loop import BlockingLoop


class RunningCell:
    """One cell from its beginning, or from where it was suspended, to its end."""

    def __init__(self, ctx: CodeExecutionContext, engine: CodeEngine) -> None:
        self._ctx = ctx
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._through: asyncio.Future[CellEnd] = self._loop.create_future()
        self._ended: asyncio.Future[CellEnd] = self._loop.create_future()
        self._run: CellRun | None = None
        self._computing = False
        self._given_up = False
        self._heard = 0
        self._inline = isinstance(self._loop, BlockingLoop)
        self._hearing = False

    async def run_request(self, request: CellRequest) -> CellEnd:
        """Run a cell until its code is through. What that left may still be stored: `end` waits for it."""
        try:
            self._compute(lambda: self._begin(request))
            return await self._through
        except BaseException:
            self._give_up()
            raise

    async def end(self) -> CellEnd:
        """The end with what the cell left: that of `run_request`, unless what it left could not be stored."""
        try:
            return await self._ended
        except BaseException:
            self._give_up()
            raise

    def left(self) -> bytes | None:
        """What the code left, once the cell has ended; None if that is what there was."""
        return self._ended.result().state

    async def suspend_run(self) -> bytes:
        """Suspend a cell that stands still, and return it as bytes."""
        run, self._run = self._run, None
        assert run is not None
        return await self._ctx.threads.run(run.suspend)

    def heard_before(self, count: int) -> None:
        """The cell goes on from where it had *count* results."""
        self._heard = count
        self._ctx.heard(count)

    def _begin(self, request: CellRequest) -> CellStep:
        """Start the cell, in the engine's thread."""
        run = self._run = self._engine.open(request)
        if self._given_up:
            run.stop(_cancelled())
        return run.start()

    def _compute(self, work: Callable[[], CellStep]) -> None:
        """Have the engine compute; what it comes to is heard on the loop."""
        self._computing = True
        self._ctx.threads.start(lambda: self._work(work))

    def _stands(self, step: CellPause) -> None:
        """Ask the turn for the next result."""
        try:
            self._ctx.ask(step.calls, self._hear)
        except Exception as error:
            self._fail(error)

    def _hear(self, number: int, answer: CallAnswer) -> None:
        run = self._run
        if run is None or self._given_up:  # it was suspended, or the turn is over
            return
        self._heard += 1
        self._compute(functools.partial(run.answer, number, answer))

    def _came_to(self, step: CellStep | None, error: BaseException | None) -> None:
        """The engine has stopped computing. Nobody waits for it once the turn was cancelled.

        A future is cancelled before the task that awaits it, which then gives the cell up.
        """
        self._computing = False
        if self._given_up:
            if isinstance(step, CellPause):
                self._close()  # `stop` came after its last step
            return
        if self._through.cancelled() or self._ended.cancelled():
            return
        if isinstance(step, CellPause):
            self._stands(step)
        elif step is not None:
            self._came_through(step)
            self._ended.set_result(step)
        else:
            assert error is not None
            self._fail(error)

    def _came_through(self, end: CellEnd) -> None:
        if not self._through.done():
            self._through.set_result(end)

    def _fail(self, error: BaseException) -> None:
        """Nobody waits for both: whoever has heard of the end waits for what is left of it."""
        waited = self._ended if self._through.done() else self._through
        waited.set_exception(error)

    def _give_up(self) -> None:
        """The turn goes on without the cell. One that computes is stopped, one that stands still closed."""
        self._given_up = True
        if not self._computing:
            self._close()
        elif self._run is not None:
            self._run.stop(_cancelled())

    def _close(self) -> None:
        if self._run is not None:
            self._ctx.threads.start(self._run.close)

    # Called in the engine's thread

    def _work(self, work: Callable[[], CellStep]) -> Callable[[], None]:
        """Compute; what tells the loop of it."""
        step: CellStep | None = None
        problem: BaseException | None = None
        try:
            step = work()
            if isinstance(step, CellEnd):
                step = self._whole(step)
        except KeyboardInterrupt as error:
            if self._inline:  # of the caller, whose thread this is
                self._computing = False
                raise
            problem = error
        except BaseException as error:
            problem = error
        return functools.partial(self._say, self._came_to, step, problem)

    def _say(self, hear: Callable[..., None], *what: Any) -> None:
        """Have the loop hear something: at once where the cell computes on its thread."""
        if self._inline and not self._hearing and asyncio._get_running_loop() is self._loop:
            self._hearing = True
            try:
                hear(*what)
            finally:
                self._hearing = False
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(hear, *what)

    def _whole(self, end: CellEnd) -> CellEnd:
        """The end as the turn is to hear of it, in the engine's thread."""
        return end


def _cancelled() -> ErrorObject:
    return ErrorObject(code=Code.CANCELLED, message="the cell was cancelled")
