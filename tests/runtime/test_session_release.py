"""Memory of earlier sessions: a runtime keeps nothing that grows with their number."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from standfast import Agent, Runtime, UserMessage
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.sessions.live_session import LiveSession


def _agent(name: str = "clerk") -> Agent[Any, str]:
    return Agent(ScriptedModel(["one", "two", "three"], strict=False), name=name)


def _runtime(store: Path | None = None) -> Runtime:
    runtime = Runtime(store)
    runtime._settings = msgspec.structs.replace(runtime._settings, cached_sessions=4)
    return runtime


def _kept() -> int:
    gc.collect()
    return sum(1 for found in gc.get_objects() if isinstance(found, LiveSession))


@pytest.mark.slow
@pytest.mark.parametrize("durable", [False, True])
def test_sessions_that_are_no_longer_used_are_released(tmp_path: Path, durable: bool) -> None:
    """Bug: every session that was ever opened cost about 2 kB until the runtime was closed."""

    async def scenario() -> None:
        agent, before = _agent(), _kept()
        async with _runtime(tmp_path / "standfast.db" if durable else None) as runtime:
            for number in range(40):
                session = await runtime.session(f"s{number}", agent=agent)
                await session.turn("hello")
            assert _kept() - before <= 4 + 1

    asyncio.run(scenario())


def test_a_session_that_the_program_still_holds_stays_the_same_object(tmp_path: Path) -> None:
    """Ours: two objects of one session would not see each other's events."""

    async def scenario() -> None:
        agent = _agent()
        async with _runtime() as runtime:
            held = await runtime.session("held", agent=agent)
            await held.turn("hello")
            for number in range(10):
                await (await runtime.session(f"s{number}", agent=agent)).turn("hello")
            again = await runtime.session("held")
            assert again._live is held._live
            assert (await again.turn("go on")).output == "two"

    asyncio.run(scenario())


def test_a_released_session_keeps_its_agent_and_gets_new_event_numbers(tmp_path: Path) -> None:
    """Ours: its queued input runs automatically, and event numbers stay unique."""

    async def scenario() -> None:
        agent = _agent()
        async with _runtime(tmp_path / "standfast.db") as runtime:
            first = await runtime.session("first", agent=agent)
            await first.turn("hello")
            seen = first._live.events.last_seq
            del first
            for number in range(10):
                await (await runtime.session(f"s{number}", agent=agent)).turn("hello")
            gc.collect()
            assert "first" not in runtime._open.sessions
            await runtime._open.queue_turn("first", "input-1", UserMessage(content="and now?"))
            live = await runtime._open.put_to_work("first")
            assert live is not None
            assert live.draining is not None
            await live.draining
            assert [turn.state for turn in await runtime.store.turns("first")] == ["ended"] * 2
            assert live.events.last_seq > seen

    asyncio.run(scenario())


def test_a_session_that_was_never_opened_here_is_left_alone(tmp_path: Path) -> None:
    """Ours: releasing sessions does not make their agent resume other sessions of the same name."""

    async def scenario() -> None:
        async with Runtime(tmp_path / "standfast.db") as other:
            await other.session("foreign", agent=_agent())
        async with _runtime(tmp_path / "standfast.db") as runtime:
            for number in range(10):
                await (await runtime.session(f"s{number}", agent=_agent())).turn("hello")
            assert await runtime._open.put_to_work("foreign") is None
            assert runtime._open.works_on("s0")
            assert not runtime._open.works_on("foreign")

    asyncio.run(scenario())


def test_agents_with_the_same_name_are_not_mixed_up(tmp_path: Path) -> None:
    """Ours: a session keeps the agent object that it was opened with."""

    async def scenario() -> None:
        async with _runtime() as runtime:
            agents = [_agent("same") for _ in range(10)]
            for number, agent in enumerate(agents):
                await (await runtime.session(f"s{number}", agent=agent)).turn("hello")
            assert len(runtime._open.sessions) <= 5
            for number, agent in enumerate(agents):
                assert (await runtime.session(f"s{number}"))._live.prepared.agent is agent

    asyncio.run(scenario())
