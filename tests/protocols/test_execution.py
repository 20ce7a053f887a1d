"""Time-outs of calls, which the turn's event loop enforces."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from standfast.protocols.standard.host import Execution, RunningCalls
from standfast.tools.dispatch import RunningCall


class _Timed(Execution):
    """A call whose handler, which never returns, was started with *left* seconds left."""

    def __init__(self, left: float, calls: RunningCalls) -> None:
        turn = SimpleNamespace(dispatcher=SimpleNamespace(start=self._begin))
        call = SimpleNamespace(tool=None)
        super().__init__(cast(Any, turn), cast(Any, call), calls, lambda given, at_once=False: None)
        self.left = left
        self.expired = 0

    def _begin(self, running: RunningCall) -> None:
        self.deadline = time.monotonic() + self.left

    def seconds_left(self) -> float:
        return self.left

    def expire(self) -> None:
        self.expired += 1  # its result is being converted


@pytest.mark.parametrize(("left", "is_set_again"), [(0.002, True), (0.0, False)])
def test_a_timer_that_fires_early_is_set_again_but_an_overdue_call_expires(
    left: float, is_set_again: bool
) -> None:
    """Bug: converting the large result of a finished call blocked the loop."""

    async def main() -> None:
        calls = RunningCalls()
        execution = _Timed(left, calls)
        execution.start()
        calls._expire()
        assert (calls._timer is not None) is is_set_again
        assert execution.expired == (not is_set_again)
        calls.abandon()

    asyncio.run(main())


def test_one_timer_serves_all_calls_of_a_turn() -> None:
    """Ours: the timer fires for the call that is due first, whichever started first."""

    async def main() -> None:
        calls = RunningCalls()
        for left in (60.0, 30.0, 90.0):
            _Timed(left, calls).start()
        loop = asyncio.get_running_loop()
        assert calls._timer is not None
        assert 29 < calls._timer.when() - loop.time() <= 30
        calls.abandon()

    asyncio.run(main())
