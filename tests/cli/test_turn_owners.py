"""A program's turns on the command line: they can be inspected, decided and cancelled, but not taken over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Runtime, tool
from standfast.providers.scripted import ScriptedModel


@tool(approval="manual")
def order(order_id: str) -> str:
    """Look an order up."""
    return f"order {order_id}"


def _agent() -> Agent[Any, Any]:
    calls = [{"name": "order", "arguments": {"order_id": "A1"}}]
    model = ScriptedModel([{"tool_calls": calls}, "it is there"], name="x", strict=False)
    return Agent(model, name="shop", tools=[order])


@pytest.fixture
def approved(standfast: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file in which a program's turn waited for an approval that was given on the command line."""
    monkeypatch.delenv("STANDFAST_MODEL", raising=False)

    async def left_by_a_program() -> None:
        async with Runtime(home / "standfast.db") as runtime:
            await (await runtime.session("theirs", agent=_agent())).turn("look at A1")

    home.mkdir(mode=0o700)
    asyncio.run(left_by_a_program())
    (asked,) = standfast("approvals", "list", "--pending", "--json").document
    assert standfast("approvals", "approve", asked["approval_id"]).status == 0
    return home / "standfast.db"


def _finish(database: Path) -> str:
    async def main() -> str:
        async with Runtime(database) as runtime:
            session = await runtime.session("theirs", agent=_agent())
            turn = session.follow((await session.turns())[0].turn_id)
            result = await turn.settled()
            assert [call.error for call in result.calls] == [None]
            return result.text

    return asyncio.run(main())


def test_chat_leaves_a_programs_turn_to_the_program(standfast: Any, approved: Path) -> None:
    """Bug: `chat --session X` took over a program's turn and ended its approved call as UNKNOWN_TOOL."""
    ran = standfast("chat", "--session", "theirs", "hello", "--json")
    assert ran.status == 1
    assert ran.document["error"]["code"] == "WRONG_AGENT"
    assert "belongs to agent 'shop'" in ran.document["error"]["message"]
    assert _finish(approved) == "it is there"


def test_recover_leaves_a_programs_turn_to_the_program_despite_other_options(
    standfast: Any, approved: Path
) -> None:
    """Ours: an agent with another model is not the turn's agent."""
    ran = standfast("recover", "--model", "scripted:demo", "--json")
    assert ran.status == 1
    (one,) = ran.document
    assert one["problem"]["code"] == "WRONG_AGENT"
    assert _finish(approved) == "it is there"


def test_a_decision_names_no_command_that_cannot_resume_the_turn(standfast: Any, home: Path) -> None:
    """Bug: `approvals approve` suggested `standfast recover` for the turn of an agent not on record."""

    async def left_by_a_program() -> None:
        async with Runtime(home / "standfast.db", host={"model": "scripted:demo"}) as runtime:
            await (await runtime.session("theirs", agent=_agent())).turn("look at A1")

    home.mkdir(mode=0o700)
    asyncio.run(left_by_a_program())
    (asked,) = standfast("approvals", "list", "--pending", "--json").document
    decided = standfast("approvals", "approve", asked["approval_id"], "--json").document
    assert decided["problem"]["code"] == "WRONG_AGENT"
    assert decided["command"].endswith(" worker APP")
    assert _finish(home / "standfast.db") == "it is there"


def test_sessions_show_and_list_say_why_a_turn_does_not_continue(standfast: Any, approved: Path) -> None:
    """Ours: the operator sees the reason without the program's log."""
    assert standfast("sessions", "show", "theirs", "--json").document["blocked"] is None
    standfast("chat", "--session", "theirs", "hello")
    shown = standfast("sessions", "show", "theirs", "--json").document
    assert (shown["state"], shown["blocked"]["error"]["code"]) == ("blocked", "WRONG_AGENT")
    assert shown["blocked"]["turn_id"] == shown["unfinished"]["turn_id"]
    assert "belongs to agent 'shop'" in " ".join(standfast("sessions", "show", "theirs").stdout.split())
    assert [row["state"] for row in standfast("sessions", "list", "--json").document] == ["blocked"]
    _finish(approved)
    assert standfast("sessions", "show", "theirs", "--json").document["blocked"] is None
