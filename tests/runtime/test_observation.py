"""Observing a session: from the beginning, from a cursor, live, and after missed events."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from stand_ins import EchoModel, HeldModel, Place, StagedModel, observed, of_kind, said, until

from standfast import Agent, UserMessage
from standfast.errors import InvalidArgument, SessionNotFound
from standfast.model.events import (
    Gap,
    ModelCallStarted,
    NodeCommitted,
    ReplyReceived,
    TextStreamed,
    TurnBegan,
    TurnCommitted,
)
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived
from standfast.runtime.sessions.observation import Cursor, Observed
from standfast.runtime.turn import MAX_AGE_S, MAX_EVENTS, EventSignal, LiveFeed

WHOLE_TURN = [TurnBegan, ModelCallStarted, ReplyReceived, TurnCommitted]


async def flood(request: ModelRequest) -> AsyncIterator[ModelDelta]:
    """Return a reply of more chunks than are kept."""
    for _ in range(MAX_EVENTS + 10):
        yield TextArrived("x")
    yield ReplyEnded(text="done")


class Watch:
    """A task that observes a session until the end of the test."""

    def __init__(self, session: Any, after: Cursor | str | None = None) -> None:
        self.seen: list[Observed] = []
        self._session = session
        self._task = asyncio.ensure_future(self._follow(after))

    async def _follow(self, after: Cursor | str | None) -> None:
        async for one in self._session.observe(after):
            self.seen.append(one)

    @property
    def events(self) -> list[Any]:
        return [one.event for one in self.seen]

    async def until(self, kind: type, count: int = 1) -> None:
        await until(lambda: len(of_kind(kind, self.events)) >= count)

    async def stop(self) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task


async def drain(observer: AsyncIterator[Observed]) -> None:
    async for _ in observer:
        pass


def prompt_nodes(events: list[Any]) -> list[str]:
    """Return the texts of user messages in the nodes among some events."""
    return said(one.payload for one in of_kind(NodeCommitted, events))


def test_an_observer_from_the_beginning_sees_every_node_and_then_live_events(place: Place) -> None:
    """Seed: each session has a cursor, and committed events can always be read."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            await session.turn("one")
            await session.turn("two")
            watch = Watch(session)
            await watch.until(NodeCommitted, 4)
            assert prompt_nodes(watch.events) == ["one", "two"]
            assert [one.event.depth for one in watch.seen] == [1, 2, 3, 4]
            await session.turn("three")
            await watch.until(TurnCommitted)
            assert type(watch.events[4]) is TurnBegan
            assert len(of_kind(NodeCommitted, watch.events)) == 4
            assert watch.seen[-1].cursor.depth == 6
            await watch.stop()

    asyncio.run(main())


def test_an_observer_resumes_after_a_stored_cursor_in_the_middle_of_a_turn(place: Place) -> None:
    """Seed: an observer can always resume from a stored cursor."""

    async def main() -> None:
        model = HeldModel("next")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            watch = Watch(session)
            turn = session.turn("hi")
            turn.start()
            await model.started.wait()
            await watch.until(TextStreamed)
            stored = str(watch.seen[-1].cursor)
            await watch.stop()
            model.go.set()
            await turn
            again = await observed(session, 2, stored)
            assert [type(one.event) for one in again] == [ReplyReceived, TurnCommitted]

    asyncio.run(main())


def test_observation_can_resume_after_every_event(place: Place) -> None:
    """Ours: whichever cursor was stored last, the same events follow."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            first = str(await session.cursor())
            await session.turn("one")
            events = await observed(session, 4, first)
            assert [type(one.event) for one in events] == WHOLE_TURN
            for number, one in enumerate(events[:-1], start=1):
                assert await observed(session, len(events) - number, str(one.cursor)) == events[number:]

    asyncio.run(main())


def test_a_cursor_is_the_current_position_of_the_session(place: Place) -> None:
    """Ours: an observer that starts there misses no later event, and sees no earlier one."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            await session.turn("old")
            watch = Watch(session, await session.cursor())
            await session.turn("new")
            await watch.until(TurnCommitted)
            assert of_kind(NodeCommitted, watch.events) == []
            assert isinstance(watch.events[0], TurnBegan)
            await watch.stop()

    asyncio.run(main())


