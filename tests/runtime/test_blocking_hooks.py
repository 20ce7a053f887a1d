"""Plugin hooks that never await: their time limit applies, and other sessions do not wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from stand_ins import Place

from standfast import Agent, Plugin, ScriptedModel, TurnStopped, action, hook, tool
from standfast.errors import InvalidPlugin, PluginFailed
from standfast.model.host_requests import SessionCreateRequest

TIMEOUT_S = 0.4


class Blocking(Plugin):
    """A plugin whose hook of one kind blocks until it is released."""

    kind: ClassVar[str] = ""
    released: ClassVar[threading.Event] = threading.Event()
    entered: ClassVar[threading.Event] = threading.Event()

    def block(self, kind: str) -> None:
        if type(self).kind == kind:
            self.entered.set()
            self.released.wait(30)

    @hook
    async def before_turn(self, ctx: Any) -> None:
        self.block("before_turn")

    @hook
    async def prompt_contributor(self, ctx: Any) -> None:
        self.block("prompt_contributor")

    @hook
    async def context_transform(self, ctx: Any, messages: Any) -> Any:
        self.block("context_transform")
        return messages

    @hook
    async def before_tool_call(self, ctx: Any) -> None:
        self.block("before_tool_call")

    @hook
    async def after_tool_call(self, ctx: Any) -> None:
        self.block("after_tool_call")

    @hook
    async def checkpoint(self, ctx: Any) -> None:
        self.block("checkpoint")

    @hook
    async def assistant_stream(self, ctx: Any) -> str:
        self.block("assistant_stream")
        return str(ctx.chunk)

    @hook
    async def assistant_response(self, ctx: Any) -> Any:
        self.block("assistant_response")
        return ctx.response

    @hook
    async def after_turn(self, ctx: Any) -> None:
        self.block("after_turn")

    @hook
    async def turn_finalized(self, event: Any) -> None:
        self.block("turn_finalized")

    @hook
    async def turn_persisted(self, event: Any) -> None:
        self.block("turn_persisted")

    @hook
    async def session_config_mutator(self, event: Any, policy: Any) -> Any:
        self.block("session_config_mutator")
        return policy

    @action
    async def act(self, ctx: Any) -> int:
        self.block("action")
        return 1


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


FATAL = ("before_turn", "prompt_contributor", "context_transform", "checkpoint", "after_turn",
         "assistant_stream", "assistant_response")  # fmt: skip
CALLS = ("before_tool_call", "after_tool_call")
HARMLESS = ("turn_finalized", "turn_persisted", "session_config_mutator")
SCRIPT: list[Any] = [{"tool_calls": [{"name": "look", "arguments": {}}]}, "end"]


@pytest.fixture(params=[*FATAL, *CALLS, *HARMLESS])
def kind(request: pytest.FixtureRequest) -> Any:
    Blocking.kind = request.param
    Blocking.released, Blocking.entered = threading.Event(), threading.Event()
    yield request.param
    Blocking.released.set()
    Blocking.kind = ""


def test_a_blocking_hook_fails_according_to_its_kind_and_stalls_no_other_session(
    memory: Place, kind: str
) -> None:
    """Bug: a hook that never awaits stalled every session, and its time limit did not apply."""

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            agent = Agent(ScriptedModel(SCRIPT), plugins=[Blocking()], tools=[look])
            other = await runtime.session("b", agent=Agent(ScriptedModel(["fine"] * 40)))
            turn = (await runtime.session("a", agent=agent)).turn("go")
            turn.start()
            assert await asyncio.to_thread(Blocking.entered.wait, 10)
            for _ in range(40):
                assert (await asyncio.wait_for(other.turn("hi"), 10)).output == "fine"
            await check(turn, kind)
        assert not Blocking.released.is_set()

    async def check(turn: Any, kind: str) -> None:
        if kind in FATAL:
            with pytest.raises(TurnStopped, match=f"plugin 'blocking' failed in {kind}: it did not answer"):
                await asyncio.wait_for(turn, 20)
            return
        done = await asyncio.wait_for(turn, 20)
        assert done.output == "end"
        (result,) = [one for one in done.messages if one.__class__.__name__ == "ToolMessage"]
        if kind in CALLS:
            assert "did not answer within" in result.error.message
        else:
            assert result.value == "seen"

    asyncio.run(main())


def test_a_blocking_action_fails_at_its_limit(memory: Place) -> None:
    """Bug: a plugin's action could also stall every session."""
    Blocking.kind, Blocking.released = "action", threading.Event()

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            agent = Agent(ScriptedModel(["x"]), plugins=[Blocking()])
            session = await runtime.session("a", agent=agent)
            asked = asyncio.ensure_future(session.plugins.invoke("blocking.act"))
            other = await runtime.session("b", agent=Agent(ScriptedModel(["fine"])))
            assert (await asyncio.wait_for(other.turn("hi"), 10)).output == "fine"
            with pytest.raises(PluginFailed, match="did not answer"):
                await asyncio.wait_for(asked, 20)

    try:
        asyncio.run(main())
    finally:
        Blocking.released.set()
        Blocking.kind = ""


