"""The work of a turn in a session with many earlier turns."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

from standfast import Agent, RunContext, Runtime, ScriptedModel, Session, tool
from standfast.model.message import AttachmentPart, UserMessage


async def _calls_of_a_turn(session: Session[str]) -> int:
    """Return the number of functions, of Python and of C, that the loop's thread calls in a turn."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        await session.turn("more")
    finally:
        sys.setprofile(before)
    return calls


def test_a_turn_does_no_more_work_after_many_turns_than_after_few() -> None:
    """Bug: each model call searched all earlier messages for attachments: turn 10,000 cost threefold."""

    async def run() -> tuple[int, int]:
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=Agent(ScriptedModel(["yes"] * 400, strict=False)))
            for _ in range(10):
                await session.turn("go")
            few = await _calls_of_a_turn(session)
            for _ in range(300):
                await session.turn("go")
            return few, await _calls_of_a_turn(session)

    few, many = asyncio.run(run())
    assert many < few + 100  # there are 600 more messages


@pytest.fixture
def steps() -> Iterator[list[int]]:
    """Return the number of steps of SQLite's virtual machine for each statement."""
    taken: list[int] = []

    def profile(statement: dict[str, Any]) -> None:
        taken.append(statement["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])

    def trace(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, profile)

    apsw.connection_hooks.append(trace)
    yield taken
    apsw.connection_hooks.remove(trace)


def test_opening_a_session_costs_sqlite_no_more_work_in_a_large_store_than_in_a_small_one(
    tmp_path: Path, steps: list[int]
) -> None:
    """Bug: opening a session searched every turn of the store for unfinished ones."""
    agent = Agent(ScriptedModel(["yes"] * 500, strict=False))
    names = itertools.count()

    async def sessions(runtime: Runtime, number: int) -> int:
        """Return the steps of one turn for each of several new sessions."""
        steps.clear()
        for _ in range(number):
            await (await runtime.session(f"s{next(names)}", agent=agent)).turn("go")
        return sum(steps) // number

    async def run() -> tuple[int, int]:
        async with Runtime(tmp_path) as runtime:
            await sessions(runtime, 5)
            small = await sessions(runtime, 5)
            await sessions(runtime, 300)
            return small, await sessions(runtime, 5)

    small, large = asyncio.run(run())
    assert large < small + 200  # there are 300 more turns


def test_an_image_shown_by_a_tool_reaches_the_model_in_later_turns_and_processes(tmp_path: Path) -> None:
    """Ours: the history is searched for attachments once, and the result is kept."""
    shown: list[int] = []

    class Watching(ScriptedModel):
        def stream(self, request: Any) -> Any:
            parts = [part for one in request.messages if isinstance(one, UserMessage) for part in one.content]
            shown.append(sum(isinstance(part, AttachmentPart) for part in parts))
            return super().stream(request)

    @tool
    async def paint(ctx: RunContext[None]) -> str:
        """Paint."""
        ctx.attachments.keep(b"png", media_type="image/png", shown=True)
        return "painted"

    async def run() -> None:
        painting = {"tool_calls": [{"name": "paint", "arguments": {}}]}
        agent = Agent(Watching(["hello", painting, "done", "two", "three", "four"]), tools=[paint])
        async with Runtime(tmp_path) as runtime:
            session = await runtime.session("s", agent=agent)
            for text in ("hi", "paint", "and then?", "and then?"):
                await session.turn(text)
        async with Runtime(tmp_path) as runtime:
            await (await runtime.session("s", agent=agent)).turn("and then?")

    asyncio.run(run())
    assert shown == [0, 0, 1, 1, 1, 1]
