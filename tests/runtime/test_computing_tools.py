"""What is on disk when a tool runs: everything that led to the call, unless the tool only computes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from standfast import Agent, RunContext, Runtime, tool
from standfast.ports.session_store import Lease, Save, Saved, SessionStore
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.agent_runtime import open_store


class Counting:
    """A store that counts its writes during a turn, and records the count when a tool runs."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.writes = 0
        self.when_it_ran: list[int] = []
        self.waits_for: threading.Event | None = None
        """Set by the tool, if nothing is to be written before it has run."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def save(self, lease: Lease, save: Save) -> Saved:
        if self.waits_for is not None:
            assert await asyncio.to_thread(self.waits_for.wait, 10)
        self.writes += 1
        return await self._store.save(lease, save)


def tools(store: Counting) -> dict[str, Any]:
    def note() -> str:
        store.when_it_ran.append(store.writes)
        if store.waits_for is not None:
            store.waits_for.set()
        return "noted"

    @tool(side_effect="none")
    async def compute() -> str:
        """Only compute."""
        return note()

    @tool(side_effect="read")
    async def look() -> str:
        """Look at something."""
        return note()

    @tool(side_effect="external_system")
    async def act() -> str:
        """Act on something."""
        return note()

    @tool(side_effect="none")
    async def told(ctx: RunContext[None]) -> str:
        """Use the context of its own call."""
        return note()

    @tool(side_effect="none", idempotent=False)
    async def once() -> str:
        """Must not be run twice, whatever it does."""
        return note()

    return {one.registered.name: one for one in (compute, look, act, told, once)}


async def run(path: Path, protocol: str, name: str, *replies: Any) -> list[int]:
    """Return the number of writes before each execution of the tool."""
    store = Counting(open_store(path))
    store.waits_for = threading.Event() if name == "compute" else None
    agent = Agent(ScriptedModel(replies), protocol=protocol, tools=[tools(store)[name]])
    async with Runtime(cast(SessionStore, store)) as runtime:
        session = await runtime.session("s", agent=agent)
        assert (await session.turn("go")).output == "done"
    return store.when_it_ran


@pytest.mark.parametrize(
    ("name", "writes"), [("compute", 0), ("look", 1), ("act", 1), ("told", 1), ("once", 1)]
)
def test_only_a_tool_that_computes_may_run_before_its_request_is_on_disk(
    tmp_path: Path, name: str, writes: int
) -> None:
    """Ours: an input is durable before anything that follows from it has an outside effect."""
    replies = ({"tool_calls": [{"name": name}]}, "done")
    assert asyncio.run(run(tmp_path / "standfast.db", "standard", name, *replies)) == [writes]


@pytest.mark.parametrize("name", ["look", "act", "told", "once"])
def test_a_call_made_by_code_is_on_disk_before_it_runs(tmp_path: Path, name: str) -> None:
    """Ours: this also holds for calls of a cell, which has no other effects."""
    reply = f"```python\nfinish({name}() and 'done')\n```"
    (writes,) = asyncio.run(run(tmp_path / "standfast.db", "code", name, reply))
    assert writes > 0
