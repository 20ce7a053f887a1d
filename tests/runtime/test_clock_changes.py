"""Setting the time of day: leases hold, and timers and triggers are rescheduled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import Place

from standfast import Agent, CompleteAfter, Runtime, tool
from standfast.durable import process_identity
from standfast.durable.journal import owner_is_dead
from standfast.errors import SessionBusy
from standfast.model.trigger import Schedule
from standfast.ports.clock import SystemClock
from standfast.ports.session_store import SessionStore
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.agent_runtime import open_store

DAY_S = 86_400.0


@tool
async def later() -> CompleteAfter:
    """Finish in a minute."""
    return CompleteAfter(60, value="done by now")


def _store(place: Place) -> SessionStore:
    return open_store(place.path or place._memory)


def _agent(*replies: Any) -> Agent[Any, str]:
    return Agent(ScriptedModel(list(replies), strict=False), name="clerk", tools=[later])


@pytest.mark.parametrize("set_s", [10 * DAY_S, -10 * DAY_S])
def test_setting_the_clock_takes_no_turn_from_a_live_owner(place: Place, set_s: float) -> None:
    """Bug: a jump of ten days made every lease look expired, and other processes took running turns."""

    async def scenario() -> None:
        entered, go = asyncio.Event(), asyncio.Event()

        @tool(loop="runtime")
        async def hold() -> str:
            """Wait."""
            entered.set()
            await go.wait()
            return "held"

        script: list[Any] = [{"tool_calls": [{"name": "hold"}]}, "finished"]
        agent = Agent(ScriptedModel(script, strict=False), name="clerk", tools=[hold])
        store = _store(place)
        async with Runtime(store, clock=place.clock) as runtime:
            turn = (await runtime.session("s", agent=agent)).turn("go")
            turn.start()
            await entered.wait()
            place.clock.set(set_s)
            lease_now = runtime._open.services.leases.now_ms()
            assert await store.unfinished(place.clock.now_ms(), lease_now_ms=lease_now) == []
            with pytest.raises(SessionBusy):
                await store.take_over(turn.turn_id, runtime._open.services.leases.claimant("another"))
            place.clock.advance(31)
            lease_now = runtime._open.services.leases.now_ms()
            (left,) = await store.unfinished(place.clock.now_ms(), lease_now_ms=lease_now)
            assert left.turn_id == turn.turn_id
            go.set()
            assert (await turn).output == "finished"

    asyncio.run(scenario())


def test_another_runtime_leaves_a_running_turn_alone_when_the_clock_is_set(place: Place) -> None:
    """Bug: the runtime took the turn from its live owner and ran the tool again, or reported INTERRUPTED."""

    async def scenario() -> None:
        entered, go, called = asyncio.Event(), asyncio.Event(), []

        @tool(side_effect="external_system", loop="runtime")
        async def pay() -> str:
            """Pay, which takes a while."""
            called.append("paid")
            entered.set()
            await go.wait()
            return "paid"

        def clerk() -> Agent[Any, str]:
            script: list[Any] = [{"tool_calls": [{"name": "pay"}]}, "finished"]
            return Agent(ScriptedModel(script, strict=False), name="clerk", tools=[pay])

        async with Runtime(_store(place), clock=place.clock) as owner:
            turn = (await owner.session("s", agent=clerk())).turn("go")
            turn.start()
            await entered.wait()
            place.clock.set(10 * DAY_S)
            async with Runtime(_store(place), clock=place.clock, agents=[clerk()]) as other:
                assert await other.recover() == []
                go.set()
                result = await turn
            assert (result.output, called) == ("finished", ["paid"])
            assert [one.error for one in result.calls] == [None]

    asyncio.run(scenario())


def test_all_programs_of_one_boot_use_the_same_lease_clock(place: Place) -> None:
    """Ours: a program that starts after the clock was set must not see the leases of others as expired."""

    async def scenario() -> None:
        store = _store(place)
        first = await store.see_clock("boot", 1_000_000)
        assert (first.lease_offset_ms, first.shift_ms) == (1_000_000, 0)
        second = await store.see_clock("boot", 1_000_000 + 864_000_000)
        assert (second.lease_offset_ms, second.shift_ms) == (1_000_000, 864_000_000)
        third = await store.see_clock("boot", 1_000_500 + 864_000_000)
        assert (third.lease_offset_ms, third.shift_ms) == (1_000_000, 0)
        assert (await store.see_clock("another boot", 5)).lease_offset_ms == 5
        await store.close()

    asyncio.run(scenario())


def test_an_owner_from_an_earlier_boot_of_this_machine_is_dead() -> None:
    """Ours: the owner is gone, although its process can no longer be looked up."""
    host, _, boot = process_identity.machine().rpartition("/")
    assert owner_is_dead(f"{host}/another-boot:1:1/runtime.1")
    assert not owner_is_dead("another-host/another-boot:1:1/runtime.1")
    assert process_identity.boot_id() == boot


def test_the_boot_clock_of_the_machine_is_monotonic() -> None:
    """Ours: leases use CLOCK_BOOTTIME, which no user can set."""
    clock = SystemClock()
    first = clock.boot_ms()
    assert 0 < first <= clock.boot_ms()


@pytest.mark.parametrize("set_s", [10 * DAY_S, -10 * DAY_S])
def test_setting_the_clock_does_not_change_the_duration_of_a_timer(place: Place, set_s: float) -> None:
    """Bug: after the clock was set back by ten days, a timer of a minute took ten days and a minute."""

    async def scenario() -> None:
        agent = _agent({"tool_calls": [{"name": "later"}]}, "it is done")
        async with Runtime(_store(place), clock=place.clock) as runtime:
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn("go").settled()
            assert waiting.status == "waiting"
            place.clock.set(set_s)
            await runtime._recovery.check_clock()
            await runtime._recovery.check_clock()
            place.clock.advance(55)
            assert await runtime.store.ended_waits(waiting.turn_id, place.clock.now_ms()) == ()
            (record,) = await session.turns()
            assert record.summary is not None
            (wait,) = record.summary.outcome.waits
            assert wait.due_at - place.clock.now_ms() == 5_000
            place.clock.advance(6)
            resumed = await session.resume()
            assert resumed is not None
            assert (await resumed).output == "it is done"

    asyncio.run(scenario())


def test_timers_move_along_when_the_clock_was_set_while_no_program_ran(place: Place) -> None:
    """Ours: the next program on the same boot notices the change."""
    if place.path is None:
        pytest.skip("nothing outlives the process")

    async def scenario() -> None:
        agent = _agent({"tool_calls": [{"name": "later"}]}, "it is done")
        async with Runtime(_store(place), clock=place.clock) as runtime:
            waiting = await (await runtime.session("s", agent=agent)).turn("go").settled()
        place.clock.set(-10 * DAY_S)
        async with Runtime(_store(place), clock=place.clock) as runtime:
            assert await runtime.store.ended_waits(waiting.turn_id, place.clock.now_ms()) == ()
            place.clock.advance(61)
            ((_, outcome),) = await runtime.store.ended_waits(waiting.turn_id, place.clock.now_ms())
            assert type(outcome).__name__ == "Elapsed"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "schedule", [Schedule(cron="0 * * * *"), Schedule(every_ms=3_600_000)], ids=["cron", "every"]
)
def test_a_trigger_does_not_wait_for_a_time_computed_with_a_wrong_clock(
    place: Place, schedule: Schedule
) -> None:
    """Bug: after the clock was set back by ten days, an hourly trigger was silent for ten days."""

    async def scenario() -> None:
        async with Runtime(_store(place), clock=place.clock) as runtime:
            await runtime.session("s", agent=_agent())
            await runtime.add_trigger("hourly", "source/hourly", "s", schedule=schedule, prompt="tick")
            place.clock.set(10 * DAY_S)
            await runtime._recovery.check_clock()
            await runtime._recovery._start_queued()  # times that the clock skipped are made up for, once
            place.clock.set(-10 * DAY_S)
            await runtime._recovery.check_clock()
            (trigger,) = await runtime.triggers()
            assert trigger.next_at is not None
            assert 0 < trigger.next_at - place.clock.now_ms() <= 3_600_000

    asyncio.run(scenario())


def test_an_occurrence_is_not_delivered_again_after_the_clock_was_set_back(place: Place) -> None:
    """Ours: an occurrence is identified by its key, whichever way the clock was set."""

    async def scenario() -> None:
        async with Runtime(_store(place), clock=place.clock) as runtime:
            await runtime.session("s", agent=_agent(*["ok"] * 9))
            await runtime.add_trigger(
                "hourly", "source/hourly", "s", schedule=Schedule(every_ms=3_600_000), prompt="tick"
            )
            heard = []
            for step_s in (3_601, -3_601, 3_601, 3_600):
                place.clock.set(step_s) if abs(step_s) != 3_600 else place.clock.advance(step_s)
                await runtime._recovery.check_clock()
                heard.append(len(await runtime.store.inputs("s")) + len(await runtime.store.turns("s")))
                await runtime._recovery._start_queued()
                if (live := await runtime._open.put_to_work("s")) is not None and live.draining is not None:
                    await live.draining
            turns = len(await runtime.store.turns("s"))
            assert turns == 2, heard

    asyncio.run(scenario())
