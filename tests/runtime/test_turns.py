"""Turns of a session: how they run, end, fail, and outlive their callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins import (
    EchoModel,
    HeldModel,
    Place,
    StagedModel,
    agent_of,
    asks,
    events_of,
    go_on,
    of_kind,
    results,
    said,
    until,
)

from standfast import Agent, Runtime, TurnStopped, UsageLimits, tool
from standfast.errors import (
    IdempotencyConflict,
    InvalidArgument,
    InvalidSessionId,
    ModelError,
    NotConfigured,
    RuntimeClosed,
)
from standfast.model.events import (
    ModelCallFailed,
    ModelCallStarted,
    ReasoningStreamed,
    ReplyReceived,
    TextRetracted,
    TextStreamed,
    ToolCallSettled,
    ToolCallStarted,
    TurnBegan,
    TurnCommitted,
)
from standfast.model.limits import Usage
from standfast.model.message import UserMessage
from standfast.model.outcome import StopReason
from standfast.model.session import TurnState
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived
from standfast.ports.session_store import QueuedInput


def look(key: str) -> str:
    return f"seen {key}"


def test_a_session_remembers_earlier_turns(place: Place) -> None:
    """Seed: turns of a session share its history."""

    async def main() -> None:
        model = EchoModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            assert (await session.turn("one")).output == "re: one"
            assert (await session.turn("two")).output == "re: two"
            assert said(model.requests[1].messages) == ["one", "two"]
            assert [record.state for record in await session.turns()] == [TurnState.ENDED] * 2
            assert await session.unfinished() is None

    asyncio.run(main())


def test_another_runtime_continues_where_the_first_stopped(place: Place) -> None:
    """Seed: a session survives the death of its process."""

    async def main() -> None:
        model = EchoModel()
        async with place.runtime() as first:
            await (await first.session("s", agent=Agent(model))).turn("one")
        async with place.runtime() as second:
            await (await second.session("s", agent=Agent(model))).turn("two")
        assert said(model.requests[1].messages) == ["one", "two"]
        assert [one.call_number for one in model.requests] == [1, 2]

    asyncio.run(main())


def test_events_cover_a_turn_from_its_beginning_to_its_commit(memory: Place) -> None:
    """Seed: a turn emits typed events."""

    async def main() -> None:
        script = [asks(("look", {"key": "a"})), {"text": "end", "reasoning": "hm"}]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[look]))
            events = await events_of(session.turn("hi"))
        assert [type(one) for one in events] == [
            TurnBegan,
            ModelCallStarted,
            ReplyReceived,
            ToolCallStarted,
            ToolCallSettled,
            ModelCallStarted,
            ReasoningStreamed,
            TextStreamed,
            ReplyReceived,
            TurnCommitted,
        ]

    asyncio.run(main())


def test_two_callers_may_iterate_over_one_turn(memory: Place) -> None:
    """Ours: every listener gets each event."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of({"text": "hello", "chunk_size": 1}))
            turn = session.turn("hi")
            one, other = await asyncio.gather(events_of(turn), events_of(turn))
            assert one == other
            assert len(of_kind(TextStreamed, one)) == 5

    asyncio.run(main())


def test_turns_of_one_session_run_one_after_the_other(place: Place) -> None:
    """Seed: one writer per session."""

    async def main() -> None:
        model = EchoModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            found = await asyncio.gather(*(session.turn(f"n{number}") for number in range(5)))
            assert [one.output for one in found] == [f"re: n{number}" for number in range(5)]
            assert said(model.requests[-1].messages) == [f"n{number}" for number in range(5)]

    asyncio.run(main())


def test_a_turn_continues_after_its_caller_stops_waiting(place: Place) -> None:
    """Ours: cancelling the wait does not end the turn."""

    async def main() -> None:
        model = HeldModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            turn = session.turn("hi")
            waiter = asyncio.ensure_future(turn.settled())
            await model.started.wait()
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            model.go.set()
            assert (await turn).output == "done"

    asyncio.run(main())


