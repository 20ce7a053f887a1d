"""Input while a turn runs: injected into it, queued behind it, withdrawn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import (
    EchoModel,
    HeldModel,
    Place,
    agent_of,
    asks,
    events_of,
    go_on,
    keeper_looks,
    of_kind,
    said,
    until,
)

from standfast import Agent, InjectedTurnInput, RunContext, TurnStopped, UsageLimits, tool
from standfast.errors import IdempotencyConflict, InvalidArgument, SessionNotFound, TurnUnfinished
from standfast.model.events import MessagesDelivered
from standfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage
from standfast.model.session import TurnState


@tool(approval="manual")
def pay(cents: int) -> str:
    return f"paid {cents}"


def shape(messages: list[Message] | tuple[Message, ...]) -> str:
    """Return the messages as letters: user, assistant, tool."""
    letters = {UserMessage: "u", AssistantMessage: "a", ToolMessage: "t"}
    return "".join(letters[type(one)] for one in messages)


async def _all_ended(session: Any, count: int) -> None:
    async def ended() -> bool:
        states = [one.state for one in await session.turns()]
        return states == [TurnState.ENDED] * count

    await until(ended)


def test_a_message_injected_while_calls_run_is_delivered_after_them(place: Place) -> None:
    """Seed: `inject` is delivered at the next checkpoint of this turn."""

    async def main() -> None:
        @tool(loop="runtime")
        async def work() -> str:
            await session.inject("also this", id="in-1")
            return "worked"

        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("work", {})), "end", tools=[work]))
            turn = session.turn("hi")
            events = await events_of(turn)
            assert shape((await turn).messages) == "uatua"
            (delivered,) = of_kind(MessagesDelivered, events)
            assert [one.input_id for one in delivered.messages] == ["in-1"]
            assert await session.inputs() == []

    asyncio.run(main())


def test_a_message_injected_before_completion_makes_the_model_answer_again(place: Place) -> None:
    """Seed: injected messages are delivered at the checkpoints `after_work` and `before_completion`."""

    async def main() -> None:
        model = HeldModel("second answer", answer="first answer")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            turn = session.turn("hi")
            turn.start()
            await model.started.wait()
            await session.inject("wait, this too")
            model.go.set()
            result = await turn
            assert result.output == "second answer"
            assert said(result.messages) == ["hi", "wait, this too"]
            assert shape(result.messages) == "uaua"
            assert len(await session.turns()) == 1

    asyncio.run(main())


def test_messages_are_delivered_in_the_order_of_arrival(place: Place) -> None:
    """Ours: injected messages do not overtake each other."""

    async def main() -> None:
        model = HeldModel("end")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            turn = session.turn("0")
            turn.start()
            await model.started.wait()
            for number in range(1, 6):
                await session.inject(str(number))
            model.go.set()
            assert said((await turn).messages) == ["0", "1", "2", "3", "4", "5"]

    asyncio.run(main())


def test_a_message_injected_into_an_idle_session_waits_for_its_next_turn(place: Place) -> None:
    """Seed: both inputs are durable. Ours: the injected one precedes the turn's own, also after a restart."""

    async def main() -> None:
        model = EchoModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            await session.inject("by the way")
            assert [one.kind for one in await session.inputs()] == ["inject"]
            assert model.requests == []
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            result = await session.turn("hi")
            assert said(result.messages) == ["by the way", "hi"]
            assert await session.inputs() == []

    asyncio.run(main())


def test_a_message_that_misses_the_last_checkpoint_becomes_the_next_turn(place: Place) -> None:
    """Seed: such a message becomes the input of the next turn."""

    async def main() -> None:
        model = HeldModel("end")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            turn = session.turn("one")
            turn.start()
            await model.started.wait()
            await session.inject("two")
            await turn.cancel()
            with pytest.raises(TurnStopped):
                await turn
            await _all_ended(session, 2)
            assert said(await session.messages()) == ["one", "two"]
            assert await session.inputs() == []

    asyncio.run(main())


def test_a_message_injected_into_a_waiting_turn_is_delivered_when_it_resumes(place: Place) -> None:
    """Ours: a turn that waits for a person receives messages sent meanwhile."""

    async def main() -> None:
        script = [asks(("pay", {"cents": 5})), "end"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[pay]))
            waiting = await session.turn("pay")
            await session.inject("hurry")
            result = await session.approve(waiting.waits[0].wait_id)
            assert shape(result.messages) == "uatua"

    asyncio.run(main())


