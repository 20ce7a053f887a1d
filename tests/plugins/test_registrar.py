"""Registration: everything is validated, and the error names the plugin, or both in a conflict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from plugin_bench import label, session_of

from standfast import tool
from standfast.errors import InvalidPlugin, PluginConflict, StandfastError
from standfast.plugins.actions import action
from standfast.plugins.contexts import TriggerEvent
from standfast.plugins.hook import HOOKS, SLOTS, hook
from standfast.plugins.plugin import Plugin
from standfast.plugins.protocol import ProtocolSessionPlugin
from standfast.plugins.registrar import Contributions, PluginRegistrar, collect_triggers
from standfast.protocols.standard.plugin import StandardDriver
from standfast.tools.decorator import as_registered
from standfast.tools.registry import StaticTools


def registrar(plugin_id: str = "one") -> tuple[PluginRegistrar, Contributions]:
    contributions = Contributions()
    return PluginRegistrar(plugin_id, contributions), contributions


async def later(*given: Any) -> Any: ...


def at_once(*given: Any) -> Any: ...


def function_for(kind: str) -> Callable[..., Any]:
    return at_once if HOOKS[kind].plain else later


NAMESPACES: dict[str, Callable[[PluginRegistrar, Any], None]] = {
    "tool_catalog": lambda to, function: to.tool_catalog.contributor(function),
    "prompt_contributor": lambda to, function: to.prompt.contributor(function),
    "before_turn": lambda to, function: to.turn.before(function),
    "after_turn": lambda to, function: to.turn.after(function),
    "before_tool_call": lambda to, function: to.tool_calls.before(function),
    "after_tool_call": lambda to, function: to.tool_calls.after(function),
    "checkpoint": lambda to, function: to.checkpoints.at(function),
    "assistant_stream": lambda to, function: to.output.stream(function),
    "assistant_response": lambda to, function: to.output.response(function),
    "context_transform": lambda to, function: to.context.transform(function),
    "compactor": lambda to, function: to.compaction.compactor(function),
    "turn_finalized": lambda to, function: to.lifecycle.on("turn_finalized", function),
    "turn_persisted": lambda to, function: to.lifecycle.on("turn_persisted", function),
    "session_restored": lambda to, function: to.lifecycle.on("session_restored", function),
    "session_config_changed": lambda to, function: to.lifecycle.on("session_config_changed", function),
    "session_config_mutator": lambda to, function: to.config.mutator(function),
    "trigger_catalog": lambda to, function: to.triggers.catalog(function),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_every_hook_can_be_registered_through_a_namespace(kind: str) -> None:
    """Seed: one namespace per kind of contribution."""
    to, contributions = registrar()
    NAMESPACES[kind](to, function_for(kind))
    [made] = contributions.hooks[kind]
    assert (made.plugin_id, made.kind) == ("one", kind)


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_can_be_registered_by_name(kind: str) -> None:
    """Ours: a plugin can register hooks without the decorator."""
    to, contributions = registrar()
    to.hook(kind, function_for(kind), priority=3)
    assert contributions.hooks[kind][0].priority == 3


@pytest.mark.parametrize("kind", HOOKS)
def test_a_sync_function_for_an_async_hook_and_vice_versa_is_refused(kind: str) -> None:
    """Seed: registration checks whether a function is async."""
    to, _ = registrar()
    with pytest.raises(InvalidPlugin, match=f"the hook {kind} of plugin 'one' is"):
        to.hook(kind, later if HOOKS[kind].plain else at_once)


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_with_the_wrong_parameters_is_refused(kind: str) -> None:
    """Seed: registration checks signatures."""
    to, _ = registrar()

    async def later_wrong(*, only_named: int) -> None: ...

    def at_once_wrong(*, only_named: int) -> None: ...

    wrong = at_once_wrong if HOOKS[kind].plain else later_wrong
    with pytest.raises(InvalidPlugin, match=f"the hook {kind} of plugin 'one' must have the parameters"):
        to.hook(kind, wrong)


def test_a_hook_that_requires_too_many_parameters_is_refused() -> None:
    """Seed: registration checks signatures."""
    to, _ = registrar()

    async def before_turn(ctx: Any, more: Any) -> None: ...

    with pytest.raises(InvalidPlugin, match=r"must have the parameters \(self, TurnHookContext\)"):
        to.turn.before(before_turn)


def test_a_hook_may_have_extra_parameters_with_defaults() -> None:
    """Ours: only signatures that cannot be called are refused."""
    to, contributions = registrar()

    async def before_turn(ctx: Any, more: int = 1) -> None: ...

    to.turn.before(before_turn)
    assert len(contributions.hooks["before_turn"]) == 1


@pytest.mark.parametrize("nonsense", [None, 3, "before_turn"])
def test_a_hook_that_is_not_a_function_is_refused(nonsense: Any) -> None:
    """Ours: the error is raised when the session is built, not in the middle of a turn."""
    to, _ = registrar()
    with pytest.raises(InvalidPlugin, match="before_turn of plugin 'one' is not a function"):
        to.turn.before(nonsense)


def test_an_unknown_hook_is_refused_with_a_suggestion() -> None:
    """Seed: registration checks names."""
    to, _ = registrar()
    with pytest.raises(InvalidPlugin, match="hook 'before_tool' does not exist") as caught:
        to.hook("before_tool", later)
    assert caught.value.hint == "did you mean before_tool_call?"
    with pytest.raises(InvalidPlugin, match="'turn_done' is not a lifecycle event"):
        to.lifecycle.on("turn_done", later)


def test_a_hook_that_is_not_a_lifecycle_event_cannot_be_registered_as_one() -> None:
    """Ours: an observer must not be able to decide."""
    to, _ = registrar()
    with pytest.raises(InvalidPlugin, match="'before_turn' is not a lifecycle event"):
        to.lifecycle.on("before_turn", later)


# Slots


class Executor:
    async def execute_code(self, ctx: Any, request: Any) -> Any: ...


class Prose:
    def project_assistant_prose(self, text: str) -> str:
        return text


FILL: dict[str, Callable[[PluginRegistrar], None]] = {
    "protocol_session": lambda to: to.protocol.session(ProtocolSessionPlugin()),
    "protocol_driver": lambda to: to.protocol.driver(StandardDriver()),
    "code_executor": lambda to: to.protocol.code_executor(Executor()),
    "prose_projector": lambda to: to.protocol.prose_projector(Prose()),
    "tool_result_projector": lambda to: to.tool_calls.project_result(later),
}


@pytest.mark.parametrize("slot", SLOTS)
def test_a_slot_has_one_owner_and_the_error_names_both(slot: str) -> None:
    """Seed: a second owner of an exclusive slot is an error that names both."""
    contributions = Contributions()
    FILL[slot](PluginRegistrar("one", contributions))
    with pytest.raises(PluginConflict, match=f"the slot {slot} is claimed by plugin 'one' and by") as caught:
        FILL[slot](PluginRegistrar("other", contributions))
    assert (caught.value.owner, caught.value.other) == ("one", "other")
    assert contributions.slots[slot].plugin_id == "one"


@pytest.mark.parametrize("slot", SLOTS)
def test_a_session_with_two_owners_of_a_slot_is_not_built(slot: str) -> None:
    """Seed: slots are exclusive among the plugins of a host too."""

    class One(Plugin):
        def register(self, registrar: PluginRegistrar) -> None:
            FILL[slot](registrar)

    class Other(One):
        """The same plugin under another name."""

    with pytest.raises(PluginConflict) as caught:
        session_of(One(), Other())
    assert "one" in (caught.value.owner, caught.value.other)


def test_one_plugin_cannot_fill_a_slot_twice() -> None:
    """Ours: a slot has one owner, which fills it once."""
    to, _ = registrar()
    to.protocol.driver(StandardDriver())
    with pytest.raises(PluginConflict):
        to.protocol.driver(StandardDriver())


@pytest.mark.parametrize("nonsense", [None, object(), "text", StandardDriver], ids=label)
@pytest.mark.parametrize("fill", ["session", "code_executor", "prose_projector"])
def test_an_invalid_value_for_a_slot_is_refused(fill: str, nonsense: Any) -> None:
    """Bug: an invalid value in a slot broke the session without naming the plugin."""
    to, _ = registrar()
    with pytest.raises(InvalidPlugin, match="plugin 'one' fills the slot"):
        getattr(to.protocol, fill)(nonsense)


def test_a_result_projector_must_be_a_coroutine_function() -> None:
    """Ours: the one slot that is a function is validated like a hook."""
    to, _ = registrar()
    with pytest.raises(InvalidPlugin, match="tool_result_projector of plugin 'one' is not `async def`"):
        to.tool_calls.project_result(at_once)


# Names


def test_two_plugins_cannot_define_the_same_action() -> None:
    """Ours: the error names both owners."""

    class One(Plugin):
        @action(name="shared.act")
        async def act(self, ctx: Any) -> None: ...

    class Other(One):
        """The same plugin under another name."""

    with pytest.raises(PluginConflict, match=r"shared\.act' is claimed by plugin 'one' and by"):
        session_of(One(), Other())


def test_two_plugins_cannot_define_the_same_trigger() -> None:
    """Ours: the error names both owners."""

    class One(Plugin):
        @hook
        def trigger_catalog(self) -> list[TriggerEvent]:
            return [TriggerEvent(name="mail")]

    class Other(Plugin):
        def register(self, registrar: PluginRegistrar) -> None:
            registrar.triggers.add(TriggerEvent(name="mail"))

    with pytest.raises(PluginConflict) as caught:
        session_of(One(), Other())
    assert {caught.value.owner, caught.value.other} == {"one", "other"}


def test_triggers_are_listed_with_their_owners() -> None:
    """Seed: the trigger catalog knows the plugin of each trigger."""

    class One(Plugin):
        @hook
        def trigger_catalog(self) -> list[TriggerEvent]:
            return [TriggerEvent(name="mail", description="a mail came"), TriggerEvent(name="call")]

    triggers = session_of(One()).triggers
    assert triggers.events["mail"].description == "a mail came"
    assert triggers.owners == {"mail": "one", "call": "one"}


def test_triggers_can_be_collected_without_a_runner() -> None:
    """Ours: a caller that only lists triggers needs no deadline."""
    to, contributions = registrar()
    to.triggers.catalog(lambda: [TriggerEvent(name="mail")])
    collect_triggers(contributions)
    assert list(contributions.triggers.events) == ["mail"]


def test_two_plugins_cannot_define_the_same_tool() -> None:
    """Seed: an id or name owned by another source is a conflict that names both."""

    class One(Plugin):
        @tool
        async def look(self) -> str:
            """Look."""
            return "seen"

    class Other(One):
        """The same plugin under another name."""

    with pytest.raises(StandfastError, match="look") as caught:
        session_of(One(), Other())
    assert "plugin:one" in caught.value.message
    assert "plugin:other" in caught.value.message


def test_a_plugin_cannot_use_the_name_of_one_of_the_agents_tools() -> None:
    """Seed: registering a name twice is an error that names both owners."""

    class One(Plugin):
        @tool
        async def look(self) -> str:
            """Look."""
            return "seen"

    async def look() -> str:
        """Look."""
        return "seen"

    with pytest.raises(StandfastError, match="look") as caught:
        session_of(One(), tools=[look])
    assert "plugin:one" in caught.value.message


def test_a_plugin_registers_tools_and_sources_under_its_name() -> None:
    """Seed: plugins may register tools and sources of tools."""

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    @tool
    async def find() -> str:
        """Find."""
        return "found"

    class One(Plugin):
        def register(self, registrar: PluginRegistrar) -> None:
            registrar.tools.add(look)
            registrar.tools.provider("more", StaticTools([as_registered(find)]))

    manifests = session_of(One()).tool_registry.manifests()
    assert {one.name for one in manifests} == {"look", "find"}


def test_the_hooks_of_two_plugins_are_kept_in_plugin_order() -> None:
    """Ours: hooks run in the order of the plugins."""

    class One(Plugin):
        @hook
        async def before_turn(self, ctx: Any) -> None: ...

    class Other(One):
        """The same plugin under another name."""

    hooks = session_of(Other(), One()).contributions.hooks["before_turn"]
    assert [one.plugin_id for one in hooks] == ["other", "one"]