class BlockingPlainly(Plugin):
    """A plugin that blocks where nothing can be awaited."""

    kind: ClassVar[str] = ""
    released: ClassVar[threading.Event] = threading.Event()

    def _block(self, kind: str) -> None:
        if self.kind == kind:
            self.released.wait(30)

    def session_ready(self, ctx: Any) -> None:
        self._block("session_ready")

    def restore(self, meta: Any, reader: Any) -> None:
        self._block("restore")
        super().restore(meta, reader)

    @hook
    def tool_catalog(self, ctx: Any) -> None:
        self._block("tool_catalog")

    @hook
    def trigger_catalog(self) -> list[Any]:
        self._block("trigger_catalog")
        return []


class Innocent(Plugin):
    """A plugin with the same functions that never blocks."""

    @hook
    def tool_catalog(self, ctx: Any) -> None:
        """Nothing to say."""

    @hook
    def trigger_catalog(self) -> list[Any]:
        return []


class InnocentLater(Innocent):
    """The same, after the plugin that blocks."""


@pytest.mark.parametrize("kind", ["session_ready", "restore", "tool_catalog", "trigger_catalog"])
def test_a_plugin_that_blocks_while_its_session_is_opened_stalls_no_other_session(
    memory: Place, kind: str
) -> None:
    """Bug: functions of plugins that cannot await are called when a session is opened, and may block.

    Bug: the error named another plugin, or all of them.
    """
    BlockingPlainly.kind, BlockingPlainly.released = kind, threading.Event()

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            plugins = [Innocent(), BlockingPlainly(), InnocentLater()]
            agent = Agent(ScriptedModel(["x"]), plugins=plugins)

            async def take_turn() -> None:
                await (await runtime.session("a", agent=agent)).turn("go")

            opened = asyncio.ensure_future(take_turn())
            other = await runtime.session("b", agent=Agent(ScriptedModel(["fine"] * 20)))
            for _ in range(20):
                assert (await asyncio.wait_for(other.turn("hi"), 10)).output == "fine"
            failed = f"plugin 'blocking-plainly' failed in {kind}: it did not answer within"
            with pytest.raises(PluginFailed, match=failed):
                await asyncio.wait_for(opened, 20)
        assert not BlockingPlainly.released.is_set()

    try:
        asyncio.run(main())
    finally:
        BlockingPlainly.released.set()
        BlockingPlainly.kind = ""


@pytest.mark.parametrize("kind", ["session_ready", "restore", "trigger_catalog"])
def test_the_error_about_a_plugin_that_blocks_while_it_is_forked_names_it(memory: Place, kind: str) -> None:
    """Bug: the error named all plugins of the session, and no function."""
    BlockingPlainly.released = threading.Event()

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            plugins = [Innocent(), BlockingPlainly(), InnocentLater()]
            await runtime.session("a", agent=Agent(ScriptedModel(["x"]), plugins=plugins))
            BlockingPlainly.kind = kind
            request = SessionCreateRequest(session_id="b", plugins="inherited")
            failed = f"plugin 'blocking-plainly' failed in {kind}: it did not answer within"
            with pytest.raises(PluginFailed, match=failed):
                await asyncio.wait_for(runtime.host("a").create_session(request), 20)

    try:
        asyncio.run(main())
    finally:
        BlockingPlainly.released.set()
        BlockingPlainly.kind = ""


class Counting(Plugin):
    """A plugin that counts without a lock, and awaits in between."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.most = 0
        self._now = 0

    def __deepcopy__(self, memo: Any) -> Counting:
        return self

    @hook
    async def before_tool_call(self, ctx: Any) -> None:
        self.threads.add(threading.get_ident())
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.05)
        self._now -= 1
        self.state = {"calls": (self.state or {}).get("calls", 0) + 1}


def test_hooks_of_a_session_share_one_thread_and_interleave_where_they_await(memory: Place) -> None:
    """Ours: a plugin needs no locks, because its hooks never run at the same time."""
    counting = Counting()

    async def main() -> None:
        async with memory.runtime() as runtime:
            script: list[Any] = [{"tool_calls": [{"name": "look", "arguments": {}}] * 8}, "end"]
            agent = Agent(ScriptedModel(script), plugins=[counting], tools=[look])
            session = await runtime.session("a", agent=agent)
            assert (await session.turn("go")).output == "end"

    asyncio.run(main())
    assert len(counting.threads) == 1
    assert threading.get_ident() not in counting.threads
    assert counting.most > 1
    assert counting.state == {"calls": 8}


class Where(Plugin):
    loop = "runtime"
    found: ClassVar[list[int]] = []

    @hook
    async def before_turn(self, ctx: Any) -> None:
        self.found.append(threading.get_ident())


class Derived(Where):
    """A subclass that inherits the hook but not the declaration."""


def test_a_plugin_may_declare_that_its_hooks_run_on_the_runtimes_loop(memory: Place) -> None:
    """Ours: for hooks that use objects of the application's loop; a subclass must declare it itself."""

    async def main(plugin: Plugin) -> int:
        Where.found.clear()
        async with memory.runtime() as runtime:
            agent = Agent(ScriptedModel(["x"]), plugins=[plugin])
            await (await runtime.session(plugin.id, agent=agent)).turn("go")
        (found,) = Where.found
        return found

    assert asyncio.run(main(Where())) == threading.get_ident()
    assert asyncio.run(main(Derived())) != threading.get_ident()
    with pytest.raises(InvalidPlugin, match="loop 'mine' of plugin 'broken' is unknown"):
        type("Broken", (Plugin,), {"loop": "mine"})