def test_an_input_can_be_withdrawn_until_it_is_claimed(place: Place) -> None:
    """Seed: an input can be withdrawn until a turn has claimed it."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            kept, dropped = await session.inject("kept"), await session.inject("dropped")
            assert await session.withdraw(dropped)
            assert not await session.withdraw(dropped)
            assert said((await session.turn("hi")).messages) == ["kept", "hi"]
            assert not await session.withdraw(kept)
            assert not await session.withdraw("in_never")

    asyncio.run(main())


def test_a_queued_input_runs_as_a_separate_turn(place: Place) -> None:
    """Seed: `queue` starts the next turn."""

    async def main() -> None:
        model = HeldModel("two", "three")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            turn = session.turn("1")
            turn.start()
            await model.started.wait()
            await session.queue("2")
            await session.queue("3")
            assert len(await session.turns()) == 1
            model.go.set()
            await turn
            await _all_ended(session, 3)
            assert said(await session.messages()) == ["1", "2", "3"]
            assert await session.inputs() == []

    asyncio.run(main())


def test_a_queued_input_can_be_withdrawn_before_its_turn(place: Place) -> None:
    """Seed: an input can be withdrawn until a turn has claimed it."""

    async def main() -> None:
        model = HeldModel("three")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            turn = session.turn("1")
            turn.start()
            await model.started.wait()
            second = await session.queue("2")
            await session.queue("3")
            assert await session.withdraw(second)
            model.go.set()
            await turn
            await _all_ended(session, 2)
            assert said(await session.messages()) == ["1", "3"]

    asyncio.run(main())


def test_queueing_on_an_idle_session_starts_a_turn_at_once(place: Place) -> None:
    """Ours: an idle session has nothing to wait for."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            await session.queue("hi")
            await _all_ended(session, 1)

    asyncio.run(main())


