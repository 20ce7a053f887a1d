"""Registration and validation of plugins' contributions. Errors name the plugin, or both that conflict."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from standfast.errors import InvalidPlugin, PluginConflict
from standfast.plugins.actions import ActionMark, RegisteredAction, make_action
from standfast.plugins.answers import read_triggers
from standfast.plugins.contexts import TriggerEvent, TriggerEventCatalog
from standfast.plugins.directives import PluginOwned
from standfast.plugins.hook import HOOKS, LIFECYCLE, HookKind, require_kind
from standfast.plugins.running import AT_HOME, BuildStep, HookRunner, PluginPlace, RegisteredHook
from standfast.tools.decorator import as_registered
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolProvider

if TYPE_CHECKING:
    from standfast.plugins.executor_defaults import ExecutesCode
    from standfast.plugins.protocol import (
        AssistantProseProjectorPlugin,
        ProtocolDriverPlugin,
        ProtocolSessionPlugin,
    )

Function = Callable[..., Any]


_NO_HOOKS: Final[dict[str, list[RegisteredHook]]] = {name: [] for name in HOOKS}
"""The hook table of a session whose plugins have no hooks."""
_BY_PRIORITY: Final = [name for name, kind in HOOKS.items() if kind.order == "by priority"]


class Contributions(msgspec.Struct):
    """All contributions of a session's plugins."""

    hooks: dict[str, list[RegisteredHook]] = msgspec.field(default_factory=lambda: _NO_HOOKS)
    slots: dict[str, PluginOwned[Any]] = msgspec.field(default_factory=dict)
    tools: dict[str, list[RegisteredTool]] = msgspec.field(default_factory=dict)
    providers: list[tuple[str, ToolProvider]] = msgspec.field(default_factory=list)
    actions: dict[str, RegisteredAction] = msgspec.field(default_factory=dict)
    triggers: TriggerEventCatalog = msgspec.field(default_factory=TriggerEventCatalog)
    places: dict[str, PluginPlace] = msgspec.field(default_factory=dict)
    """Where the code of each plugin runs; by default on the runtime's loop."""

    def hook_of(self, plugin_id: str, kind: str, function: Function, priority: int = 0) -> RegisteredHook:
        """Return a hook that calls *function* where the plugin's code runs."""
        return RegisteredHook(plugin_id, kind, function, priority, self.places.get(plugin_id, AT_HOME))

    def protocol_hook(self, method: str) -> RegisteredHook:
        """Return a method of the protocol's session plugin as a hook."""
        owned = self.slots["protocol_session"]
        return self.hook_of(owned.plugin_id, method, getattr(owned.value, method))

    def owner_of(self, slot: str) -> str:
        """Return the id of the plugin that fills a slot; empty if no plugin does."""
        owned = self.slots.get(slot)
        return "" if owned is None else owned.plugin_id

    def sort(self) -> None:
        """Sort the hooks that the table orders by priority."""
        for name in () if self.hooks is _NO_HOOKS else _BY_PRIORITY:
            self.hooks[name].sort(key=lambda hook: -hook.priority)

    def add_hook(self, plugin_id: str, name: str, function: Function, priority: int = 0) -> None:
        kind = require_kind(name)
        raw: Any = getattr(function, "__func__", function)
        if getattr(raw, "__standfast_fits__", None) != name:  # every session registers the same hooks
            _check_signature(plugin_id, kind, function)
            with contextlib.suppress(AttributeError):
                raw.__standfast_fits__ = name
        if self.hooks is _NO_HOOKS:
            self.hooks = {name: [] for name in HOOKS}
        self.hooks[name].append(self.hook_of(plugin_id, name, function, priority))

    def fill_slot(self, plugin_id: str, slot: str, value: Any) -> None:
        taken = self.slots.get(slot)
        if taken is not None:
            raise PluginConflict(f"the slot {slot}", taken.plugin_id, plugin_id, hint="use only one of them")
        self.slots[slot] = PluginOwned(plugin_id, value)


class _Namespace:
    def __init__(self, plugin_id: str, contributions: Contributions) -> None:
        self._plugin_id = plugin_id
        self._all = contributions


N = TypeVar("N", bound=_Namespace)