def test_breaking_out_of_the_loop_over_its_events_does_not_end_a_turn(memory: Place) -> None:
    """Ours: a caller that stops watching has not cancelled the turn."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of({"text": "hello", "chunk_size": 1}))
            turn = session.turn("hi")
            async for _ in turn:
                break
            assert (await turn).output == "hello"

    asyncio.run(main())


def test_a_turn_interrupted_by_closing_the_runtime_raises_and_the_next_runtime_resumes_it(
    place: Place,
) -> None:
    """Ours: the turn is unfinished, not lost."""

    async def main() -> None:
        model = HeldModel("again")
        first = place.runtime()
        async with first:
            session = await first.session("s", agent=Agent(model))
            turn = session.turn("hi")
            waiter = asyncio.ensure_future(turn.settled())
            await model.started.wait()
            await first.close()
            with pytest.raises(RuntimeClosed) as caught:
                await waiter
            assert caught.value.turn_id == turn.turn_id
        async with place.runtime() as second:
            session = await second.session("s", agent=Agent(model))
            result = await go_on(session)
            assert (result.turn_id, result.output) == (turn.turn_id, "again")
            assert len(await session.turns()) == 1

    asyncio.run(main())


def test_a_turn_that_recovery_has_already_finished_is_not_started_again(place: Place) -> None:
    """Bug: `await session.resume() or session.turn(...)` began a second turn if recovery had been faster."""

    async def main() -> None:
        model = HeldModel("again", "next")
        async with place.runtime() as first:
            session = await first.session("s", agent=Agent(model))
            turn = session.turn("hi")
            waiter = asyncio.ensure_future(turn.settled())
            await model.started.wait()
            await first.close()
            with pytest.raises(RuntimeClosed):
                await waiter
        async with place.runtime() as second:
            session = await second.session("s", agent=Agent(model))
            await session.follow(turn.turn_id).settled()
            result = await (await session.resume() or session.turn("hi"))
            assert (result.turn_id, result.output) == (turn.turn_id, "again")
            assert await session.resume() is None
            session = await second.session("s", agent=Agent(model))
            assert (await session.turn("more")).output == "next"
            assert await session.resume() is None

    asyncio.run(main())


def test_an_interrupted_turn_is_finished_before_a_new_one_begins(place: Place) -> None:
    """Ours: an unfinished turn comes first, whichever process left it."""

    async def main() -> None:
        model = HeldModel("again", "next")
        first = place.runtime()
        async with first:
            session = await first.session("s", agent=Agent(model))
            session.turn("one").start()
            await model.started.wait()
        async with place.runtime() as second:
            session = await second.session("s", agent=Agent(model))
            await session.turn("two")
            assert said(await session.messages()) == ["one", "two"]
            assert [record.state for record in await session.turns()] == [TurnState.ENDED] * 2

    asyncio.run(main())


def test_a_runtime_resumes_unfinished_turns_of_the_agents_it_was_given(place: Place) -> None:
    """Ours: `Runtime(agents=[...])` recovers turns of sessions that are never opened."""

    async def main() -> None:
        model = HeldModel("again")
        agent = Agent(model, name="clerk")
        async with place.runtime() as first:
            (await first.session("s", agent=agent)).turn("one").start()
            await model.started.wait()
        async with place.runtime(agents=[agent]) as second:

            async def ended() -> bool:
                return [one.state for one in await second.store.turns("s")] == [TurnState.ENDED]

            await until(ended)

    asyncio.run(main())


@pytest.mark.parametrize("left", ["unfinished", "queued"])
def test_an_agent_whose_model_cannot_be_opened_does_not_stop_recovery_of_the_others(
    place: Place, left: str
) -> None:
    """Bug: the error silently ended the task that resumes turns."""

    async def main() -> None:
        models = {"broken": HeldModel("again"), "sound": HeldModel("again")}
        agents = [Agent("nosuch:model", name="broken"), Agent(models["sound"], name="sound")]
        async with place.runtime() as first:
            for session_id, name in (("a", "broken"), ("b", "sound")):
                session = await first.session(session_id, agent=Agent(models[name], name=name))
                if left == "unfinished":
                    session.turn("one").start()
                    await models[name].started.wait()
                else:
                    await first.store.put_input(queued(session_id))
        models["sound"].go.set()
        async with place.runtime(agents=agents) as second:

            async def ended() -> bool:
                return [one.state for one in await second.store.turns("b")] == [TurnState.ENDED]

            await until(ended)
            assert TurnState.ENDED not in [one.state for one in await second.store.turns("a")]

    asyncio.run(main())


def queued(session_id: str) -> QueuedInput:
    message = UserMessage(content="one")
    return QueuedInput(
        input_id=f"in_{session_id}", session_id=session_id, kind="queue", message=message, created_at=1
    )


def test_a_closed_runtime_accepts_no_turns(place: Place) -> None:
    """Ours: an operation that a closed runtime cannot perform raises."""

    async def main() -> None:
        runtime = place.runtime()
        async with runtime:
            session = await runtime.session("s", agent=agent_of("hello"))
        with pytest.raises(InvalidArgument, match="not open"):
            await session.head()
        with pytest.raises(InvalidArgument, match="not open"):
            await session.turn("hi")
        with pytest.raises(InvalidArgument, match="not open"):
            await runtime.session("s")

    asyncio.run(main())


def test_a_runtime_can_be_opened_only_once(memory: Place) -> None:
    """Ours: entering a runtime twice raises a clear error."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            with pytest.raises(InvalidArgument, match="already open"):
                await runtime.__aenter__()

    asyncio.run(main())


