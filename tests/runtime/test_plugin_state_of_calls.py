"""Plugin state of concurrent calls: it is written with the result that it comes from."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import pytest
from stand_ins import agent_of, asks

from standfast import Plugin, Runtime, hook, tool
from standfast.model.plugin_state import PluginSnapshotMeta, decode_entry
from standfast.ports.session_store import Lease, Save, Saved
from standfast.store.memory_sessions import MemorySessionStore


class Written(MemorySessionStore):
    """A store that logs, after each write, which inputs of calls are on disk, and the plugin's state."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []
        self.counted: list[str] = []
        self.seen: list[tuple[list[str], list[str]]] = []
        self.first = threading.Event()

    async def save(self, lease: Lease, save: Save) -> Saved:
        saved = await super().save(lease, save)
        for entry in save.entries:
            if entry.kind == "input" and entry.key.startswith(("tool.", "ruled.")):
                self.keys.append(entry.key)
            if entry.key == "plugin.counter":
                state: Any = decode_entry(entry.body).meta.state
                self.counted = list(state)
        self.seen.append((sorted(self.keys), sorted(self.counted)))
        if any(key.startswith("tool.") for key in self.keys):
            self.first.set()
        return saved


class Counter(Plugin):
    """A plugin that stores the keys of its outcomes."""

    first_waits: ClassVar[float] = 0.0
    """How long the first call's hook waits after it has counted."""

    def count(self, key: str) -> None:
        self.state = [*(self.state or []), key]

    @hook
    async def before_tool_call(self, ctx: Any) -> None:
        self.count(f"ruled.{ctx.call_id}")

    @hook
    async def after_tool_call(self, ctx: Any) -> None:
        self.count(f"tool.{ctx.call_id}")
        if ctx.call_id == 1 and self.first_waits:
            await asyncio.sleep(self.first_waits)
            self.touch()


class Bare:
    """The same as a plugin that reports its changes only by its revision."""

    id = "counter"
    version = "1"
    revision = 0

    def build(self, ctx: Any) -> Any:
        return Bare()

    def register(self, registrar: Any) -> None:
        self.state: list[str] = []
        registrar.hook("before_tool_call", self.before)
        registrar.hook("after_tool_call", self.after)

    def session_ready(self, ctx: Any) -> None:
        """Do nothing."""

    async def before(self, ctx: Any) -> None:
        self.state, self.revision = [*self.state, f"ruled.{ctx.call_id}"], self.revision + 1

    async def after(self, ctx: Any) -> None:
        self.state, self.revision = [*self.state, f"tool.{ctx.call_id}"], self.revision + 1
        if ctx.call_id == 1 and Counter.first_waits:
            await asyncio.sleep(Counter.first_waits)

    def snapshot(self, writer: Any) -> Any:
        return PluginSnapshotMeta(
            plugin_id=self.id, plugin_version="1", revision=self.revision, state=self.state
        )

    def restore(self, meta: Any, reader: Any) -> None:
        self.state, self.revision = list(meta.state or []), meta.revision


class Home(Counter):
    """The same on the runtime's loop."""

    id = "counter"
    loop = "runtime"


class Slow(Plugin):
    """A plugin after the counter that delays the first call's result."""

    store: ClassVar[Written]

    @hook
    async def after_tool_call(self, ctx: Any) -> None:
        if ctx.call_id == 1:
            await asyncio.to_thread(self.store.first.wait, 0.5)


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("plugin", [Counter, Home, Bare])
@pytest.mark.parametrize("how", ["another plugin takes its time", "the hook itself does", "no hook does"])
def test_state_changed_by_a_hook_is_written_with_the_result_of_its_call(plugin: Any, how: str) -> None:
    """Bug: a change was written with another call's result, and counted twice after a crash."""
    store = Slow.store = Written()
    Counter.first_waits = 0.3 if how == "the hook itself does" else 0.0

    async def main() -> None:
        plugins = [plugin(), *([Slow()] if how == "another plugin takes its time" else [])]
        script = asks(*[("look", {})] * 4), asks(*[("look", {})] * 4), "end"
        async with Runtime(store) as runtime:
            agent = agent_of(*script, plugins=plugins, tools=[look])
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("go")).output == "end"

    asyncio.run(main())
    assert len(store.keys) == 16
    for inputs, counted in store.seen:
        assert counted == inputs


CELL = """```python
import asyncio
async def twice():
    await look()
    await look()
    await look()
await asyncio.gather(twice(), twice(), twice())
finish("end")
```"""


@pytest.mark.slow
@pytest.mark.parametrize("waits", [0.0, 0.2])
def test_state_is_written_with_its_call_even_if_before_and_after_hooks_of_code_overlap(waits: float) -> None:
    """Bug: a ruling on one call was written with a change by the after-hook of another."""
    store = Written()
    Counter.first_waits = 0.0

    class Uneven(Counter):
        id = "counter"

        @hook
        async def after_tool_call(self, ctx: Any) -> None:
            self.count(f"tool.{ctx.call_id}")
            await asyncio.sleep(waits if ctx.call_id % 2 else 0)

    async def main() -> None:
        async with Runtime(store) as runtime:
            agent = agent_of(CELL, plugins=[Uneven()], tools=[look], protocol="code")
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("go")).output == "end"

    asyncio.run(main())
    assert len(store.keys) >= 9  # the last ones may be part of the turn's commit
    for inputs, counted in store.seen:
        assert counted == inputs


class Mute(Plugin):
    """A plugin that changes once and cannot snapshot."""

    asked: ClassVar[int] = 0

    @hook
    async def before_turn(self, ctx: Any) -> None:
        self.state = 1

    def snapshot(self, writer: Any) -> Any:
        type(self).asked += 1
        raise ValueError("no idea")


class MuteAtHome(Mute):
    loop = "runtime"


def test_a_plugin_that_cannot_snapshot_is_not_asked_at_every_step() -> None:
    """Ours: state is written when it has changed and when the turn ends."""

    async def main() -> None:
        async with Runtime() as runtime:
            agent = agent_of(*[asks(("look", {}))] * 5, "end", plugins=[MuteAtHome()], tools=[look])
            session = await runtime.session("s", agent=agent)
            await session.turn("go").settled()

    MuteAtHome.asked = 0
    asyncio.run(main())
    assert MuteAtHome.asked <= 4