def test_missed_events_are_reported_by_a_gap_and_delivered_as_nodes(place: Place) -> None:
    """Seed: live events are replayed from a buffer of 2,048, and a `Gap` reports lost ones."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(flood)))
            start = str(await session.cursor())
            await session.turn("much")
            seen = await observed(session, 3, start)
            assert isinstance(seen[0].event, Gap)
            assert prompt_nodes([one.event for one in seen]) == ["much"]
            assert isinstance(seen[2].event, NodeCommitted)

    asyncio.run(main())


def test_an_observer_that_keeps_up_sees_no_gap(memory: Place) -> None:
    """Ours: the limit applies only to observers that start late."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(flood)))
            watch = Watch(session, await session.cursor())
            await session.turn("much")
            await watch.until(TurnCommitted)
            assert of_kind(Gap, watch.events) == []
            assert len(of_kind(TextStreamed, watch.events)) == MAX_EVENTS + 10
            await watch.stop()

    asyncio.run(main())


def test_live_events_are_kept_only_for_a_while(place: Place) -> None:
    """Seed: live events are kept for 120 s, and at most 2,048 of them."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            start = str(await session.cursor())
            await session.turn("one")
            place.clock.advance(MAX_AGE_S)
            assert isinstance((await observed(session, 1, start))[0].event, TurnBegan)
            place.clock.advance(1)
            seen = await observed(session, 3, start)
            assert isinstance(seen[0].event, Gap)
            assert prompt_nodes([one.event for one in seen]) == ["one"]

    asyncio.run(main())


@pytest.mark.slow
def test_a_cursor_of_another_process_leads_over_a_gap_to_the_nodes(place: Place) -> None:
    """Seed: live positions belong to one process; committed nodes are permanent."""

    async def main() -> None:
        async with place.runtime() as first:
            session = await first.session("s", agent=Agent(EchoModel()))
            await session.turn("one")
            stored = str(await session.cursor())
            await session.turn("two")
        async with place.runtime() as second:
            session = await second.session("s", agent=Agent(EchoModel()))
            seen = await observed(session, 3, stored)
            assert isinstance(seen[0].event, Gap)
            assert prompt_nodes([one.event for one in seen]) == ["two"]
            assert seen[-1].cursor.depth == 4

    asyncio.run(main())


def test_two_observers_see_the_same_events(memory: Place) -> None:
    """Ours: observers do not affect each other."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            one, other = Watch(session), Watch(session)
            for text in ("a", "b"):
                await session.turn(text)
            await one.until(TurnCommitted, 2)
            await other.until(TurnCommitted, 2)
            assert one.seen == other.seen
            await one.stop()
            await other.stop()

    asyncio.run(main())


def test_commits_of_another_runtime_are_observed(place: Place) -> None:
    """Ours: the observer and the worker may be different processes."""

    async def main() -> None:
        first, second = place.runtime(), place.runtime()
        first.poll_s = second.poll_s = 0.001
        async with first, second:
            here = await first.session("s", agent=Agent(EchoModel()))
            there = await second.session("s", agent=Agent(EchoModel()))
            watch = Watch(here)
            await there.turn("from there")
            await watch.until(NodeCommitted, 2)
            assert prompt_nodes(watch.events) == ["from there"]
            await watch.stop()

    asyncio.run(main())


@pytest.mark.parametrize("again", [False, True])
def test_an_observer_learns_that_the_session_was_deleted(place: Place, again: bool) -> None:
    """Bug: it waited forever, even if another session with the same id had been created."""

    async def main() -> None:
        first, second = place.runtime(), place.runtime()
        first.poll_s = 0.001
        async with first, second:
            here = await first.session("s", agent=Agent(EchoModel()))
            await here.turn("one")
            observer = here.observe()
            await anext(observer)
            await second.delete("s")
            if again:
                place.clock.advance(1)
                await second.session("s", agent=Agent(EchoModel()))
            with pytest.raises(SessionNotFound):
                await asyncio.wait_for(drain(observer), 30)

    asyncio.run(main())