def test_tasks_that_enter_a_runtime_while_it_opens_wait_for_it(tmp_path: Path) -> None:
    """Bug: all tasks except the first were refused, although the runtime was not open yet."""

    async def main() -> None:
        runtime = Runtime(tmp_path / "standfast.db")
        entered = await asyncio.gather(*(runtime.__aenter__() for _ in range(5)))
        assert entered == [runtime] * 5
        assert await runtime.sessions() == []
        with pytest.raises(InvalidArgument, match="already open"):
            await runtime.__aenter__()
        await runtime.close()

    asyncio.run(main())


def test_cancelling_the_opening_leaves_the_runtime_closed(tmp_path: Path) -> None:
    """Ours: the next waiting task opens the runtime."""

    async def main() -> None:
        runtime = Runtime(tmp_path / "standfast.db")
        first, second = (asyncio.create_task(runtime.__aenter__()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second is runtime
        assert await runtime.sessions() == []
        await runtime.close()

    asyncio.run(main())


def test_sessions_need_an_agent_and_a_valid_id(memory: Place) -> None:
    """Seed: ids are checked; the error for a session without a known agent says how to pass one."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            with pytest.raises(InvalidSessionId):
                await runtime.session("../etc", agent=agent_of("hello"))
            with pytest.raises(NotConfigured, match="no agent is known"):
                await runtime.session("new")

    asyncio.run(main())


# Calls


def test_parallel_calls_run_concurrently_and_their_results_are_in_source_order(memory: Place) -> None:
    """Seed: native tool calls run concurrently, with results in source order."""

    async def main() -> None:
        both = asyncio.Barrier(2)
        order: list[str] = []
        second_done = asyncio.Event()

        @tool(loop="runtime")
        async def slow(key: str) -> str:
            await both.wait()
            if key == "a":
                await second_done.wait()
            order.append(key)
            second_done.set()
            return key

        script = [asks(("slow", {"key": "a"}), ("slow", {"key": "b"})), "end"]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[slow]))
            result = await session.turn("hi")
        assert order == ["b", "a"]
        assert results(result.messages) == ["a", "b"]

    asyncio.run(main())


# Attempts


def test_a_transient_failure_is_retried_with_growing_pauses(memory: Place) -> None:
    """Seed: retries are bounded and recorded decisions."""

    async def main() -> None:
        failure = {"failure": {"message": "busy", "retryable": True}}
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(failure, failure, "ok"))
            turn = session.turn("hi")
            events = await events_of(turn)
            assert (await turn).output == "ok"
        first, second = memory.slept
        assert 0.5 <= first <= 0.625
        assert 1.0 <= second <= 1.25
        assert [one.attempt for one in of_kind(ModelCallStarted, events)] == [1, 2, 3]
        told = [(one.attempt, one.retryable, one.retry_in_ms) for one in of_kind(ModelCallFailed, events)]
        assert told == [(1, True, round(first * 1000)), (2, True, round(second * 1000))]
        assert (await turn).usage.calls == 3

    asyncio.run(main())


def test_the_provider_says_how_long_to_wait(memory: Place) -> None:
    """Seed: Retry-After is respected up to a limit; a longer wait is not begun."""

    async def main() -> None:
        script = [{"failure": {"retryable": True, "retry_after_ms": after}} for after in (7000, 0, 10**8)]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script))
            turn = session.turn("hi", limits=UsageLimits(max_attempts=9))
            events = await events_of(turn)
            with pytest.raises(TurnStopped) as caught:
                await turn
        assert len(memory.slept) == 1
        assert 7.0 <= memory.slept[0] <= 8.75
        assert "the provider asks to wait 100,000 s" in (caught.value.hint or "")
        assert [one.retry_in_ms for one in of_kind(ModelCallFailed, events)][1:] == [0, None]

    asyncio.run(main())


def test_text_streamed_by_a_failed_attempt_is_retracted(memory: Place) -> None:
    """Seed: a retried model attempt retracts its streamed text."""

    async def main() -> None:
        script = [{"chunks": ["hel", "lo"], "failure": {"retryable": True, "after_chunks": 1}}, "good"]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script))
            turn = session.turn("hi")
            events = await events_of(turn)
        shown = of_kind(TextStreamed, events)
        assert [one.text for one in shown] == ["hel", "good"]
        (retracted,) = of_kind(TextRetracted, events)
        assert (retracted.number, retracted.chars) == (1, 3)
        assert events.index(shown[0]) < events.index(retracted) < events.index(shown[1])

    asyncio.run(main())


def test_the_number_of_attempts_is_limited(place: Place) -> None:
    """Ours: after the last attempt the turn stops, and the session is usable."""

    async def main() -> None:
        failure = {"failure": {"message": "busy", "retryable": True}}
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(failure, failure, "ok"))
            with pytest.raises(TurnStopped) as caught:
                await session.turn("one", limits=UsageLimits(max_attempts=2))
            assert caught.value.reason is StopReason.PROVIDER_ERROR
            assert caught.value.message == "busy"
            assert (await session.turn("two")).output == "ok"
            assert said(await session.messages()) == ["one", "two"]

    asyncio.run(main())


def test_a_context_overflow_has_its_own_stop_reason(memory: Place) -> None:
    """Seed: a context overflow is a separate stop reason."""

    async def main() -> None:
        script = [{"failure": {"message": "too long", "code": "CONTEXT_OVERFLOW"}}]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script))
            with pytest.raises(TurnStopped) as caught:
                await session.turn("hi")
            assert caught.value.reason is StopReason.CONTEXT_OVERFLOW

    asyncio.run(main())


async def _breaks_off(request: ModelRequest) -> AsyncIterator[ModelDelta]:
    yield TextArrived("half")


async def _raises(request: ModelRequest) -> AsyncIterator[ModelDelta]:
    yield TextArrived("half")
    raise ZeroDivisionError("by the provider")


async def _gives_up(request: ModelRequest) -> AsyncIterator[ModelDelta]:
    yield TextArrived("half")
    raise asyncio.CancelledError


async def _yields_nonsense(request: ModelRequest) -> AsyncIterator[Any]:
    yield {"text": "no delta"}


async def _is_no_text(request: ModelRequest) -> AsyncIterator[ModelDelta]:
    yield ReplyEnded(text="\ud800")


async def _fails_to_close(request: ModelRequest) -> AsyncIterator[ModelDelta]:
    try:
        yield ReplyEnded(text="fine")
    finally:
        raise OSError("cannot close")


def _raises_at_once(request: ModelRequest) -> AsyncIterator[ModelDelta]:
    raise KeyError("no stream at all")


def _is_no_stream(request: ModelRequest) -> Any:
    return 5


@pytest.mark.parametrize(
    "play",
    [
        _breaks_off,
        _raises,
        _gives_up,
        _yields_nonsense,
        _is_no_text,
        _fails_to_close,
        _raises_at_once,
        _is_no_stream,
    ],
)
def test_any_misbehaviour_of_a_provider_ends_the_turn_and_not_the_session(place: Place, play: Any) -> None:
    """Bug: some invalid replies raised inside the turn, and again at every resumption.

    Seed: a stream that ends without the provider's terminal event is a failure.
    """

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(play, "echo:staged")))
            with pytest.raises(TurnStopped) as caught:
                await session.turn("one")
            assert caught.value.reason is StopReason.PROVIDER_ERROR
            session = await runtime.session("s", agent=Agent(EchoModel()))
            assert (await session.turn("two")).output == "re: two"

    asyncio.run(main())


def test_a_partially_received_tool_call_never_runs(memory: Place) -> None:
    """Seed: only complete tool calls are executed."""
    ran: list[str] = []

    def note() -> None:
        ran.append("ran")

    async def main() -> None:
        script = [{**asks(("note", {})), "failure": {"retryable": True}}, "ok"]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=[note]))
            assert (await session.turn("hi")).output == "ok"
        assert ran == []

    asyncio.run(main())


def test_a_stream_of_many_chunks_lets_other_tasks_run(memory: Place) -> None:
    """Ours: a fast model does not starve the loop."""

    async def flood(request: ModelRequest) -> AsyncIterator[ModelDelta]:
        for _ in range(5000):
            yield TextArrived("x")
        yield ReplyEnded(text="x" * 5000)

    async def main() -> None:
        ticks = 0
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(flood)))
            turn = session.turn("hi")
            turn.start()
            while not turn.done:
                ticks += 1
                await asyncio.sleep(0)
            assert len((await turn).text) == 5000
        assert ticks > 50

    asyncio.run(main())


@pytest.mark.parametrize(
    "part",
    [
        {"text": None},
        {"stop_reason": None},
        {"model": None},
        {"response_id": 5},
        {"usage": None},
        {"usage": Usage(input=-5)},
        {"usage": Usage(output=1.5)},  # type: ignore[arg-type]
    ],
)
def test_a_reply_that_could_not_be_read_back_ends_the_turn(place: Place, part: dict[str, Any]) -> None:
    """Bug: it was stored, and after that the session's messages could not be read."""

    async def answers(request: ModelRequest) -> AsyncIterator[ModelDelta]:
        yield ReplyEnded(**{"text": "fine", **part})

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(answers, "echo:staged")))
            with pytest.raises(TurnStopped, match="returned an invalid reply: Expected"):
                await session.turn("one")
            session = await runtime.session("s", agent=Agent(EchoModel()))
            assert (await session.turn("two")).output == "re: two"
            assert len(await session.messages()) == 3

    asyncio.run(main())


