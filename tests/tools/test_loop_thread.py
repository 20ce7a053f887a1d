"""The event loop in a separate thread."""

from __future__ import annotations

import asyncio

import pytest

from standfast.tools.loop_threads import LoopThread


def test_work_that_exits_does_not_end_the_loop() -> None:
    """Bug: `recover --watch` hung after its output was closed, because the loop had ended."""
    thread = LoopThread()

    async def leave() -> None:
        raise SystemExit(3)

    async def answer() -> int:
        return 42

    with pytest.raises(SystemExit):
        asyncio.run_coroutine_threadsafe(leave(), thread.loop).result(30)
    assert asyncio.run_coroutine_threadsafe(answer(), thread.loop).result(30) == 42
    thread.close()
