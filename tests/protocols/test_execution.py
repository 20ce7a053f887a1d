"""Time-outs of calls, which the turn's event loop enforces."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from standfast.protocols.standard.host import Execution, RunningCalls


class _Handler:
    """A call whose handler has *left* seconds left."""

    def __init__(self, left: float) -> None:
        self.deadline = time.monotonic() + left
        self.expired = 0

    def abandon(self) -> None:
        """Do nothing; no handler runs."""


def _dispatcher(running: _Handler, left: float) -> Any:
    def expire(running: _Handler) -> None:
        running.expired += 1  # its result is being converted

    return SimpleNamespace(
        start=lambda call, inbox: running, seconds_left=lambda running: left, expire=expire
    )


@pytest.mark.parametrize(("left", "is_set_again"), [(0.002, True), (0.0, False)])
def test_a_timer_that_fires_early_is_set_again_but_an_overdue_call_expires(
    left: float, is_set_again: bool
) -> None:
    """Bug: converting the large result of a finished call blocked the loop."""

    async def main() -> None:
        running, calls = _Handler(left), RunningCalls()
        turn = SimpleNamespace(dispatcher=_dispatcher(running, left))
        execution = Execution(cast(Any, turn), cast(Any, None), calls, lambda given, at_once=False: None)
        execution.start()
        calls._expire()
        assert (calls._timer is not None) is is_set_again
        assert running.expired == (not is_set_again)
        calls.abandon()

    asyncio.run(main())


def test_one_timer_serves_all_calls_of_a_turn() -> None:
    """Ours: the timer fires for the call that is due first, whichever started first."""

    async def main() -> None:
        calls = RunningCalls()
        for left in (60.0, 30.0, 90.0):
            turn = SimpleNamespace(dispatcher=_dispatcher(_Handler(left), left))
            Execution(cast(Any, turn), cast(Any, None), calls, lambda given, at_once=False: None).start()
        loop = asyncio.get_running_loop()
        assert calls._timer is not None
        assert 29 < calls._timer.when() - loop.time() <= 30
        calls.abandon()

    asyncio.run(main())
