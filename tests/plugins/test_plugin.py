"""Plugins: a template, its copies, its state, and its id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plugin_bench import NoStorage, session_of
from stand_ins import Place

from standfast import Agent, tool
from standfast.errors import InvalidArgument, InvalidPlugin, PluginStateLost
from standfast.model.plugin_options import PluginOptions
from standfast.model.plugin_state import PluginSnapshotMeta
from standfast.plugins.actions import action
from standfast.plugins.contexts import PluginExtensions
from standfast.plugins.hook import hook
from standfast.plugins.plugin import (
    Plugin,
    PluginFactory,
    PluginSessionContext,
    SessionPlugin,
    as_factory,
    check_plugin_id,
)
from standfast.plugins.snapshot import NO_ARTIFACTS, SnapshotWriter


def context(options: PluginOptions | None = None) -> PluginSessionContext:
    return PluginSessionContext(
        session_id="s",
        extensions=PluginExtensions(),
        storage=NoStorage(),
        options=options or PluginOptions.empty(),
    )


class Counter(Plugin):
    """A plugin that counts."""

    def __init__(self, step: int = 1, names: list[str] | None = None) -> None:
        self.step = step
        self.names = names or []


# Ids


@pytest.mark.parametrize(
    ("name", "plugin_id"),
    [
        ("Greeter", "greeter"),
        ("ToolOutputBudget", "tool-output-budget"),
        ("HTTPGuard", "http-guard"),
        ("Guard2", "guard2"),
        ("_Hidden", "hidden"),
    ],
)
def test_a_plugin_without_an_id_is_named_after_its_class(name: str, plugin_id: str) -> None:
    """Ours: a plugin needs no more than a class with hooks."""
    assert type(name, (Plugin,), {}).id == plugin_id  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "bad", ["", "Big", "two words", "1st", "-x", "ünder", "x" * 65, "a/b", "a\n", 3, None]
)
def test_an_invalid_id_is_refused_when_the_class_is_defined(bad: Any) -> None:
    """Ours: ids are stored and shown, so they must be valid from the start."""
    with pytest.raises(InvalidPlugin, match="is not a plugin id"):
        type("Odd", (Plugin,), {"id": bad})
    with pytest.raises(InvalidPlugin):
        check_plugin_id(bad)


@pytest.mark.parametrize("good", ["a", "a.b", "a-b_c.9", "x" * 64])
def test_a_valid_id_is_unchanged(good: str) -> None:
    """Ours: a valid id is not normalised."""
    assert check_plugin_id(good) == good


# Templates and copies


def test_a_plugin_is_its_own_factory_and_session_plugin() -> None:
    """Seed: a factory makes a session plugin for each session."""
    assert isinstance(Counter(), PluginFactory)
    assert isinstance(Counter().build(context()), SessionPlugin)


def test_sessions_share_no_state_through_a_plugin() -> None:
    """Ours: a plugin passed to an agent is a template; each session gets a deep copy."""
    pattern = Counter(names=["a"])
    one, other = pattern.build(context()), pattern.build(context())
    one.names.append("b")
    one.state = {"n": 1}
    assert pattern.names == other.names == ["a"]
    assert (pattern.state, other.state) == (None, None)
    assert one.session is not other.session
    assert not hasattr(pattern, "session")


@pytest.mark.parametrize("given", [Counter, Counter(), Counter(step=2)], ids=["class", "pattern", "options"])
def test_a_plugin_may_be_given_as_a_class_or_an_instance(given: object) -> None:
    """Ours: both forms give a factory with the plugin's id."""
    assert as_factory(given).id == "counter"


def test_a_class_that_needs_options_is_refused_with_a_hint() -> None:
    """Ours: the hint says what to do."""

    class Needy(Plugin):
        def __init__(self, key: str) -> None:
            self.key = key

    with pytest.raises(InvalidPlugin) as caught:
        as_factory(Needy)
    assert "with its options" in str(caught.value.hint)


@pytest.mark.parametrize("nonsense", [None, 3, object(), len, int, {"id": "x"}])
def test_an_object_that_is_not_a_plugin_is_refused(nonsense: object) -> None:
    """Ours: the error is raised when the agent is created."""
    with pytest.raises(InvalidPlugin, match="is not a plugin"):
        Agent("scripted:x", plugins=[nonsense])


@pytest.mark.parametrize("plugins", ["counter", 3, None])
def test_plugins_must_be_a_list(plugins: Any) -> None:
    """Ours: a string must not be read as a list of characters."""
    with pytest.raises(InvalidArgument, match="plugins= takes a list"):
        Agent("scripted:x", plugins=plugins)


def test_a_factory_with_an_invalid_id_is_refused() -> None:
    """Ours: custom factories are validated like classes."""

    class Factory:
        id = "Not An Id"

        def build(self, ctx: PluginSessionContext) -> Any: ...

    with pytest.raises(InvalidPlugin, match="'Not An Id' is not a plugin id"):
        as_factory(Factory())


# Members


def test_decorated_methods_are_registered_in_the_order_of_their_definition() -> None:
    """Seed: a class with decorated methods is enough."""

    class Base(Plugin):
        @hook("before_turn")
        async def second_name(self, ctx: Any) -> None: ...

    class Whole(Base):
        @property
        def broken(self) -> int:
            raise AssertionError("no code reads this property")

        @hook
        async def before_turn(self, ctx: Any) -> None: ...

        @tool
        async def look(self) -> str:
            """Look."""
            return "seen"

        @action
        async def status(self, ctx: Any) -> str:
            return "well"

    contributions = session_of(Whole()).contributions
    names = [one.function.__name__ for one in contributions.hooks["before_turn"]]
    assert names == ["second_name", "before_turn"]
    assert [one.name for one in contributions.tools["whole"]] == ["look"]
    assert list(contributions.actions) == ["whole.status"]


