"""Turns that plugins and tools start, wait for and cancel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from host_stage import said, staged
from plugin_stand_ins import ObedientModel, call
from stand_ins import HeldModel, Place, asks, until
from stand_ins import said as words

from standfast import Agent, Plugin, RunContext, action, tool
from standfast.errors import (
    IdempotencyConflict,
    ServiceUnavailable,
    SessionNotFound,
    TurnNotFound,
    TurnUnfinished,
    TurnWaitsForItself,
)
from standfast.model.events import Gap, TurnBegan, TurnCommitted
from standfast.model.host_requests import SessionCreateRequest
from standfast.model.limits import UsageLimits
from standfast.model.outcome import Finished, Stopped, StopReason, Waiting
from standfast.model.session import TurnState
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.host import turns as turns_module


def test_a_turn_of_a_child_is_started_and_awaited(place: Place) -> None:
    """Seed: TurnHost.start_turn waits for the turn."""

    async def main() -> None:
        async with staged(place) as stage:
            child = await stage.make("child")
            done = await stage.host.start_turn(child, said("hello"))
            assert (done.session_id, done.text) == ("child", "re: hello")
            assert isinstance(done.outcome, Finished)
            assert words(done.messages) == ["hello"]
            assert done.usage.calls == 1
            assert await stage.host.await_turn(done.turn_id) == done

    asyncio.run(main())


def test_a_started_turn_is_on_disk_whether_or_not_its_events_are_read(place: Place) -> None:
    """Seed: start_turn_stream; a turn runs whether or not a caller reads its events."""

    async def main() -> None:
        model = HeldModel("two")
        async with staged(place, model=model) as stage:
            started = await stage.host.start_turn_stream("root", said("one"))
            record = await stage.runtime.store.turn(started.turn_id)
            assert record is not None
            assert record.state is TurnState.RUNNING
            model.go.set()
            events = [event async for event in started.events]
            assert isinstance(events[0], TurnBegan)
            assert isinstance(events[-1], TurnCommitted)
            unheard = await stage.host.start_turn_stream("root", said("two"))
            assert (await stage.host.await_turn(unheard.turn_id)).text == "two"

    asyncio.run(main())


def test_unread_events_are_dropped_oldest_first(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: unread events do not pile up; a late reader learns how many are missing."""
    monkeypatch.setattr(turns_module, "MAX_UNREAD", 2)

    async def main() -> None:
        async with staged(memory) as stage:
            started = await stage.host.start_turn_stream("root", said("one"))
            await stage.host.await_turn(started.turn_id)
            events = [event async for event in started.events]
            assert isinstance(events[0], Gap)
            assert events[0].missed
            assert len(events) == 3
            assert isinstance(events[-1], TurnCommitted)

    asyncio.run(main())


def test_the_same_idempotency_key_returns_the_same_turn(place: Place) -> None:
    """Seed: SPEC §7 rule 1, an idempotency key names one turn."""

    async def main() -> None:
        async with staged(place) as stage:
            first = await stage.host.start_turn("root", said("one", idempotency_key="k"))
            again = await stage.host.start_turn_stream("root", said("one", idempotency_key="k"))
            assert again.turn_id == first.turn_id
            with pytest.raises(IdempotencyConflict):
                await stage.host.start_turn_stream("root", said("two", idempotency_key="k"))

    asyncio.run(main())


def test_a_turn_may_be_started_with_its_own_limits(memory: Place) -> None:
    """Ours: a child's budget is passed with its turn."""

    async def main() -> None:
        model = ScriptedModel([asks(("look", {"what": "a"})), asks(("look", {"what": "b"}))])
        async with staged(memory, model=model) as stage:
            limits = UsageLimits(max_iterations=2)
            done = await stage.host.start_turn("root", said("go on for ever", limits=limits))
            assert isinstance(done.outcome, Stopped)
            assert done.outcome.reason is StopReason.TURN_BUDGET

    asyncio.run(main())


