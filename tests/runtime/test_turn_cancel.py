"""Cancellation: whenever it comes, the turn ends once and the session stays usable."""

from __future__ import annotations

import asyncio
import threading

import pytest
from stand_ins import EchoModel, HeldModel, Place, agent_of, asks, events_of, of_kind, results, said, until

from standfast import Agent, CompleteAfter, TurnStopped, tool
from standfast.model.events import TextRetracted, TextStreamed, TurnCommitted
from standfast.model.message import AssistantMessage
from standfast.model.outcome import StopReason
from standfast.model.session import TurnState


@tool(approval="manual")
def pay(cents: int) -> str:
    return f"paid {cents}"


def test_cancelling_a_turn_while_the_model_streams_retracts_the_streamed_text(place: Place) -> None:
    """Seed: a cancellation names a turn and wins once; text that was streamed before is retracted."""

    async def main() -> None:
        model = HeldModel("next")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            turn = session.turn("hi")
            watching = asyncio.ensure_future(events_of(turn))
            await model.started.wait()
            assert await turn.cancel()
            events = await watching
            assert [one.text for one in of_kind(TextStreamed, events)] == ["so far"]
            assert [one.chars for one in of_kind(TextRetracted, events)] == [6]
            assert isinstance(events[-1], TurnCommitted)
            assert model.closed == 1
            with pytest.raises(TurnStopped) as caught:
                await turn
            assert caught.value.reason is StopReason.CANCELLED
            assert caught.value.code == "CANCELLED"
            assert (await session.turn("again")).output == "next"

    asyncio.run(main())


@pytest.mark.slow
def test_cancelling_a_turn_while_an_async_tool_runs_ends_the_tool(place: Place) -> None:
    """Seed: tools end within their grace period; every call has a result, CANCELLED if need be."""

    async def main() -> None:
        started, ended = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("hang", {})), "next", tools=[hang]))
            turn = session.turn("hi")
            turn.start()
            await started.wait()
            assert await session.cancel()
            with pytest.raises(TurnStopped) as caught:
                await turn
            assert results(caught.value.messages) == ["CANCELLED"]
            await ended.wait()
            result = await session.turn("again")
            assert result.output == "next"
            assert results(await session.messages()) == ["CANCELLED"]

    asyncio.run(main())


def test_cancelling_a_turn_does_not_wait_for_a_running_sync_tool(place: Place) -> None:
    """Seed: a thread that does not return is abandoned."""

    async def main() -> None:
        started, release = threading.Event(), threading.Event()

        def hang() -> str:
            started.set()
            release.wait(10)
            return "late"

        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("hang", {})), "next", tools=[hang]))
            turn = session.turn("hi")
            turn.start()
            await until(started.is_set)
            assert await turn.cancel()
            with pytest.raises(TurnStopped):
                await turn
            release.set()
            assert (await session.turn("again")).output == "next"
            assert results(await session.messages()) == ["CANCELLED"]

    asyncio.run(main())


def test_calls_that_already_have_results_keep_them(place: Place) -> None:
    """Seed: every call in the history has a result, in order."""

    async def main() -> None:
        stuck, quick_done = asyncio.Event(), asyncio.Event()

        async def quick() -> str:
            quick_done.set()
            return "quick"

        async def hang() -> None:
            stuck.set()
            await asyncio.Event().wait()

        script = [asks(("hang", {}), ("quick", {}), ("hang", {})), "next"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[quick, hang]))
            turn = session.turn("hi")
            turn.start()
            await stuck.wait()
            await quick_done.wait()
            await until(
                lambda: any(one.name == "quick" for one in session._live.driver.machine.calls.records)
            )
            await turn.cancel()
            with pytest.raises(TurnStopped) as caught:
                await turn
            assert results(caught.value.messages) == ["CANCELLED", "quick", "CANCELLED"]
            assert [one.name for one in caught.value.result.calls] == ["quick"]

    asyncio.run(main())


def test_a_turn_cancelled_from_within_a_tool_ends_before_the_next_model_call(place: Place) -> None:
    """Ours: a cancellation between two steps takes effect at the next one."""

    async def main() -> None:
        async def stop() -> str:
            assert await session.cancel()
            return "stopped"

        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("stop", {})), "next", tools=[stop]))
            with pytest.raises(TurnStopped) as caught:
                await session.turn("hi")
            assert caught.value.reason is StopReason.CANCELLED
            assert len(results(caught.value.messages)) == 1
            assert sum(isinstance(one, AssistantMessage) for one in caught.value.messages) == 1

    asyncio.run(main())


