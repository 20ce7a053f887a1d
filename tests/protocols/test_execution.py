"""The time of a call, as the turn's loop keeps it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from standfast.protocols.standard.host import Execution


@pytest.mark.parametrize(("left", "is_set_again"), [(0.002, True), (0.0, False)])
def test_a_timer_that_rings_early_is_set_again_and_no_other(left: float, is_set_again: bool) -> None:
    """Bug: converting the large result of a finished call blocked the loop."""
    dispatcher = SimpleNamespace(seconds_left=lambda running: left, expire=lambda running: None)

    async def main() -> None:
        nothing = cast(Any, None)
        turn = SimpleNamespace(dispatcher=dispatcher)
        execution = Execution(cast(Any, turn), nothing, lambda given: None)
        execution._expire(nothing)
        assert (execution._timer is not None) is is_set_again
        execution.abandon()

    asyncio.run(main())
