"""Turns that a tool ends, and turns that never end by themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import Place, agent_of, asks, until

from standfast import tool
from standfast.errors import ToolError
from standfast.machine import turn_machine
from standfast.machine.inputs import Resumed, TurnStarted
from standfast.machine.turn_machine import MAX_RESUMES, TurnMachine
from standfast.model.message import ToolMessage, UserMessage
from standfast.model.outcome import Stopped, StopReason


@tool(side_effect="external_system")
async def pay(cents: int) -> str:
    """Pay."""
    raise ToolError("ACCOUNT_CLOSED", "the account is closed", hint="open another", ends_turn=True)


@tool(side_effect="read")
async def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("protocol", ["standard", "code"])
def test_a_tool_may_end_the_turn_with_its_error(place: Place, protocol: str) -> None:
    """Bug: the seed's stop reason tool_error was never used."""
    native = asks(("look", {}), ("pay", {"cents": 5}))
    script: tuple[Any, ...] = (
        native if protocol == "standard" else "```python\nlook()\npay(5)\n```",
        "never",
    )

    async def main() -> None:
        agent = agent_of(*script, tools=[pay, look], protocol=protocol, name="a")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            outcome = (await session.turn("pay").settled()).outcome
            assert isinstance(outcome, Stopped)
            assert outcome.reason is StopReason.TOOL_ERROR
            assert (outcome.error.code, outcome.error.hint) == ("ACCOUNT_CLOSED", "open another")
            said = await session.messages()
            answered = {one.call_id for one in said if isinstance(one, ToolMessage)}
            asked = {call.call_id for one in said for call in getattr(one, "tool_calls", ())}
            assert answered == asked, "every call in the history has a result"

    asyncio.run(main())


def started() -> TurnMachine:
    machine = TurnMachine()
    machine.feed(TurnStarted(at_ms=0, turn_id="t_1", message=UserMessage(content="go"), nonce="n"))
    return machine


def test_a_turn_that_crashes_every_process_stops_as_interrupted() -> None:
    """Bug: the stop reason interrupted was never used, so such a turn was resumed forever."""
    machine = started()
    for at in range(MAX_RESUMES):
        assert machine.feed(Resumed(at_ms=at)) == []
    assert machine.outcome is None
    machine.feed(Resumed(at_ms=99))
    assert isinstance(machine.outcome, Stopped)
    assert (machine.outcome.reason, machine.outcome.error.code) == (StopReason.INTERRUPTED, "INTERRUPTED")


def test_the_end_of_a_turn_that_was_resumed_too_often_is_durable(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: each crash is recorded in the journal."""
    monkeypatch.setattr(turn_machine, "MAX_RESUMES", 2)
    begun: list[int] = []

    @tool(side_effect="read")
    async def hang() -> None:
        """Never ends."""
        begun.append(1)
        await asyncio.Event().wait()

    async def main() -> None:
        agent = agent_of(asks(("hang", {})), "Done.", tools=[hang], name="a")
        for count in range(1, 4):
            async with place.runtime() as runtime:
                session = await runtime.session("s", agent=agent)
                if count == 1:
                    session.turn("go").start()

                async def hangs(count: int = count) -> bool:
                    return len(begun) == count

                await until(hangs)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)

            async def ended() -> bool:
                return await session.unfinished() is None

            await until(ended)
            summary = (await session.turns())[-1].summary
            assert summary is not None
            assert isinstance(summary.outcome, Stopped)
            assert summary.outcome.reason is StopReason.INTERRUPTED
        assert len(begun) == 3

    asyncio.run(main())