@tool(side_effect="external_system", approval="manual")
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def test_a_turn_that_waits_for_a_person_is_returned_as_waiting(place: Place) -> None:
    """Ours: the caller is not blocked until the person answers, and may await the turn again later."""

    async def main() -> None:
        model = ScriptedModel([asks(("pay", {"cents": 1})), "done"])
        agent = Agent(model, name="payer", tools=[pay])
        async with place.runtime(agents=[agent]) as runtime:
            await runtime.session("root", agent=agent)
            host = runtime.host("root")
            parked = await host.start_turn("root", said("pay"))
            assert isinstance(parked.outcome, Waiting)
            assert parked.messages == ()
            with pytest.raises(TurnUnfinished):
                await host.start_turn("root", said("more"))
            (approval,) = await runtime.approvals(pending=True)
            await runtime.approve(approval.approval_id)

            async def is_over() -> bool:
                return isinstance((await host.await_turn(parked.turn_id)).outcome, Finished)

            await until(is_over)

    asyncio.run(main())


def test_cancelling_a_turn_twice_has_the_effect_of_cancelling_it_once(place: Place) -> None:
    """Seed: cancel_turn is idempotent; a turn that has ended is not changed."""

    async def main() -> None:
        model = HeldModel("two")
        async with staged(place, model=model) as stage:
            started = await stage.host.start_turn_stream("root", said("one"))
            await model.started.wait()
            await stage.host.cancel_turn(started.turn_id)
            await stage.host.cancel_turn(started.turn_id)
            done = await stage.host.await_turn(started.turn_id)
            assert isinstance(done.outcome, Stopped)
            assert done.outcome.reason is StopReason.CANCELLED
            finished = await stage.host.start_turn("root", said("two"))
            await stage.host.cancel_turn(finished.turn_id)
            assert (await stage.host.await_turn(finished.turn_id)).text == "two"

    asyncio.run(main())


def test_turns_that_do_not_exist_are_not_found(memory: Place) -> None:
    """Ours: nor are turns of sessions that the caller cannot see."""

    async def main() -> None:
        async with staged(memory) as stage:
            done = await stage.host.start_turn("root", said("one"))
            child = stage.runtime._open.hosts_of(await stage.make("child")).action
            for turn_id in ("t_missing", done.turn_id):
                with pytest.raises(TurnNotFound):
                    await child.await_turn(turn_id)
                with pytest.raises(TurnNotFound):
                    await child.cancel_turn(turn_id)
            for session_id in ("missing", "root"):
                with pytest.raises(SessionNotFound):
                    await child.start_turn_stream(session_id, said("x"))

    asyncio.run(main())


# Waiting for itself


class Starter(Plugin):
    """A plugin whose tools start turns."""

    @tool(side_effect="read")
    async def ask(self, ctx: RunContext[None], session: str) -> str:
        """Start a turn of a session and wait for it."""
        return (await ctx.host.start_turn(session, said(f"asked by {ctx.session_id}"))).text

    @tool(side_effect="read")
    async def ask_on(self, ctx: RunContext[None], session: str, then: str) -> str:
        """Let another session ask a third one."""
        words = f'call ask:{{"session":"{then}"}}'
        done = await self.session.host.start_turn(session, said(words))
        return str(done.messages[2].value or done.messages[2].error.code)

    @tool(side_effect="read")
    async def start_later(self, ctx: RunContext[None]) -> str:
        """Start a turn of this session from a task, and do not wait for it."""

        async def later() -> str:
            return (await ctx.host.start_turn(ctx.session_id, said("later"))).text

        await ctx.host.spawn_hidden_task(ctx.session_id, "later", later)
        return "started"


def test_a_tool_may_start_a_turn_of_a_child_and_wait_for_it(place: Place) -> None:
    """Seed: ToolHookHost can start turns."""

    async def main() -> None:
        async with staged(place, Starter(), model=ObedientModel()) as stage:
            await stage.make("child")
            (answer,) = await call(stage.session, 'ask:{"session":"child"}')
            assert answer.value == "ok"
            assert words(await (await stage.open("child")).messages()) == ["asked by root"]

    asyncio.run(main())


