"""Closing a session ends everything that runs in it and in its descendants, and keeps the history."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from host_stage import said, staged
from plugin_stand_ins import ObedientModel, call
from stand_ins import HeldModel, Place, asks
from stand_ins import said as words

from standfast import Agent, Plugin, RunContext, tool
from standfast.errors import SessionNotFound
from standfast.model.host_requests import SessionCreateRequest
from standfast.model.outcome import Stopped, StopReason
from standfast.model.session import TurnState
from standfast.model.task import TaskSpec, TaskState
from standfast.providers.scripted import ScriptedModel


def test_closing_ends_the_running_turn_and_keeps_the_history(place: Place) -> None:
    """Seed: close_session ends a session, which can be reopened."""

    async def main() -> None:
        model = HeldModel("again")
        async with staged(place, model=model) as stage:
            await stage.make("child")
            started = await stage.host.start_turn_stream("child", said("work"))
            await model.started.wait()
            await stage.host.close_session("child")
            record = await stage.runtime.store.turn(started.turn_id)
            assert record is not None
            assert record.state is TurnState.ENDED
            child = await stage.open("child")
            assert words(await child.messages()) == ["work"]
            assert (await child.turn("once more")).output == "again"
            await stage.host.close_session("child")
            await stage.host.close_session("child")
            with pytest.raises(SessionNotFound):
                await stage.host.close_session("missing")

    asyncio.run(main())


def test_closing_ends_the_deepest_sessions_first(place: Place) -> None:
    """Ours: no session outlives the parent that supervises it."""

    async def main() -> None:
        async with staged(place) as stage:
            ended: list[str] = []
            above = "root"
            for name in ("a", "b", "c"):
                await stage.host_of(above).create_session(SessionCreateRequest(session_id=name))
                above = name

                async def cancel(name: str = name) -> None:
                    ended.append(name)

                await stage.host.register_background_task(name, TaskSpec(id="t"), cancel)
            await stage.host.close_session("a")
            assert ended == ["c", "b", "a"]
            tasks = [await stage.runtime.store.task(name, "t") for name in ended]
            assert {task.state for task in tasks if task is not None} == {TaskState.CANCELLED}

    asyncio.run(main())


@tool(side_effect="external_system", approval="manual")
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def test_closing_cancels_a_turn_that_waits_for_approval(place: Place) -> None:
    """Ours: a parked turn ends as cancelled, and its approval can no longer be decided."""

    async def main() -> None:
        agent = Agent(ScriptedModel([asks(("pay", {"cents": 1})), "never"]), name="payer", tools=[pay])
        async with place.runtime(agents=[agent]) as runtime:
            session = await runtime.session("root", agent=agent)
            host = runtime.host("root")
            parked = await host.start_turn("root", said("pay"))
            await session.queue("and then this")
            await host.close_session("root")
            done = await host.await_turn(parked.turn_id)
            assert isinstance(done.outcome, Stopped)
            assert done.outcome.reason is StopReason.CANCELLED
            assert await runtime.approvals(pending=True) == []
            assert await session.inputs() == []
            assert len(await session.turns()) == 1

    asyncio.run(main())


class Quitter(Plugin):
    """A plugin with a tool that closes sessions."""

    @tool(side_effect="write")
    async def close(self, ctx: RunContext[None], session: str) -> str:
        """Close a session."""
        await ctx.host.close_session(session)
        return "closed"


def test_a_tool_may_close_its_own_session_without_waiting_for_itself(place: Place) -> None:
    """Ours: the turn ends as cancelled once the tool has returned."""

    async def main() -> None:
        async with staged(place, Quitter(), model=ObedientModel()) as stage:
            turn = stage.session.turn('call close:{"session":"root"}')
            done: Any = await turn.settled()
            assert isinstance(done.outcome, Stopped)
            assert done.outcome.reason is StopReason.CANCELLED
            await stage.make("child")
            (answer,) = await call(stage.session, 'close:{"session":"child"}')
            assert answer.value == "closed"

    asyncio.run(main())
