"""Turns on uvloop, which is common in production and has different timers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Plugin, RunContext, Runtime, ScriptedModel, ToolMessage, hook, tool
from standfast.model.limits import CapabilityLimits

uvloop = pytest.importorskip("uvloop")


def test_a_durable_turn_in_code_waits_for_a_person_and_resumes(tmp_path: Path) -> None:
    """Ours: threads, processes and files work on uvloop as on asyncio's own loop."""

    @tool(side_effect="external_system", approval="manual")
    def refund(cents: int) -> str:
        """Pay back."""
        return f"paid {cents}"

    @tool(side_effect="none")
    async def price(item: str) -> int:
        """Look up."""
        await asyncio.sleep(0)
        return len(item)

    async def main() -> None:
        cell = '```python\ncents = price(item="book")\nfinish(refund(cents=cents))\n```'
        async with Runtime(tmp_path / "standfast.db") as runtime:
            agent = Agent(ScriptedModel([cell]), protocol="code", tools=[refund, price])
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("go")).status == "waiting"
            (asked,) = await session.approvals(pending=True)
            done = await session.approve(asked.approval_id)
            assert done is not None
            assert done.output == "paid 4"

    uvloop.run(main())


def test_a_hanging_tool_is_abandoned() -> None:
    """Bug: a timer that fired a millisecond early was not set again, and the turn waited for the tool."""

    async def main() -> None:
        release = threading.Event()

        @tool(limits=CapabilityLimits(timeout_ms=10))
        def hang() -> str:
            """Wait."""
            release.wait(10)
            return "late"

        async with Runtime() as runtime:
            asked = {"tool_calls": [{"name": "hang", "arguments": {}}]}
            session = await runtime.session("s", agent=Agent(ScriptedModel([asked, "end"]), tools=[hang]))
            done = await session.turn("hi")
            release.set()
            (result,) = [one for one in done.messages if isinstance(one, ToolMessage)]
            assert result.error is not None
            assert result.error.code == "TIMEOUT_TOOL"

    uvloop.run(main())


def test_a_blocking_async_tool_times_out_and_a_hook_can_use_the_host() -> None:
    """Ours: tools and hooks have their own loops and can call back to this one."""
    released = threading.Event()

    class Slow(Plugin):
        @hook
        async def before_turn(self, ctx: Any) -> None:
            await ctx.host.snapshot_current()

    @tool(side_effect="read", limits=CapabilityLimits(timeout_ms=200))
    async def block(ctx: RunContext[None]) -> str:
        """Block."""
        assert await ctx.host.list_background_tasks(ctx.session_id) == []
        released.wait(20)
        return "late"

    async def main() -> None:
        async with Runtime() as runtime:
            asked = {"tool_calls": [{"name": "block", "arguments": {}}]}
            agent = Agent(ScriptedModel([asked, "end"]), tools=[block], plugins=[Slow()])
            session = await runtime.session("s", agent=agent)
            done = await asyncio.wait_for(session.turn("hi"), 20)
            (result,) = [one for one in done.messages if isinstance(one, ToolMessage)]
            assert result.error is not None
            assert result.error.code == "TIMEOUT_TOOL"

    try:
        uvloop.run(main())
    finally:
        released.set()