def test_cancelling_twice_ends_a_turn_once(place: Place) -> None:
    """Seed: a cancellation wins or loses once."""

    async def main() -> None:
        model = HeldModel("next")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            turn = session.turn("hi")
            turn.start()
            await model.started.wait()
            assert all(await asyncio.gather(turn.cancel(), turn.cancel(), session.cancel()))
            with pytest.raises(TurnStopped):
                await turn
            assert not await turn.cancel()
            assert not await session.cancel()
            assert not await runtime.cancel(turn.turn_id)
            assert len(await session.turns()) == 1
            assert (await session.turn("again")).output == "next"

    asyncio.run(main())


def test_a_cancellation_after_the_end_changes_nothing(place: Place) -> None:
    """Seed: a cancellation that loses has no effect."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            turn = session.turn("hi")
            assert (await turn).output == "re: hi"
            assert not await turn.cancel()
            assert not await runtime.cancel("t_never")
            assert (await turn).output == "re: hi"

    asyncio.run(main())


def test_a_turn_waiting_for_an_earlier_one_can_be_cancelled_before_it_begins(place: Place) -> None:
    """Bug: the cancellation reported that the turn had ended, but it kept running."""

    async def main() -> None:
        model = HeldModel("next")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            first, second = session.turn("1"), session.turn("2")
            first.start()
            second.start()
            await model.started.wait()
            assert await second.cancel()
            model.go.set()
            await first
            with pytest.raises(TurnStopped) as caught:
                await second
            assert caught.value.reason is StopReason.CANCELLED
            assert said(await session.messages()) == ["1"]

    asyncio.run(main())


def test_cancelling_a_turn_that_waits_for_an_approval_ends_it(place: Place) -> None:
    """Ours: the turn's call gets a result, and its approval is void."""

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = agent_of(asks(("pay", {"cents": 5})), "next", tools=[pay])
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn("pay")
            assert await session.cancel()
            turn = await session.resume()
            if turn is not None:
                assert (await turn.settled()).status == "stopped"
            assert await session.approvals(pending=True) == []
            assert results(await session.messages()) == ["CANCELLED"]
            assert (await session.turn("again")).output == "next"
            assert waiting.status == "waiting"

    asyncio.run(main())


def test_a_turn_that_waits_for_a_timer_can_be_cancelled_by_another_runtime(place: Place) -> None:
    """Seed: a cancellation is durable."""

    def later() -> CompleteAfter:
        return CompleteAfter(3600, "done")

    async def main() -> None:
        agent = agent_of(asks(("later", {})), "next", tools=[later])
        async with place.runtime() as first:
            waiting = await (await first.session("s", agent=agent)).turn("hi")
        async with place.runtime() as second:
            assert await second.cancel(waiting.turn_id)  # no agent is known here: it is only recorded
            record = await second.store.turn(waiting.turn_id)
            assert record is not None
            assert (record.state, record.cancel_requested) == (TurnState.WAITING, True)
        async with place.runtime() as third:
            session = await third.session("s", agent=agent)
            assert (await session.turn("again")).output == "next"
            assert [one.state for one in await session.turns()] == [TurnState.ENDED] * 2
            assert results(await session.messages()) == ["CANCELLED"]

    asyncio.run(main())


def test_a_cancellation_ends_a_retry_pause(place: Place) -> None:
    """Ours: a caller does not wait a minute for a cancelled turn."""

    async def main() -> None:
        pausing = asyncio.Event()

        async def sleep(seconds: float) -> None:
            pausing.set()
            await asyncio.Event().wait()

        place._sleep = sleep  # type: ignore[method-assign]
        agent = agent_of({"failure": {"retryable": True}}, "next")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            turn = session.turn("hi")
            turn.start()
            await pausing.wait()
            assert await turn.cancel()
            with pytest.raises(TurnStopped) as caught:
                await turn
            assert caught.value.reason is StopReason.CANCELLED

    asyncio.run(main())


def test_the_answer_and_the_cancellation_cannot_both_win(place: Place) -> None:
    """Seed: a cancellation wins or loses once, and the caller's answer is the stored one."""

    async def main() -> None:
        for steps in range(20):
            async with place.runtime() as runtime:
                session = await runtime.session("s", agent=Agent(EchoModel()))
                turn = session.turn("hi")
                turn.start()
                for _ in range(steps):
                    await asyncio.sleep(0)
                won = await turn.cancel()
                result = await turn.settled()
                assert (result.status == "stopped") == won

    asyncio.run(main())