def _registers(kind: str) -> Callable[[Any, Function], None]:
    """Return a method of a namespace that registers a function as a hook of *kind*."""

    def register(self: _Namespace, function: Function) -> None:
        self._all.add_hook(self._plugin_id, kind, function)

    return register


def _registers_by_priority(kind: str) -> Callable[..., None]:
    def register(self: _Namespace, function: Function, *, priority: int = 0) -> None:
        self._all.add_hook(self._plugin_id, kind, function, priority)

    return register


class ToolContributions(_Namespace):
    """Tools that the plugin adds, under the plugin's id."""

    def add(self, *tools: object) -> None:
        mine = self._all.tools.setdefault(self._plugin_id, [])
        mine.extend(as_registered(tool) for tool in tools)

    def provider(self, name: str, provider: ToolProvider) -> None:
        """Add a source that lists its tools and resolves them when they are needed."""
        self._all.providers.append((f"plugin:{self._plugin_id}/{name}", provider))


class ToolCatalogContributions(_Namespace):
    """The tools that the model sees."""

    contributor = _registers("tool_catalog")


class PromptContributions(_Namespace):
    """Pieces of the system prompt."""

    contributor = _registers("prompt_contributor")


class TurnContributions(_Namespace):
    """Hooks before and after a turn."""

    before = _registers("before_turn")
    after = _registers("after_turn")


class ToolCallContributions(_Namespace):
    """Hooks before and after each call, and the projection of its result to the text that the model reads."""

    before = _registers("before_tool_call")
    after = _registers("after_tool_call")

    def project_result(self, function: Function) -> None:
        """Fill the slot `tool_result_projector`."""
        _require_async(self._plugin_id, "tool_result_projector", function)
        self._all.fill_slot(self._plugin_id, "tool_result_projector", function)


class CheckpointContributions(_Namespace):
    """Hooks after each round of calls, and before the answer is accepted."""

    at = _registers("checkpoint")


class OutputContributions(_Namespace):
    """Hooks on the model's reply, while it streams and when it is complete."""

    stream = _registers("assistant_stream")
    response = _registers("assistant_response")


class ContextContributions(_Namespace):
    """Transforms of the messages that the model sees."""

    transform = _registers_by_priority("context_transform")


class CompactionContributions(_Namespace):
    """Compactors, which replace a history that has become too long by a new frame."""

    compactor = _registers_by_priority("compactor")


class LifecycleContributions(_Namespace):
    """Observers of lifecycle events, whose return values are ignored."""

    def on(self, event: str, function: Function) -> None:
        if event not in LIFECYCLE:
            raise InvalidPlugin(
                f"{event!r} is not a lifecycle event", hint=f"they are {', '.join(LIFECYCLE)}"
            )
        self._all.add_hook(self._plugin_id, event, function)


class ConfigContributions(_Namespace):
    """Mutators of the session's settings."""

    mutator = _registers("session_config_mutator")


class ActionContributions(_Namespace):
    """Actions that callers may invoke by name."""

    def add(self, method: Any, mark: ActionMark | None = None) -> None:
        mark = mark or ActionMark(None, "query", "optional")
        _require_async(self._plugin_id, f"action {getattr(method, '__name__', method)!r}", method)
        made = make_action(self._plugin_id, method, mark)
        name = made.definition.name
        if (taken := self._all.actions.get(name)) is not None:
            raise PluginConflict(f"the action {name!r}", taken.definition.plugin_id, self._plugin_id)
        self._all.actions[name] = made


class TriggerContributions(_Namespace):
    """Trigger events, which can start turns of the session."""

    catalog = _registers("trigger_catalog")

    def add(self, *events: TriggerEvent) -> None:
        for event in events:
            self._all.triggers.add(self._plugin_id, event)