class Remembering(Plugin):
    """A plugin that uses its session's services in its hooks."""

    heard: ClassVar[list[Any]] = []

    @hook
    async def before_turn(self, ctx: Any) -> None:
        await self.session.storage.put("", "key", b"value")
        self.heard.append(await self.session.storage.get("", "key"))
        self.heard.append(type(await ctx.host.snapshot_current()).__name__)
        self.heard.append(await ctx.complete([]))

    @hook
    async def after_tool_call(self, ctx: Any) -> None:
        part = ctx.attachments.keep(b"data", media_type="text/plain")
        self.heard.append(part.size)


def test_a_hook_awaits_the_runtimes_services_on_its_own_loop(memory: Place) -> None:
    """Ours: the services of a context work on whichever loop the hook runs."""
    Remembering.heard.clear()

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(ScriptedModel(["thought", *SCRIPT]), plugins=[Remembering()], tools=[look])
            session = await runtime.session("a", agent=agent)
            assert (await session.turn("go")).output == "end"

    asyncio.run(main())
    assert Remembering.heard == [b"value", "SessionSnapshot", "thought", 4]


class BlockingSnapshot(Plugin):
    """A plugin that blocks in `snapshot` once it is armed."""

    armed: ClassVar[bool] = False
    released: ClassVar[threading.Event] = threading.Event()
    entered: ClassVar[threading.Event] = threading.Event()

    def snapshot(self, writer: Any) -> Any:
        if self.armed:
            self.entered.set()
            self.released.wait(10)
        return super().snapshot(writer)

    @hook
    async def before_turn(self, ctx: Any) -> None:
        if ctx.input.content == "in a hook":
            self.state = 1

    @tool
    def remember(self) -> str:
        """Remember something."""
        self.state = 2
        return "done"

    @action
    async def note(self, ctx: Any) -> int:
        self.state = 3
        return 3


@pytest.fixture
def snapshots() -> Any:
    BlockingSnapshot.armed = True
    BlockingSnapshot.released, BlockingSnapshot.entered = threading.Event(), threading.Event()
    yield BlockingSnapshot
    BlockingSnapshot.released.set()
    BlockingSnapshot.armed = False


@pytest.mark.parametrize("where", ["in a hook", "in a tool", "in an action", "in a fork", "for a child"])
def test_a_plugin_that_blocks_in_snapshot_stalls_no_other_session(
    memory: Place, snapshots: Any, where: str
) -> None:
    """Bug: `snapshot` was called on the runtime's loop."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            call = {"tool_calls": [{"name": "remember", "arguments": {}}]}
            script: list[Any] = [call, "end"] if where == "in a tool" else ["end"] * 2
            agent = Agent(ScriptedModel(script), plugins=[BlockingSnapshot()])
            session = await runtime.session("a", agent=agent)
            other = await runtime.session("b", agent=Agent(ScriptedModel(["fine"])))
            if where == "in a fork":
                snapshots.armed = False
                await session.turn("in a hook")
                snapshots.armed = True
            works: dict[str, Callable[[], Any]] = {
                "in a hook": lambda: session.turn("in a hook").settled(),
                "in a tool": lambda: session.turn("go").settled(),
                "in an action": lambda: session.plugins.invoke("blocking-snapshot.note"),
                "in a fork": lambda: runtime.fork("a", "c"),
                "for a child": lambda: runtime.host("a").create_session(
                    SessionCreateRequest(session_id="c", plugins="inherited")
                ),
            }
            doing = asyncio.ensure_future(works[where]())
            assert await asyncio.to_thread(snapshots.entered.wait, 10)
            assert (await other.turn("hi")).output == "fine"
            assert not snapshots.released.is_set()
            assert not doing.done()
            snapshots.released.set()
            await doing

    asyncio.run(main())


@pytest.mark.slow
def test_a_turn_whose_plugin_never_returns_a_snapshot_ends_at_its_limit(
    memory: Place, snapshots: Any
) -> None:
    """Ours: the turn stops as with any state that cannot be stored."""

    async def main() -> None:
        async with memory.runtime(hook_timeout_s=TIMEOUT_S) as runtime:
            agent = Agent(
                ScriptedModel([{"tool_calls": [{"name": "remember", "arguments": {}}]}, "end"]),
                plugins=[BlockingSnapshot()],
            )
            session = await runtime.session("a", agent=agent)
            with pytest.raises(TurnStopped, match=r"plugin 'blocking-snapshot'.*it did not answer within"):
                await session.turn("go")

    asyncio.run(main())