def test_a_subclass_may_override_a_hook() -> None:
    """Ours: hooks follow Python's inheritance."""
    heard: list[str] = []

    class Base(Plugin):
        @hook
        async def before_turn(self, ctx: Any) -> None:
            heard.append("base")

    class Derived(Base):
        @hook
        async def before_turn(self, ctx: Any) -> None:
            heard.append("derived")

    [made] = session_of(Derived()).contributions.hooks["before_turn"]
    asyncio.run(made.function(None))
    assert heard == ["derived"]


# State


def test_assigning_or_touching_the_state_raises_its_revision() -> None:
    """Seed: the revision increases whenever the state changes."""
    plugin = Counter()
    assert (plugin.state, plugin.revision) == (None, 0)
    plugin.state = {"n": []}
    plugin.state["n"].append(1)
    assert plugin.revision == 1
    plugin.touch()
    assert plugin.revision == 2


def test_state_is_restored_with_its_revision() -> None:
    """Seed: a snapshot restores the state and the revision."""
    plugin = Counter()
    plugin.state = {"n": 3}
    meta = plugin.snapshot(SnapshotWriter())
    assert meta == PluginSnapshotMeta(plugin_id="counter", plugin_version="1", revision=1, state={"n": 3})
    other = Counter()
    other.restore(meta, NO_ARTIFACTS)
    assert (other.state, other.revision) == ({"n": 3}, 1)


def test_restoring_an_empty_entry_changes_nothing() -> None:
    """Seed: no entry in the snapshot means restore with state None."""
    plugin = Counter()
    plugin.restore(PluginSnapshotMeta(plugin_id="counter", plugin_version="1", revision=0), NO_ARTIFACTS)
    assert (plugin.state, plugin.revision) == (None, 0)


def test_state_of_another_version_is_refused_unless_it_can_be_migrated() -> None:
    """Seed: state of a newer version is refused."""

    class Newer(Counter):
        id = "counter"
        version = "2"

        def migrate(self, state: Any, version: str) -> Any:
            return {"was": version, **state}

    old = PluginSnapshotMeta(plugin_id="counter", plugin_version="1", revision=4, state={"n": 3})
    migrated = Newer()
    migrated.restore(old, NO_ARTIFACTS)
    assert migrated.state == {"was": "1", "n": 3}
    newer = PluginSnapshotMeta(plugin_id="counter", plugin_version="2", revision=4, state={})
    with pytest.raises(
        PluginStateLost, match=r"'counter'.*written by version 2, this is version 1"
    ) as caught:
        Counter().restore(newer, NO_ARTIFACTS)
    assert "migrate" in str(caught.value.hint)


# Options


def test_options_set_attributes() -> None:
    """Seed: options are keyed by plugin id and applied at every open."""
    made = Counter().build(context(PluginOptions.typed("counter", {"step": 5})))
    assert made.step == 5
    assert Counter().build(context(PluginOptions.typed("other", {"step": 5}))).step == 1


@pytest.mark.parametrize("options", [{"stp": 1}, {"session": 1}, {"_state": 1}, [1], "step", 3])
def test_invalid_options_are_refused_with_the_plugins_name(options: Any) -> None:
    """Ours: a misspelt option must not be ignored."""
    with pytest.raises(InvalidArgument, match="plugin 'counter'"):
        Counter().build(context(PluginOptions(plugins={"counter": options})))


def test_a_plugin_may_parse_its_options_itself() -> None:
    """Ours: options are opaque to everything but the plugin."""

    class Own(Plugin):
        level = 0

        def configure(self, options: Any) -> None:
            self.level = options["level"] * 2

    assert Own().build(context(PluginOptions.typed("own", {"level": 2}))).level == 4


def test_options_apply_to_a_session_and_are_validated_when_it_is_opened(memory: Place) -> None:
    """Seed: options are applied whenever a session is opened."""

    class Sayer(Plugin):
        def __init__(self, words: str = "Be kind.") -> None:
            self.words = words

        @hook
        async def prompt_contributor(self, ctx: Any) -> str:
            return self.words

    async def main() -> None:
        from plugin_bench import Actor

        model = Actor()
        agent = Agent(model, plugins=[Sayer()])
        async with memory.runtime() as runtime:
            await (await runtime.session("a", agent=agent)).turn("go")
            other = await runtime.session("b", agent=agent, options={"sayer": {"words": "Be brief."}})
            await other.turn("go")
            with pytest.raises(InvalidArgument, match="plugin 'sayer' has no option 'volume'"):
                await runtime.session("c", agent=agent, options={"sayer": {"volume": 11}})
            good = await runtime.session("c", agent=agent, options={"sayer": {"words": "Be quick."}})
            await good.turn("go")
        assert [one.instructions for one in model.requests] == ["Be kind.", "Be brief.", "Be quick."]

    asyncio.run(main())


def test_a_plugins_repr_shows_its_id() -> None:
    """Ours: error messages show plugins by their id."""
    assert repr(Counter()) == "<plugin counter>"