class ProtocolContributions(_Namespace):
    """The parts of a protocol. A session has exactly one protocol."""

    def session(self, plugin: ProtocolSessionPlugin) -> None:
        self._fill("protocol_session", plugin, "before_llm_call")

    def driver(self, plugin: ProtocolDriverPlugin) -> None:
        self._fill("protocol_driver", plugin, "build_preamble")

    def code_executor(self, plugin: ExecutesCode) -> None:
        """Fill the slot with an object that has at least `execute_code`; see `executor_defaults`."""
        from standfast.plugins.executor_defaults import completed, lacking_member  # few plugins need it

        self._check("code_executor", plugin, "execute_code")
        _require_async(self._plugin_id, "execute_code", plugin.execute_code)
        if lacking := lacking_member(plugin):
            raise InvalidPlugin(
                f"the code executor of plugin {self._plugin_id!r} has no method `{lacking}`",
                hint="an executor with state must define `execution_state_dirty`, snapshot and restore",
            )
        self._all.fill_slot(self._plugin_id, "code_executor", completed(plugin))

    def prose_projector(self, plugin: AssistantProseProjectorPlugin) -> None:
        self._fill("prose_projector", plugin, "project_assistant_prose")

    def _fill(self, slot: str, plugin: object, method: str) -> None:
        self._check(slot, plugin, method)
        self._all.fill_slot(self._plugin_id, slot, plugin)

    def _check(self, slot: str, plugin: object, method: str) -> None:
        if not callable(getattr(plugin, method, None)):
            raise InvalidPlugin(
                f"plugin {self._plugin_id!r} fills the slot {slot} with a {type(plugin).__name__}",
                hint=f"pass an object that has a method `{method}`",
            )


class _Part(Generic[N]):
    """An attribute of the registrar that is made when a plugin first uses it: most plugins use one or two."""

    def __init__(self, kind: type[N]) -> None:
        self._kind = kind

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, registrar: PluginRegistrar, owner: type) -> N:
        made = self._kind(registrar.plugin_id, registrar._contributions)
        registrar.__dict__[self._name] = made
        return made


class PluginRegistrar:
    """The argument of a plugin's `register`."""

    tools = _Part(ToolContributions)
    tool_catalog = _Part(ToolCatalogContributions)
    prompt = _Part(PromptContributions)
    turn = _Part(TurnContributions)
    tool_calls = _Part(ToolCallContributions)
    checkpoints = _Part(CheckpointContributions)
    output = _Part(OutputContributions)
    context = _Part(ContextContributions)
    compaction = _Part(CompactionContributions)
    lifecycle = _Part(LifecycleContributions)
    config = _Part(ConfigContributions)
    actions = _Part(ActionContributions)
    triggers = _Part(TriggerContributions)
    protocol = _Part(ProtocolContributions)

    def __init__(self, plugin_id: str, contributions: Contributions) -> None:
        self.plugin_id = plugin_id
        self._contributions = contributions

    def hook(self, kind: str, function: Function, *, priority: int = 0) -> None:
        """Register a hook by its name in the table."""
        self._contributions.add_hook(self.plugin_id, kind, function, priority)


def collect_triggers(
    contributions: Contributions, runner: HookRunner | None = None, step: BuildStep | None = None
) -> None:
    """Collect the triggers of plugins that have a `trigger_catalog` hook.

    *step* records the current plugin.
    """
    runner, step = runner or HookRunner(), step or BuildStep()
    for hook in contributions.hooks["trigger_catalog"]:
        step.begin(hook.plugin_id, hook.kind)
        for event in read_triggers(hook, runner.call_plain(hook)):
            contributions.triggers.add(hook.plugin_id, event)


def _check_signature(plugin_id: str, kind: HookKind, function: Function) -> None:
    if not callable(function):
        raise InvalidPlugin(f"the hook {kind.name} of plugin {plugin_id!r} is not a function")
    if not kind.plain:
        _require_async(plugin_id, f"the hook {kind.name}", function)
    elif inspect.iscoroutinefunction(function):
        raise InvalidPlugin(
            f"the hook {kind.name} of plugin {plugin_id!r} is `async def`",
            hint="use a plain `def`, because its caller cannot await it",
        )
    try:
        inspect.signature(function).bind(*kind.takes)
    except (TypeError, ValueError):
        takes = ", ".join(("self", *kind.takes))
        raise InvalidPlugin(
            f"the hook {kind.name} of plugin {plugin_id!r} must have the parameters ({takes})",
            hint=f"see `standfast plugins list --hooks`; it returns {kind.answers}",
        ) from None


def _require_async(plugin_id: str, what: str, function: Any) -> None:
    if not inspect.iscoroutinefunction(function):
        raise InvalidPlugin(
            f"{what} of plugin {plugin_id!r} is not `async def`", hint="write it as a coroutine function"
        )