def test_a_turn_cannot_wait_for_a_turn_of_its_own_session(place: Place) -> None:
    """Ours: the tool gets an error at once, because it would wait for itself forever."""

    async def main() -> None:
        async with staged(place, Starter(), model=ObedientModel()) as stage:
            (answer,) = await call(stage.session, 'ask:{"session":"root"}')
            assert answer.error is not None
            assert "would wait for itself" in answer.error.message
            assert len(await stage.session.turns()) == 1

    asyncio.run(main())


def test_a_cycle_of_turns_that_wait_for_each_other_is_refused_where_it_would_close(place: Place) -> None:
    """Ours: root waits for other, which would wait for root."""

    async def main() -> None:
        async with staged(place, Starter(), model=ObedientModel()) as stage:
            await stage.make("other", child=False)
            (answer,) = await call(stage.session, 'ask_on:{"session":"other","then":"root"}')
            assert answer.value == "TURN_WAITS_FOR_ITSELF"
            await stage.make("third", child=False)
            (fine,) = await call(stage.session, 'ask_on:{"session":"other","then":"third"}')
            assert fine.value == "ok"
            assert stage.runtime._open_background.waits._edges == {}

    asyncio.run(main())


def test_a_background_task_may_start_the_sessions_next_turn(place: Place) -> None:
    """Ours: a background task is not part of the turn that spawned it, so it does not wait for itself."""

    async def main() -> None:
        async with staged(place, Starter(), model=ObedientModel()) as stage:
            (answer,) = await call(stage.session, "start_later")
            assert answer.value == "started"
            await stage.host.await_hidden_tasks("root")
            assert words(await stage.session.messages()) == ["call start_later", "later"]

    asyncio.run(main())


def test_waiting_for_a_turn_ends_when_the_runtime_closes(memory: Place) -> None:
    """Ours: no caller waits forever for a turn that cannot end."""

    async def main() -> None:
        model = HeldModel()
        async with staged(memory, model=model) as stage:
            host = stage.host
            stage.runtime.poll_s = 0.01
            started = await host.start_turn_stream("root", said("one"))
            waiting = asyncio.create_task(host.await_turn(started.turn_id))
            await model.started.wait()
        with pytest.raises(ServiceUnavailable, match="closed"):
            await waiting

    asyncio.run(main())


def test_a_caller_cancelled_before_its_turn_begins_starts_no_turn(memory: Place) -> None:
    """Ours: a caller that is cancelled while the session is busy leaves no turn without an owner."""

    async def main() -> None:
        model = HeldModel("two")
        async with staged(memory, model=model) as stage:
            first = await stage.host.start_turn_stream("root", said("one"))
            await model.started.wait()
            second = asyncio.create_task(stage.host.start_turn_stream("root", said("two")))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            model.go.set()
            await stage.host.await_turn(first.turn_id)
            await until(lambda: not stage.session._live.busy)
            assert len(await stage.session.turns()) == 1

    asyncio.run(main())


class Nested(Plugin):
    """A plugin whose action creates a session and runs a turn there."""

    @action(kind="command", session="required")
    async def delegate(self, ctx: Any, args: str) -> str:
        made = await ctx.host.create_session(SessionCreateRequest())
        return str((await ctx.host.start_turn(made.session_id, said(args))).text)


def test_an_action_may_create_a_session_and_wait_for_its_turn(place: Place) -> None:
    """Seed: PluginActionHost can create sessions and start turns."""

    async def main() -> None:
        async with staged(place, Nested()) as stage:
            assert await stage.session.plugins.invoke("nested.delegate", "work") == "re: work"
            assert len(await stage.runtime.store.children("root")) == 1

    asyncio.run(main())


def test_the_error_of_a_turn_that_would_wait_for_itself_is_typed() -> None:
    """Ours: the error has a code and a hint."""
    error = TurnWaitsForItself("a", "b")
    assert (error.code, error.awaited) == ("TURN_WAITS_FOR_ITSELF", "b")
    assert error.hint
