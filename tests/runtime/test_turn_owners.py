"""The agent that resumes a turn: the one to which the turn belongs, and no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import EchoModel, HeldModel, Place, agent_of, asks, results, until

from standfast import CompleteAfter, tool
from standfast.errors import InvalidArgument, TurnUnfinished, WrongAgent
from standfast.model.approval import ApprovalState
from standfast.model.session import TurnState
from standfast.runtime.agent import Agent
from standfast.runtime.agent_runtime import Runtime


@tool(approval="manual")
def refund() -> str:
    return "refunded"


@tool
def nap() -> CompleteAfter:
    return CompleteAfter(60)


REFUNDING = (asks(("refund", {})), "end")


def shop(**options: Any) -> Agent[Any, Any]:
    return agent_of(*REFUNDING, name="shop", tools=[refund], **options)


def other(**options: Any) -> Agent[Any, Any]:
    return agent_of("other", "other", "other", name="other", **options)


async def waiting(place: Place) -> str:
    """Return a turn of `shop` that waits for an approval, begun by a process that has ended."""
    async with place.runtime() as runtime:
        session = await runtime.session("s", agent=shop())
        return (await session.turn("refund")).waits[0].wait_id


async def stays_waiting(runtime: Runtime, approval: str) -> None:
    """Check that the turn waits, its approval is decided but unused, and the session keeps its agent."""
    (record,) = await runtime.store.turns("s")
    assert (record.state, record.agent) == (TurnState.WAITING, "shop")
    found = await runtime.store.approval(approval)
    assert found is not None
    assert found.state is ApprovalState.APPROVED
    head = await runtime.store.head("s")
    assert head is not None
    assert head.agent == "shop"


async def finish(place: Place) -> None:
    """Let the turn's own agent end it."""
    async with place.runtime() as runtime:
        session = await runtime.session("s", agent=shop())

        async def ended() -> bool:
            return await session.unfinished() is None

        await until(ended)
        assert results(await session.messages()) == ["refunded"]


def test_a_session_opened_by_another_agent_leaves_a_decided_turn_alone(place: Place) -> None:
    """Bug: `chat --session X` with another agent ended a program's approved call as UNKNOWN_TOOL."""

    async def main() -> None:
        approval = await waiting(place)
        async with place.runtime() as runtime:
            await runtime.approve(approval)
            session = await runtime.session("s", agent=other())
            turn = await session.resume()
            assert turn is not None
            with pytest.raises(
                WrongAgent, match="belongs to agent 'shop', but this is agent 'other'"
            ) as error:
                await turn
            assert error.value.owner == "shop"
            with pytest.raises(WrongAgent):
                await session.turn("hi")
            for _ in range(3):
                await runtime.recover()
                await asyncio.sleep(0)
            await stays_waiting(runtime, approval)
            blocked = await session.blocked()
            assert blocked is not None
            assert blocked.error.code == "WRONG_AGENT"
        await finish(place)

    asyncio.run(main())


def test_an_undecided_turn_of_another_agent_blocks_new_turns_but_is_kept(place: Place) -> None:
    """Ours: any process that opens the session can read the approval and decide it."""

    async def main() -> None:
        approval = await waiting(place)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=other())
            with pytest.raises(TurnUnfinished):
                await session.turn("hi")
            with pytest.raises(WrongAgent):
                await session.approve(approval)
            await runtime.approve(approval)
            await stays_waiting(runtime, approval)
        await finish(place)

    asyncio.run(main())


def test_session_approve_by_another_agent_does_not_decide(memory: Place) -> None:
    """Ours: `Session.approve` decides and resumes; if it cannot resume, it does not decide."""

    async def main() -> None:
        approval = await waiting(memory)
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=other())
            with pytest.raises(WrongAgent):
                await session.approve(approval)
            found = await runtime.store.approval(approval)
            assert found is not None
            assert found.state is ApprovalState.PENDING

    asyncio.run(main())


def test_the_turns_agent_resumes_it_in_a_session_that_another_agent_opened(memory: Place) -> None:
    """Ours: the turn's agent resumes it if the process knows that agent; then the other agent may begin."""

    async def main() -> None:
        approval = await waiting(memory)
        async with memory.runtime(agents=[shop()]) as runtime:
            session = await runtime.session("s", agent=other())
            await runtime.approve(approval)

            async def over() -> bool:
                return await session.unfinished() is None

            await until(over)
            assert results(await session.messages()) == ["refunded"]
            assert (await session.turn("hi")).output == "other"
            assert [one.agent for one in await session.turns()] == ["shop", "other"]
            assert (await session.head()).agent == "other"

    asyncio.run(main())


def test_a_timer_of_another_agents_turn_does_not_resume_it(memory: Place) -> None:
    """Bug: any process that had the session open resumed whatever was due there."""

    async def main() -> None:
        sleeper = agent_of(asks(("nap", {})), "awake", name="shop", tools=[nap])
        async with memory.runtime() as runtime:
            await (await runtime.session("s", agent=sleeper)).turn("sleep")
        memory.clock.advance(61)
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=other())

            async def noted() -> bool:
                return await session.blocked() is not None

            await until(noted)
            (record,) = await session.turns()
            assert record.state is TurnState.WAITING

    asyncio.run(main())


def test_a_turn_left_by_a_dead_process_is_not_resumed_by_another_agent(place: Place) -> None:
    """Bug: a new turn of another agent took over the unfinished one before it."""

    async def main() -> None:
        model = HeldModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, name="shop"))
            session.turn("hi").start()
            await model.started.wait()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=other())
            with pytest.raises(WrongAgent):
                await session.turn("mine")
            assert await session.cancel()

            async def over() -> bool:
                return await session.unfinished() is None

            await until(over)
            assert (await session.turn("mine")).output == "other"

    asyncio.run(main())


@pytest.mark.parametrize("missing", ["tool", "provider"])
def test_an_agent_of_the_same_name_with_other_tools_or_models_leaves_the_turn_parked(
    place: Place, missing: str
) -> None:
    """Bug: an agent that had only the same name ended the approved call as UNKNOWN_TOOL."""

    async def main() -> None:
        async with place.runtime() as runtime:
            first = agent_of("hello", *REFUNDING, name="shop", tools=[refund])
            session = await runtime.session("s", agent=first)
            await session.turn("hi")
            approval = (await session.turn("refund")).waits[0].wait_id
        namesake = (
            agent_of("hello", *REFUNDING, name="shop")
            if missing == "tool"
            else Agent(EchoModel(), name="shop", tools=[refund])
        )
        async with place.runtime(agents=[namesake]) as runtime:
            await runtime.approve(approval)

            async def noted() -> bool:
                head = await runtime.store.head("s")
                return head is not None and head.blocked is not None

            await until(noted)
            head = await runtime.store.head("s")
            assert head is not None
            assert head.blocked is not None
            assert head.blocked.error.code == "WRONG_AGENT"
            record = (await runtime.store.turns("s"))[-1]
            assert record.state is TurnState.WAITING
            assert record.summary is not None
        async with place.runtime(
            agents=[agent_of("hello", *REFUNDING, name="shop", tools=[refund])]
        ) as again:

            async def over() -> bool:
                return (await again.store.turns("s"))[-1].state is TurnState.ENDED

            await until(over)
            assert results(await (await again.session("s")).messages()) == ["refunded"]

    asyncio.run(main())


def test_a_runtime_refuses_two_agents_with_the_same_name() -> None:
    """Bug: the last one won, and resumed the turns of the others."""
    with pytest.raises(InvalidArgument, match="two agents named 'shop'"):
        Runtime(agents=[shop(), shop()])
