"""Subagents that the developer declares: they keep their own tools, and the runtime knows them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import HeldModel, Place, until
from subagent_stage import Cast, calls, errors, spawn

from standfast import Agent, tool
from standfast.errors import InvalidArgument
from standfast.model.capability import SessionToolAccess
from standfast.model.host_requests import SessionCreateRequest
from standfast.plugins.shipped import Subagents


@tool
def pay() -> str:
    return "paid"


@tool(side_effect="read")
def look() -> str:
    return "seen"


@tool(side_effect="read")
def count() -> int:
    return 1


WAIT = calls(("wait", {}))
OWN = ["close", "send_input", "spawn_agent", "wait"]


def lead_of(cast: Cast, *specialists: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(cast, name="lead", tools=[look], plugins=[Subagents(agents=specialists, **options)])


def test_a_declared_subagent_keeps_the_tools_that_its_parent_lacks(place: Place) -> None:
    """Bug: a specialist had only its parent's tools."""
    cast = Cast(
        go=[calls(spawn("desk: pay", agent="payer")), WAIT, "done"],
        **{"desk:": [calls(("pay", {})), "it is paid"]},
    )

    async def main() -> None:
        payer = Agent(cast, name="payer", tools=[pay, count])
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=lead_of(cast, payer))
            await session.turn("go")
            (child,) = [head for head in await runtime.sessions() if head.charter is not None]
            turns = await runtime.store.turns(child.session_id)
            assert turns[0].summary is not None
            assert [one.error for one in turns[0].summary.calls] == [None]

    asyncio.run(main())
    assert cast.tools_of("desk:") == ["count", "pay"]
    assert cast.tools_of("go") == sorted([*OWN, "look"])


def test_the_model_can_withhold_tools_from_a_declared_subagent(memory: Place) -> None:
    """Ours: a model can only narrow the specialist's own tools."""
    cast = Cast(
        go=[calls(spawn("desk: count", agent="payer", tools=["count"])), WAIT, "done"],
        **{"desk:": ["one"]},
    )

    async def main() -> None:
        payer = Agent(cast, name="payer", tools=[pay, count])
        async with memory.runtime() as runtime:
            await (await runtime.session("s", agent=lead_of(cast, payer))).turn("go")

    asyncio.run(main())
    assert cast.tools_of("desk:") == ["count"]


def test_a_tool_that_a_declared_subagent_lacks_cannot_be_requested(memory: Place) -> None:
    """Ours: the parent's tools do not become tools of the specialist."""
    cast = Cast(go=[calls(spawn("desk:", agent="payer", tools=["look"])), "so be it"])

    async def main() -> None:
        async with memory.runtime() as runtime:
            lead = lead_of(cast, Agent(cast, name="payer", tools=[pay]))
            session = await runtime.session("s", agent=lead)
            await session.turn("go")
            [error] = errors(await session.messages(), "spawn_agent")
            assert error.message == "agent 'payer' has no tool 'look'"
            assert len(await runtime.sessions()) == 1

    asyncio.run(main())


def test_a_model_cannot_pass_on_a_tool_that_it_lacks(memory: Place) -> None:
    """Seed: a subagent of the same agent has at most its parent's tools, even below a specialist."""
    cast = Cast(
        go=[calls(spawn("one", tools=["look", "spawn_agent", "wait"])), WAIT, "done"],
        one=[calls(spawn("two"), spawn("desk:", agent="payer")), WAIT, "done"],
        two=["done"],
        **{"desk:": [calls(spawn("three")), "done"], "three": ["done"]},
    )

    async def main() -> None:
        payer = Agent(cast, name="payer", tools=[pay], plugins=[Subagents(max_depth=3)])
        lead = Agent(cast, name="lead", tools=[look, count], plugins=[Subagents(agents=[payer], max_depth=3)])
        async with memory.runtime() as runtime:
            await (await runtime.session("s", agent=lead)).turn("go")
            await until(lambda: "two" in cast.requests and "three" in cast.requests)

    asyncio.run(main())
    assert cast.tools_of("one") == ["look", "spawn_agent", "wait"]
    assert cast.tools_of("two") == ["look", "spawn_agent", "wait"]
    assert cast.tools_of("desk:") == sorted([*OWN, "pay"])
    assert cast.tools_of("three") == ["pay"]


def test_a_declared_subagent_has_its_tools_after_a_restart_too(place: Place) -> None:
    """Ours: its authority is stored; the agent is found through its parent's declaration."""

    async def main() -> None:
        cast = Cast(go=[calls(spawn("desk: pay", agent="payer")), WAIT, "done"])
        held = HeldModel()
        async with place.runtime() as runtime:
            lead = lead_of(cast, Agent(held, name="payer", tools=[pay]))
            (await runtime.session("s", agent=lead)).turn("go").start()
            await held.started.wait()
        again = Cast(go=[WAIT, "done"], **{"desk:": ["paid"]})
        async with place.runtime(agents=[lead_of(again, Agent(again, name="payer", tools=[pay]))]):
            await until(lambda: "desk:" in again.requests)
        assert again.tools_of("desk:") == ["pay"]

    asyncio.run(main())


def test_only_a_declared_agent_can_have_its_own_authority(memory: Place) -> None:
    """Ours: naming another agent does not widen a session's permissions."""

    async def main() -> None:
        cast = Cast(go=["done"])
        stranger = Agent(cast, name="stranger", tools=[pay])
        async with memory.runtime(agents=[stranger]) as runtime:
            await runtime.session("s", agent=lead_of(cast))
            host = runtime.host("s")
            with pytest.raises(InvalidArgument, match="not declared as a subagent"):
                await host.create_session(SessionCreateRequest(agent="stranger", authority="own"))
            narrowed = SessionCreateRequest(agent="stranger", tool_access=SessionToolAccess(tools=("look",)))
            made = await host.create_session(narrowed)
            with pytest.raises(InvalidArgument):
                await runtime.host(made.session_id).create_session(
                    SessionCreateRequest(agent="stranger", authority="own")
                )

    asyncio.run(main())


def test_two_agents_of_the_same_name_are_distinguished_by_the_agent_that_declares_them(memory: Place) -> None:
    """Ours: the specialist is the one that the session's own agent declares."""
    cast = Cast(
        go=[calls(spawn("desk:", agent="helper")), WAIT, "done"],
        **{"desk:": ["done"]},
    )

    async def main() -> None:
        one = Agent(cast, name="one", plugins=[Subagents(agents=[Agent(cast, name="helper", tools=[pay])])])
        two = Agent(cast, name="two", plugins=[Subagents(agents=[Agent(cast, name="helper", tools=[count])])])
        async with memory.runtime() as runtime:
            await runtime.session("first", agent=one)
            await (await runtime.session("second", agent=two)).turn("go")

    asyncio.run(main())
    assert cast.tools_of("desk:") == ["count"]
