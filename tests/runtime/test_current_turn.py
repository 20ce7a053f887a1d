"""The current, unfinished turn of a session in `messages()`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stand_ins import HeldModel, Place, agent_of, asks, results, said

from standfast import Agent, AssistantMessage, Runtime, ScriptedModel, Session, ToolMessage, UserMessage, tool


@tool(approval="manual")
def refund(order_id: str) -> str:
    return "paid"


@tool(side_effect="read")
def order(order_id: str) -> str:
    return "late"


def clerk() -> Agent[Any, Any]:
    script = ["hello", asks(("order", {"order_id": "A1"})), asks(("refund", {"order_id": "A1"})), "paid back"]
    return agent_of(*script, tools=[order, refund])


def test_messages_include_a_waiting_turn_and_mark_it(place: Place) -> None:
    """Bug: a page that was reloaded during an approval was empty."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.turn("hi")
            assert (await session.messages()).current is None
            waiting = await session.turn("Refund A1")
        async with place.runtime() as runtime:  # another process, without the agent
            session = runtime.session_handle("s")
            messages = await session.messages()
            assert said(messages) == ["hi", "Refund A1"]
            assert isinstance(messages[-1], AssistantMessage)
            assert (messages[-1].tool_calls[0].name, results(messages)) == ("refund", ["late"])
            assert messages.current is not None
            assert (messages.current.turn_id, messages.current.state) == (waiting.turn_id, "waiting")
            assert list(messages.current.messages) == messages[2:]
            assert messages.current.waits == waiting.waits
            assert len(await session.nodes()) == 2  # the history has only committed nodes

    asyncio.run(main())


def test_the_messages_of_an_ended_turn_are_included_once(place: Place) -> None:
    """Ours: no message appears twice, and none is marked as current."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.turn("hi")
            waiting = await session.turn("Refund A1")
            await session.approve(waiting.waits[0].wait_id)
            messages = await session.messages()
            assert (said(messages), results(messages)) == (["hi", "Refund A1"], ["late", "paid"])
            assert (messages.current, await session.current_turn()) == (None, None)
            assert msgspec.to_builtins(messages) == msgspec.to_builtins(list(messages))

    asyncio.run(main())


def test_messages_include_a_running_turn(place: Place) -> None:
    """Ours: messages known to this process are shown before they are on disk."""

    async def main() -> None:
        model = HeldModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            turn = session.turn("hi")
            turn.start()
            await model.started.wait()
            messages = await session.messages()
            assert messages == [UserMessage(content="hi")]
            assert messages.current is not None
            assert (messages.current.state, messages.current.turn_id) == ("running", turn.turn_id)
            model.go.set()
            await turn
            assert len(await session.messages()) == 2

    asyncio.run(main())


def test_the_messages_of_a_turn_that_ends_during_the_read_are_included_once(place: Place) -> None:
    """Ours: the turn may be committed between the two reads."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=clerk())
            await session.turn("hi")
            waiting = await session.turn("Refund A1")
            read, head = session.current_turn, session.head

            async def head_after_the_end() -> Any:
                await runtime.session("s")
                await session.approve(waiting.waits[0].wait_id)
                return await head()

            other = _Patched(session, read, head_after_the_end)
            messages = await Session.messages(other)  # type: ignore[arg-type]
            assert (said(messages), messages.current) == (["hi", "Refund A1"], None)

    asyncio.run(main())


class _Patched:
    """A session whose `head` is read after something has happened."""

    def __init__(self, session: Session[Any], current_turn: Any, head: Any) -> None:
        self._store = session._store
        self.current_turn = current_turn
        self.head = head


PROGRAM = """
import asyncio, os, signal, sys
from standfast import Agent, Runtime, ScriptedModel, tool

@tool(side_effect="read")
def order(order_id: str) -> str:
    return "late"

@tool
def pay(cents: int) -> str:
    os.kill(os.getpid(), signal.SIGKILL)

def asks(name, **arguments):
    return {"tool_calls": [{"name": name, "arguments": arguments}]}

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        model = ScriptedModel([asks("order", order_id="A1"), asks("pay", cents=5)])
        session = await runtime.session("s", agent=Agent(model, tools=[order, pay]))
        await session.turn("Pay A1")

asyncio.run(main())
"""


@pytest.mark.slow
def test_after_a_crash_the_turn_is_shown_as_interrupted(tmp_path: Path) -> None:
    """Bug: messages from before the crash were invisible until a process recovered the turn."""
    file = tmp_path / "shop.db"
    assert subprocess.run([sys.executable, "-c", PROGRAM, str(file)]).returncode == -9

    async def main() -> None:
        async with Runtime(file) as runtime:
            session = runtime.session_handle("s")
            messages = await session.messages()
            assert messages.current is not None
            assert messages.current.state == "interrupted"
            assert [type(one) for one in messages] == [
                UserMessage, AssistantMessage, ToolMessage, AssistantMessage,
            ]  # fmt: skip
            assert results(messages) == ["late"]

    asyncio.run(main())


def test_a_new_session_has_no_messages(place: Place) -> None:
    """Ours: the list is empty, and there is no current turn."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(ScriptedModel([])))
            assert (await session.messages(), await session.current_turn()) == ([], None)

    asyncio.run(main())
