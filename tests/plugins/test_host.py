"""Building the plugins of a session: the order, the checks, and the effects of a failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plugin_bench import Actor, host_of, session_of
from stand_ins import Place

from standfast import Agent
from standfast.errors import (
    InvalidPlugin,
    NotConfigured,
    PluginConflict,
    PluginFailed,
    SessionNotFound,
    StandfastError,
)
from standfast.model.capability import SessionToolAccess
from standfast.model.plugin_options import PluginOptions
from standfast.plugins.contexts import SubagentContext
from standfast.plugins.plugin import Plugin, PluginSessionContext
from standfast.plugins.registrar import PluginRegistrar
from standfast.plugins.session import FULL, PluginHost, SessionAuthority, SessionBuild
from standfast.tools.registry import ToolRegistry

STEPS: list[str] = []


class Stepper(Plugin):
    """A plugin that logs each step of its life cycle."""

    def build(self, ctx: PluginSessionContext) -> Any:
        STEPS.append(f"{self.id} build")
        return super().build(ctx)

    def register(self, registrar: PluginRegistrar) -> None:
        STEPS.append(f"{self.id} register")
        super().register(registrar)

    def session_ready(self, ctx: PluginSessionContext) -> None:
        STEPS.append(f"{self.id} session_ready")

    def restore(self, meta: Any, reader: Any) -> None:
        STEPS.append(f"{self.id} restore {meta.state}")


class Other(Stepper):
    """The same plugin under another name."""


def test_plugins_are_built_and_registered_in_order_then_made_ready_then_restored() -> None:
    """Seed: plugins are built and registered one by one, then made ready, then restored."""
    STEPS.clear()
    session_of(Stepper(), Other())
    assert STEPS == [
        "stepper build",
        "stepper register",
        "other build",
        "other register",
        "stepper session_ready",
        "other session_ready",
        "stepper restore None",
        "other restore None",
    ]


def test_a_plugin_is_given_the_context_of_its_session() -> None:
    """Seed: a plugin is built with the context of its session."""
    told: list[PluginSessionContext] = []

    class Asker(Plugin):
        def session_ready(self, ctx: PluginSessionContext) -> None:
            assert ctx is self.session
            told.append(ctx)

    subagent = SubagentContext(parent_session_id="p", depth=2, task="dig")
    authority = SessionAuthority(subagent=subagent, plugin_options=PluginOptions.typed("x", 1))
    session_of(Asker(), build={"parent_session_id": "p", "authority": authority})
    [ctx] = told
    assert (ctx.session_id, ctx.parent_session_id, ctx.subagent) == ("s", "p", subagent)
    assert ctx.options == PluginOptions(plugins={"x": 1})


def test_plugins_of_a_session_can_share_values() -> None:
    """Seed: plugins of a session share values through its extensions."""

    class Layer(Plugin):
        def session_ready(self, ctx: PluginSessionContext) -> None:
            ctx.extensions.put("table", "laid")

    class Finder(Plugin):
        def session_ready(self, ctx: PluginSessionContext) -> None:
            assert ctx.extensions.get("table") == "laid"
            assert ctx.extensions.get("chair", "none") == "none"

    assert session_of(Layer(), Finder()).extensions.get("table") == "laid"
    assert session_of(type("Empty", (Plugin,), {})()).extensions.get("table") is None


@pytest.mark.parametrize("step", ["build", "register", "session_ready", "restore"])
def test_an_error_while_a_plugin_is_built_names_it(step: str) -> None:
    """Ours: the error says which plugin and which step failed."""

    def broken(self: Any, *given: Any) -> Any:
        raise KeyError("lost")

    plugin = type("Broken", (Plugin,), {step: broken})()
    with pytest.raises(PluginFailed, match=f"plugin 'broken' failed in {step}: KeyError: 'lost'"):
        session_of(plugin)


@pytest.mark.parametrize("step", ["build", "register", "session_ready", "restore"])
def test_an_async_life_cycle_step_is_refused(step: str) -> None:
    """Bug: `async def register` registered nothing, without an error."""

    async def later(self: Any, *given: Any) -> Any: ...

    plugin = type("Eager", (Plugin,), {step: later})()
    with pytest.raises(PluginFailed, match=f"plugin 'eager' failed in {step}: .*its caller cannot await it"):
        session_of(plugin)


def test_a_framework_error_inside_a_plugin_names_it_too() -> None:
    """Bug: "hook 'x' does not exist" and "no key is set" did not name the plugin."""

    class Misspelt(Plugin):
        def register(self, registrar: PluginRegistrar) -> None:
            registrar.hook("before_trun", self.register)

    class Keyless(Plugin):
        def session_ready(self, ctx: PluginSessionContext) -> None:
            raise NotConfigured("no key is set", hint="set KEY")

    with pytest.raises(InvalidPlugin, match=r"plugin 'misspelt': hook .* does not exist") as misspelt:
        session_of(Misspelt())
    assert misspelt.value.hint == "did you mean before_turn?"
    with pytest.raises(PluginFailed, match="plugin 'keyless' failed in session_ready: no key") as keyless:
        session_of(Keyless())
    assert keyless.value.hint == "set KEY"


class Factory:
    """A factory that builds the given object."""

    id = "factory"

    def __init__(self, made: object) -> None:
        self.made = made

    def build(self, ctx: PluginSessionContext) -> Any:
        return self.made


@pytest.mark.parametrize("nonsense", [None, 3, object(), Plugin, "plugin"])
def test_a_factory_that_builds_an_invalid_object_is_named(nonsense: object) -> None:
    """Ours: a factory must build a session plugin."""
    with pytest.raises(StandfastError, match="'factory'"):
        session_of(Factory(nonsense))


def test_a_factory_must_build_a_plugin_with_its_own_id() -> None:
    """Ours: stored state belongs to the plugin with its id."""
    with pytest.raises(InvalidPlugin, match="'factory' built a plugin with the id 'stepper'"):
        session_of(Factory(Stepper()))


def test_two_plugins_with_the_same_id_are_a_conflict() -> None:
    """Ours: the error names both owners."""

    class Twin(Stepper):
        id = "stepper"

    with pytest.raises(PluginConflict, match="the id 'stepper'"):
        host_of(Stepper(), Twin())


def test_a_session_needs_a_protocol() -> None:
    """Seed: a plugin session must have a protocol session and a driver."""
    host = PluginHost([Stepper()], ToolRegistry(), storage_of=lambda _: None, report=lambda *_: None)
    with pytest.raises(InvalidPlugin, match="no plugin fills the slot protocol_session"):
        host.build_session(SessionBuild(session_id="s"))


@pytest.mark.parametrize("turns", [0, 1], ids=["new", "known"])
def test_a_failure_in_session_ready_fails_the_opening_of_the_session(place: Place, turns: int) -> None:
    """Bug: a failure in `session_ready` was reported only at the first turn."""

    class Unready(Plugin):
        def session_ready(self, ctx: PluginSessionContext) -> None:
            raise RuntimeError("no connection")

    async def main() -> None:
        well: Agent[Any, Any] = Agent(Actor(), name="a")
        async with place.runtime() as runtime:
            for _ in range(turns):
                await (await runtime.session("s", agent=well)).turn("go")
        async with place.runtime() as runtime:
            with pytest.raises(PluginFailed, match=r"'unready' failed in session_ready.*no connection"):
                await runtime.session("s", agent=Agent(Actor(), name="a", plugins=[Unready()]))
            assert not runtime._open.works_on("s")
            assert (await (await runtime.session("s", agent=well)).turn("go")).output == "done"

    asyncio.run(main())


def test_no_turn_is_stored_for_a_session_whose_plugins_cannot_be_built(memory: Place) -> None:
    """Ours: a plugin that cannot be built leaves no turn behind."""

    class Broken(Plugin):
        def register(self, registrar: PluginRegistrar) -> None:
            raise RuntimeError("boom")

    async def main() -> None:
        async with memory.runtime() as runtime:
            with pytest.raises(PluginFailed, match="'broken'"):
                await runtime.session("s", agent=Agent(Actor(), plugins=[Broken()]))
            assert await runtime.store.turns("s") == []
            well = await runtime.session("s", agent=Agent(Actor()))
            assert (await well.turn("go")).output == "done"

    asyncio.run(main())


def test_an_unknown_session_has_no_plugins(memory: Place) -> None:
    """Ours: a deleted session no longer exists for its plugins either."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(Actor(), plugins=[Stepper()]))
            await runtime.delete("s")
            with pytest.raises(SessionNotFound):
                await session.plugins.installed()

    asyncio.run(main())


def test_installed_lists_each_plugin_and_its_slots(memory: Place) -> None:
    """Ours: a host can list the plugins of a session."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(Actor(), plugins=[Stepper(), Other()]))
            found = await session.plugins.installed()
        assert [one.id for one in found] == ["standard", "stepper", "other"]
        assert found[0].slots == ("protocol_session", "protocol_driver")

    asyncio.run(main())


# Authority


def test_authority_derived_from_a_parent_is_never_wider() -> None:
    """Seed: a child gets authority and no more tools than its parent allows."""
    parent = SessionAuthority(tool_access=SessionToolAccess(tools=("a", "b"), hidden_tools=("b",)))
    everything = FULL.within(parent)
    assert everything.tool_access.select(["a", "b", "c"]) == ["a"]
    more = SessionAuthority(tool_access=SessionToolAccess(tools=("a", "c"))).within(parent)
    assert more.tool_access.select(["a", "b", "c"]) == ["a"]
    nothing = SessionAuthority(tool_access=SessionToolAccess(tools=("c",))).within(parent)
    assert nothing.tool_access.select(["a", "b", "c"]) == []