def test_a_queued_input_whose_turn_cannot_begin_is_reported_and_retried_with_growing_pauses(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: the input was retried every second, forever, and the reason was not reported."""

    async def main() -> None:
        tries, is_known = 0, False

        def knows(model_id: str) -> bool:
            nonlocal tries
            tries += 1
            return is_known

        async with place.runtime() as runtime:
            runtime.poll_s = 0.001
            runtime._open.services.prices.knows = knows  # type: ignore[method-assign]
            agent = Agent(EchoModel(), limits=UsageLimits(max_cost_usd=1))
            session = await runtime.session("s", agent=agent)
            live = runtime.live("s")
            await session.queue("hi")
            for seconds, wanted in [(0, 1), (1, 2), (1, 2), (1, 3), (3, 3), (1, 4)]:
                place.clock.advance(seconds)
                await keeper_looks(runtime)
                await until(lambda: not live.tasks())
                assert tries == wanted
            assert [input_.message.content for input_ in await session.inputs()] == ["hi"]
            is_known = True
            place.clock.advance(100)
            await _all_ended(session, 1)
            assert await session.inputs() == []

    with caplog.at_level("WARNING"):
        asyncio.run(main())
    told = [record.getMessage() for record in caplog.records if "could not be run" in record.getMessage()]
    assert len(told) == 1
    assert "needs the price of" in told[0]


@pytest.mark.parametrize("keeper_has", ["begun", "ended"])
def test_a_queued_input_that_the_keeper_finds_first_is_tried_once(memory: Place, keeper_has: str) -> None:
    """Bug: if the keeper was faster than the caller, a refused input was retried without a pause."""

    async def main() -> None:
        tries = 0

        def knows(model_id: str) -> bool:
            nonlocal tries
            tries += 1
            return False

        async with memory.runtime() as runtime:
            runtime._open.services.prices.knows = knows  # type: ignore[method-assign]
            agent = Agent(EchoModel(), limits=UsageLimits(max_cost_usd=1))
            session = await runtime.session("s", agent=agent)
            live = runtime.live("s")
            put = runtime.store.put_input

            async def put_and_try(*args: Any) -> None:
                await put(*args)
                live.queue.drain_if_due()
                await until(lambda: not live.tasks() if keeper_has == "ended" else not live.queue._more)

            runtime.store.put_input = put_and_try  # type: ignore[method-assign, assignment]
            await session.queue("hi")
            await until(lambda: not live.tasks())
            assert tries == 1

    asyncio.run(main())


def test_an_input_queued_behind_a_waiting_turn_runs_when_that_turn_has_ended(place: Place) -> None:
    """Bug: the input stayed queued forever.

    Ours: a new turn is refused while one waits for a person; `queue` works behind it.
    """

    async def main() -> None:
        script = [asks(("pay", {"cents": 5})), "paid", "next"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[pay]))
            waiting = await session.turn("pay")
            with pytest.raises(TurnUnfinished) as caught:
                await session.turn("too early")
            assert caught.value.turn_id == waiting.turn_id
            assert caught.value.waits
            assert caught.value.hint is not None
            await session.queue("behind")
            await until(lambda: _idle(session))
            assert len(await session.inputs()) == 1
            assert (await session.approve(waiting.waits[0].wait_id)).output == "paid"
            await _all_ended(session, 2)
            assert said(await session.messages()) == ["pay", "behind"]

    asyncio.run(main())


def _idle(session: Any) -> bool:
    draining = session._live.draining
    return draining is None or draining.done()


def test_a_queued_input_survives_a_restart(place: Place) -> None:
    """Bug: no process ran the input after a restart.

    Seed: queued and injected inputs are durable.
    """

    async def main() -> None:
        model = HeldModel("again", "two")
        async with place.runtime() as first:
            session = await first.session("s", agent=Agent(model))
            session.turn("1").start()
            await model.started.wait()
            await session.queue("2")
        async with place.runtime() as second:
            session = await second.session("s", agent=Agent(model))
            await _all_ended(session, 2)
            assert said(await session.messages()) == ["1", "2"]

    asyncio.run(main())


def test_queued_turns_get_the_sessions_deps(memory: Place) -> None:
    """Bug: queued turns got no deps."""
    seen: list[Any] = []

    @tool(side_effect="read")
    def note(ctx: RunContext[str]) -> None:
        seen.append(ctx.deps)

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = agent_of(asks(("note", {})), "end", tools=[note])
            session = await runtime.session("s", agent=agent, deps="the database")
            await session.queue("hi")
            await _all_ended(session, 1)
        assert seen == ["the database"]

    asyncio.run(main())


def test_the_same_input_sent_twice_is_delivered_once(place: Place) -> None:
    """Ours: another text under the same id is refused."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            await session.inject("once", id="i1")
            await session.inject("once", id="i1")
            with pytest.raises(IdempotencyConflict):
                await session.inject("other", id="i1")
            assert said((await session.turn("hi")).messages) == ["once", "hi"]

    asyncio.run(main())


def test_an_input_that_could_not_be_read_back_is_refused(place: Place) -> None:
    """Bug: it was stored, and then the session's inputs could not be read."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            number: Any = 4711
            for put in (session.inject, session.queue):
                with pytest.raises(InvalidArgument, match="input_id"):
                    await put("hello", id=number)
            with pytest.raises(InvalidArgument, match="content"):
                await session.inject(InjectedTurnInput(message=UserMessage(content=number)))
            assert await session.inputs() == []

    asyncio.run(main())


def test_input_for_a_deleted_session_is_refused(place: Place) -> None:
    """Ours: no input is kept without a session."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            assert await runtime.delete("s")
            with pytest.raises(SessionNotFound):
                await session.inject("hello?")

    asyncio.run(main())


def test_an_injected_message_survives_a_crash_after_its_delivery(place: Place) -> None:
    """Ours: a claimed message is in the journal before the model is called again."""

    async def main() -> None:
        @tool(loop="runtime")
        async def work() -> str:
            await session.inject("also this")
            return "worked"

        class Staged(HeldModel):
            async def stream(self, request: Any) -> Any:
                if not any(isinstance(one, AssistantMessage) for one in request.messages):
                    async for delta in agent_of(asks(("work", {}))).model.stream(request):
                        yield delta
                    return
                async for delta in super().stream(request):
                    yield delta

        model = Staged("end")
        async with place.runtime() as first:
            session = await first.session("s", agent=Agent(model, tools=[work]))
            session.turn("hi").start()
            await model.started.wait()
        async with place.runtime() as second:
            session = await second.session("s", agent=Agent(model, tools=[work]))
            result = await go_on(session)
            assert said(result.messages) == ["hi", "also this"]

    asyncio.run(main())


def test_an_injected_input_may_have_its_callers_id(place: Place) -> None:
    """Seed: `InjectedTurnInput{id, message}` has an id from the caller."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of("end"))
            given = InjectedTurnInput(message=UserMessage(content="from a monitor"), id="in-7")
            assert await session.inject(given) == "in-7"
            assert said((await session.turn("hi")).messages) == ["from a monitor", "hi"]

    asyncio.run(main())