# Idempotency keys


def test_the_same_key_and_content_return_the_same_turn(place: Place) -> None:
    """Seed: other content under the same key is a conflict."""

    async def main() -> None:
        model = EchoModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            first = await session.turn("one", idempotency_key="k")
            again = await session.turn("one", idempotency_key="k")
            assert (again.turn_id, again.output) == (first.turn_id, first.output)
            assert again.messages == first.messages
            with pytest.raises(IdempotencyConflict):
                await session.turn("two", idempotency_key="k")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            assert (await session.turn("one", idempotency_key="k")).turn_id == first.turn_id
        assert len(model.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize("key", [4711, b"k", True, ""])
def test_an_idempotency_key_that_is_not_text_or_is_empty_is_refused(place: Place, key: Any) -> None:
    """Bug: a number made the session unusable, and an empty key returned the turn of another prompt."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            with pytest.raises(InvalidArgument, match="idempotency key must be non-empty text"):
                session.turn("one", idempotency_key=key)
            assert await session.turns() == []

    asyncio.run(main())


def test_concurrent_requests_with_the_same_key_are_one_turn(place: Place) -> None:
    """Ours: a client that repeats a request gets one answer twice."""

    async def main() -> None:
        model = EchoModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            found = await asyncio.gather(*(session.turn("one", idempotency_key="k") for _ in range(4)))
            assert len({one.turn_id for one in found}) == 1
            assert {one.output for one in found} == {"re: one"}
        assert len(model.requests) == 1

    asyncio.run(main())


def test_a_key_finds_an_interrupted_turn_and_resumes_it(place: Place) -> None:
    """Ours: repeating a request after a crash finishes the turn that it began."""

    async def main() -> None:
        model = HeldModel("again")
        async with place.runtime() as first:
            session = await first.session("s", agent=Agent(model))
            turn = session.turn("one", idempotency_key="k")
            turn.start()
            await model.started.wait()
        async with place.runtime() as second:
            session = await second.session("s", agent=Agent(model))
            result = await session.turn("one", idempotency_key="k")
            assert (result.turn_id, result.output) == (turn.turn_id, "again")

    asyncio.run(main())


def test_a_key_returns_the_stop_of_a_failed_turn(place: Place) -> None:
    """Ours: repeating a failed request does not run it again."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of({"failure": {"message": "no"}}, "ok"))
            for _ in range(2):
                with pytest.raises(TurnStopped, match="no") as caught:
                    await session.turn("one", idempotency_key="k")
                assert said(caught.value.messages) == ["one"]

    asyncio.run(main())


def test_sessions_do_not_share_keys(place: Place) -> None:
    """Ours: a key is scoped to its session."""

    async def main() -> None:
        agent = Agent(EchoModel())
        async with place.runtime() as runtime:
            one = await (await runtime.session("a", agent=agent)).turn("x", idempotency_key="k")
            other = await (await runtime.session("b", agent=agent)).turn("y", idempotency_key="k")
            assert one.turn_id != other.turn_id

    asyncio.run(main())


def test_a_provider_may_cancel_its_own_turn(memory: Place) -> None:
    """Bug: the task of the turn was cancelled while it ran, and the turn was left unfinished."""

    async def main() -> None:
        async def cancels(request: ModelRequest) -> AsyncIterator[ModelDelta]:
            await session.cancel()
            yield ReplyEnded(text="too late")

        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(cancels)))
            with pytest.raises(TurnStopped) as caught:
                await session.turn("hi")
            assert caught.value.reason is StopReason.CANCELLED
            assert await session.unfinished() is None

    asyncio.run(main())


def test_a_model_error_keeps_its_code(memory: Place) -> None:
    """Ours: a provider's own code reaches the caller that awaits the turn."""

    async def limited(request: ModelRequest) -> AsyncIterator[ModelDelta]:
        raise ModelError("slow down", code="RATE_LIMITED", retryable=False)
        yield

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(limited)))
            with pytest.raises(TurnStopped) as caught:
                await session.turn("hi")
            assert caught.value.code == "RATE_LIMITED"

    asyncio.run(main())
