"""Blocking tool sources: other sessions do not wait for them, and their time limit applies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import pytest
from stand_ins import Place, agent_of, asks

from standfast import Agent, Plugin, ScriptedModel, Session, ToolMessage, hook, tool
from standfast.errors import BadToolSource, PluginFailed
from standfast.model.capability import ToolAvailability, ToolManifest
from standfast.runtime.agent_runtime import Runtime
from standfast.tools.decorator import as_registered
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import StaticTools

TIMEOUT_S = 0.4


@tool(side_effect="read")
def far() -> str:
    """Something far away."""
    return "seen"


class Source:
    """A source that blocks in one of its methods, once it is armed, until it is released."""

    def __init__(self, method: str, availability: ToolAvailability = ToolAvailability.SHOWCASED) -> None:
        self._tools = StaticTools([as_registered(far)], availability=availability)
        self._method = method
        self.armed = True
        self.inside = False
        self.entered, self.released = threading.Event(), threading.Event()

    def manifests(self) -> Sequence[ToolManifest]:
        self._block("manifests")
        return self._tools.manifests()

    def resolve(self, name: str) -> RegisteredTool | None:
        self._block("resolve")
        return self._tools.resolve(name)

    def _block(self, method: str) -> None:
        if self.armed and self._method == method:
            self.inside = True
            self.entered.set()
            self.released.wait(10)
            self.inside = False


async def run_others_meanwhile(runtime: Runtime, source: Any, work: Awaitable[Any]) -> asyncio.Future[Any]:
    """Start *work*, which blocks, and run a turn of another session meanwhile."""
    other = await runtime.session("other", agent=Agent(ScriptedModel(["fine"])))
    doing = asyncio.ensure_future(work)
    assert await asyncio.to_thread(source.entered.wait, 10)
    assert (await other.turn("hi")).output == "fine"
    assert source.inside, "the other session waited until the source had answered"
    return doing


async def add(session: Session[Any], source: Source) -> None:
    await session.tools.add_source("far", source)


async def lay_over(session: Session[Any], source: Source) -> None:
    await session.set_context_overlay([source])


async def refresh(session: Session[Any], source: Source) -> None:
    source.armed = False
    await session.set_context_overlay([source])
    source.armed = True
    await session.refresh_tool_catalog()


async def catalog(session: Session[Any], source: Source) -> None:
    await session.tools.add_source("far", source)
    await session.tools.catalog()


async def turn(session: Session[Any], source: Source) -> None:
    await session.tools.add_source("far", source)
    assert (await session.turn("go")).output == "end"


Use = Callable[[Session[Any], Source], Awaitable[None]]
USES: dict[str, tuple[str, Use]] = {
    "added": ("manifests", add),
    "laid over": ("manifests", lay_over),
    "refreshed": ("manifests", refresh),
    "in the catalog": ("resolve", catalog),
    "in a turn": ("resolve", turn),
}


@pytest.mark.parametrize("name", USES)
def test_a_blocking_source_delays_no_other_session(memory: Place, name: str) -> None:
    """Bug: sources were listed and resolved on the runtime's loop."""
    method, use = USES[name]
    source = Source(method)

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("far", {})), "end"))
            doing = await run_others_meanwhile(runtime, source, use(session, source))
            source.released.set()
            await doing

    asyncio.run(main())


@pytest.mark.parametrize("name", USES)
def test_a_source_that_never_answers_fails_at_its_limit(memory: Place, name: str) -> None:
    """Ours: the error names the source, as if the source had raised."""
    method, use = USES[name]
    source = Source(method)

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("far", {})), "end"))
            with pytest.raises(BadToolSource, match=rf"failed in {method}\(.*did not answer within"):
                await use(session, source)
        assert source.inside
        source.released.set()

    asyncio.run(main())


def test_a_source_that_blocks_when_a_tool_is_called_delays_no_other_session(memory: Place) -> None:
    """Bug: a tool that the model does not see is resolved when code or a model calls it."""
    source = Source("resolve", ToolAvailability.CALLABLE)

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("far", {})), "end"))
            await session.tools.add_source("far", source)
            doing = await run_others_meanwhile(runtime, source, session.turn("go").settled())
            source.released.set()
            (result,) = [one for one in (await doing).messages if isinstance(one, ToolMessage)]
            assert result.value == "seen"

    asyncio.run(main())