def test_nodes_added_by_others_before_a_turn_here_are_not_skipped(place: Place) -> None:
    """Bug: the turn's own commit moved the cursor past nodes that no observer had received."""

    async def main() -> None:
        async with place.runtime() as first, place.runtime() as second:
            here = await first.session("s", agent=Agent(EchoModel()))
            there = await second.session("s", agent=Agent(EchoModel()))
            watch = Watch(here, await here.cursor())
            await asyncio.sleep(0)
            await there.turn("from there")
            await here.append([UserMessage(content="appended")])
            await here.turn("from here")
            await watch.until(TurnCommitted)
            assert prompt_nodes(watch.events) == ["from there", "appended"]
            depths = [one.cursor.depth for one in watch.seen]
            assert depths == sorted(depths)
            assert depths[-1] == 5
            await watch.stop()

    asyncio.run(main())


def test_a_rewound_session_is_observed_from_its_new_leaf(place: Place) -> None:
    """Bug: changes by another process after a rewind were not seen until the path was longer than before."""

    async def main() -> None:
        first, second = place.runtime(), place.runtime()
        first.poll_s = second.poll_s = 0.001
        async with first, second:
            here = await first.session("s", agent=Agent(EchoModel()))
            there = await second.session("s", agent=Agent(EchoModel()))
            for text in ("a", "b", "c"):
                await here.turn(text)
            watch = Watch(here, await here.cursor())
            await there.rewind(turns=2)
            await watch.until(Gap)
            await there.turn("d")
            await watch.until(NodeCommitted)
            assert prompt_nodes(watch.events) == ["d"]
            await watch.stop()

    asyncio.run(main())


def test_a_cursor_stays_valid_when_a_session_is_evicted(memory: Place) -> None:
    """Bug: the events were numbered from one again, and an old cursor pointed into the middle of new ones."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            await session.turn("one")
            stored = str(await session.cursor())
            await runtime.prune()  # evicts everything that can be read again
            await session.turn("two")
            seen = await observed(session, 4, stored)
            assert [type(one.event) for one in seen] == WHOLE_TURN

    asyncio.run(main())


@pytest.mark.parametrize("text", ["", "1", "a.b.c", "1.2.3.4", "1..x"])
def test_an_invalid_cursor_is_refused(memory: Place, text: str) -> None:
    """Ours: the error is raised at once, not when the first event is awaited."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            with pytest.raises(InvalidArgument, match="not a cursor"):
                session.observe(text)

    asyncio.run(main())


def test_a_cursor_can_be_written_and_parsed() -> None:
    """Ours: `str(cursor)` is its form for storage."""
    cursor = Cursor(5, "abc", 7)
    assert Cursor.parse(str(cursor)) == cursor
    assert Cursor.parse(str(Cursor())) == Cursor()


def test_an_observer_can_be_cancelled_while_events_arrive(memory: Place) -> None:
    """Bug: a cancellation that arrived together with an event was lost."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            for steps in range(12):
                watch = Watch(session, await session.cursor())
                turn = session.turn("x")
                turn.start()
                for _ in range(steps):
                    await asyncio.sleep(0)
                await watch.stop()
                await turn

    asyncio.run(main())


def test_a_runtime_closes_even_if_its_background_task_was_just_woken(place: Place) -> None:
    """Bug: the cancellation of its background task was lost, and closing never ended."""

    async def main() -> None:
        for steps in range(12):
            async with place.runtime() as runtime:
                for _ in range(steps):
                    await asyncio.sleep(0)
                runtime._open.changed.set()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_an_observer_that_does_not_read_holds_no_events() -> None:
    """Bug: events that were published while an observer slept were kept without a limit."""
    feed = LiveFeed()
    feed.listen(EventSignal())
    first = TurnBegan(turn_id="t", session_id="s")
    feed.publish(first)
    for _ in range(MAX_EVENTS):
        feed.publish(TurnBegan(turn_id="t", session_id="s"))
    assert sys.getrefcount(first) == 2  # ours, and the one of asking


def test_events_that_no_reader_can_request_are_dropped_when_the_turn_ends(memory: Place) -> None:
    """Ours: an idle session keeps no events, unless an observer or a cursor may continue from one."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(flood)))
            await session.turn("unobserved")
            live = runtime.live("s")
            assert live.events.kept is None
            before = live.events.last_seq
            assert before > 0
            start = str(await session.cursor())
            await session.turn("after a cursor was taken")
            assert live.events.kept is not None
            assert live.events.last_seq > before
            live.forget()
            await session.turn("again")
            assert live.events.kept is not None
            seen = await observed(session, 1, start)
            assert isinstance(seen[0].event, Gap)

    asyncio.run(main())
