"""Observing a session whose turn runs in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import shop_app
from fleet import Fleet, until

from standfast import Agent, Runtime
from standfast.events import Gap, NodeCommitted, TextStreamed, TurnCommitted
from standfast.model.session import TurnState
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived
from standfast.runtime.sessions import relay
from standfast.runtime.sessions.observation import Observed
from standfast.testing.postgres_server import PostgresServer

pytestmark = pytest.mark.slow
PIECES = 100


@pytest.fixture
def fleet(tmp_path: Path, postgres: PostgresServer) -> Iterator[Fleet]:
    with Fleet(tmp_path, postgres.new_url()) as started:
        yield started


async def _observe(store: str, after: str | None, enough: int) -> list[Observed]:
    """Observe the session as another process would: with a runtime that knows no agent."""
    seen: list[Observed] = []
    async with Runtime(store, keeper=False) as runtime, asyncio.timeout(60):
        async for one in runtime.session_handle("a").observe(after):
            seen.append(one)
            if isinstance(one.event, TurnCommitted) or len(_text(seen)) >= enough:
                return seen
    return seen


def _text(seen: list[Observed]) -> list[str]:
    return [one.event.text for one in seen if isinstance(one.event, TextStreamed)]


def test_text_streams_to_an_observer_in_another_process_and_resumes_from_its_cursor(fleet: Fleet) -> None:
    """Ours: a cursor means the same in every process, while the turn runs."""
    fleet.start()

    async def watch() -> tuple[list[Observed], list[Observed]]:
        first = asyncio.ensure_future(_observe(fleet.store, None, 30))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(fleet.queue, ("a", f"say w {PIECES}"), agent=shop_app.shop)
        before = await first
        return before, await _observe(fleet.store, str(before[-1].cursor), 1000)

    before, after = asyncio.run(watch())
    assert len(_text(before)) == 30
    assert not any(isinstance(one.event, Gap) for one in (*before, *after))
    assert _text(before) + _text(after) == [f"w{number} " for number in range(PIECES)]
    assert not any(isinstance(one.event, NodeCommitted) for one in after)
    assert isinstance(after[-1].event, TurnCommitted)


def test_a_late_observer_gets_the_text_from_the_beginning_of_the_turn(fleet: Fleet) -> None:
    """Ours: the process that runs a turn announces the part of the feed that it still keeps."""
    fleet.start()
    fleet.queue(("a", f"say w {4 * PIECES}"), agent=shop_app.shop)
    until(lambda: any(turn.state is TurnState.RUNNING for turn in fleet.turns()))
    seen = asyncio.run(_observe(fleet.store, None, 10**6))
    assert _text(seen) == [f"w{number} " for number in range(4 * PIECES)]


class _Patient:
    """A model that finishes its reply only after its first piece has been seen."""

    model_id = "test:patient"

    def __init__(self) -> None:
        self.seen = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        yield TextArrived(text="one")
        await self.seen.wait()
        yield ReplyEnded(text="one")

    async def close(self) -> None:
        """Nothing to close."""


def test_a_process_that_starts_after_an_observer_streams_to_it_at_once(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the process learned of the observer only from the next announcement, up to five seconds later."""
    monkeypatch.setattr(relay, "_EVERY_S", 3_600)

    async def scene() -> None:
        url, model, asked = postgres.new_url(), _Patient(), asyncio.Event()
        agent = Agent(model, name="patient")
        loop = asyncio.get_running_loop()

        def hear(text: str) -> None:
            if text.startswith("watch "):
                loop.call_soon_threadsafe(asked.set)

        async def observe(runtime: Runtime) -> None:
            async for one in runtime.session_handle("a").observe():
                if isinstance(one.event, TextStreamed):
                    model.seen.set()
                elif isinstance(one.event, TurnCommitted):
                    return

        async with Runtime(url, keeper=False) as watcher, asyncio.timeout(60):
            await watcher.session("a", agent=agent)
            stop = watcher.store.listen(hear)
            watching = asyncio.ensure_future(observe(watcher))
            await asked.wait()
            async with Runtime(url, agents=[agent], keeper=False) as runner:
                await (await runner.session("a", agent=agent)).turn("go")
                await watching
            stop()

    asyncio.run(scene())