def test_a_call_whose_source_never_answers_fails_and_the_turn_continues(memory: Place) -> None:
    """Ours: only the call fails."""
    source = Source("resolve", ToolAvailability.CALLABLE)

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("far", {})), "end"))
            await session.tools.add_source("far", source)
            done = await session.turn("go")
            assert done.output == "end"
            (result,) = [one for one in done.messages if isinstance(one, ToolMessage)]
            assert result.error is not None
            assert "failed in resolve('far'): it did not answer within" in result.error.message
        source.released.set()

    asyncio.run(main())


class Restless(Plugin):
    """A plugin that changes its state before each turn, so that the catalog is rebuilt, and then blocks."""

    inside: ClassVar[bool] = False
    armed: ClassVar[bool] = False
    entered: ClassVar[threading.Event] = threading.Event()
    released: ClassVar[threading.Event] = threading.Event()

    @classmethod
    def block(cls) -> None:
        if cls.armed:
            cls.inside = True
            cls.entered.set()
            cls.released.wait(10)
            cls.inside = False

    @hook
    async def before_turn(self, ctx: Any) -> None:
        self.state = ctx.turn_id
        type(self).armed = True

    @hook
    def tool_catalog(self, ctx: Any) -> None:
        self.block()


class Restored(Restless):
    """A plugin that blocks in `restore` during a turn."""

    id = "restored"

    @hook
    async def before_turn(self, ctx: Any) -> None:
        self.state = ctx.turn_id

    @hook
    def tool_catalog(self, ctx: Any) -> None:
        """Nothing to say."""

    def restore(self, meta: Any, reader: Any) -> None:
        if meta.state is not None:
            self.block()
        super().restore(meta, reader)


@pytest.fixture(autouse=True)
def fresh() -> Any:
    for plugin in (Restless, Restored):
        plugin.armed = plugin.inside = False
        plugin.entered, plugin.released = threading.Event(), threading.Event()
    yield
    for plugin in (Restless, Restored):
        plugin.released.set()


def test_rebuilding_a_catalog_during_a_turn_delays_no_other_session(memory: Place) -> None:
    """Bug: `tool_catalog` ran on the runtime's loop, except while the session was opened."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = agent_of(asks(("far", {})), "end", tools=[far], plugins=[Restless()])
            session = await runtime.session("s", agent=agent)
            doing = await run_others_meanwhile(runtime, Restless, session.turn("go").settled())
            Restless.released.set()
            assert (await doing).output == "end"

    asyncio.run(main())


@tool(approval="manual")
def pay() -> str:
    """Pay."""
    return "paid"


def test_a_plugin_that_blocks_while_it_is_restored_in_a_turn_delays_no_other_session(place: Place) -> None:
    """Bug: a plugin's state was restored on the runtime's loop during a turn, without a limit."""

    def agent() -> Agent[Any, Any]:
        return agent_of(asks(("pay", {})), "end", tools=[pay], plugins=[Restored()])

    async def main() -> None:
        async with place.runtime() as runtime:
            waiting = await (await runtime.session("s", agent=agent())).turn("go")
            (wait,) = waiting.waits
        Restored.armed = True
        async with place.runtime() as runtime:
            doing = await run_others_meanwhile(runtime, Restored, runtime.session("s", agent=agent()))
            Restored.released.set()
            session = await doing
            assert (await session.approve(wait.wait_id)).output == "end"
        Restored.released.clear()

    asyncio.run(main())


def test_a_plugin_whose_restore_never_returns_in_a_turn_fails_at_its_limit(memory: Place) -> None:
    """Ours: the time limit of hooks also applies to `restore`."""

    async def main() -> None:
        agent = agent_of(asks(("pay", {})), "end", tools=[pay], plugins=[Restored()])
        async with memory.runtime() as runtime:
            await (await runtime.session("s", agent=agent)).turn("go")
        Restored.armed = True
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            with pytest.raises(PluginFailed, match="failed in restore: it did not answer within"):
                await runtime.session("s", agent=agent)

    asyncio.run(main())
