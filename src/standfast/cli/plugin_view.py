"""What `standfast plugins` finds out about plugins, and how a person sees it.

Rule: looking at a plugin runs its own code, as far as an agent would run it before the first turn; nothing is
kept of it.
"""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from typing import Any

import msgspec

from standfast.cli.output import console, visible
from standfast.cli.report import facts_table, plain_table
from standfast.errors import ErrorObject, InvalidPlugin, PluginFailed, StandfastError
from standfast.model.capability import Capability
from standfast.plugins.actions import PluginActionDef
from standfast.plugins.contexts import PluginExtensions
from standfast.plugins.discovery import FoundPlugin, require_plugin
from standfast.plugins.hook import HOOKS, HookKind
from standfast.plugins.plugin import Plugin, PluginFactory, PluginSessionContext, SessionPlugin, as_factory
from standfast.plugins.registrar import Contributions, PluginRegistrar, collect_triggers
from standfast.plugins.running import described
from standfast.plugins.triggers import TriggerEvent
from standfast.tools.docstrings import read_docstring
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.stubs import stub_of


class ListedPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. With an `error` it cannot be used."""

    name: str
    package: str
    version: str
    target: str
    summary: str = ""
    error: ErrorObject | None = None


class PluginOption(msgspec.Struct, frozen=True, kw_only=True):
    """An argument of a plugin's constructor. `default` is None for one that has to be given."""

    name: str
    type: str
    default: str | None
    description: str


class ShownHook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook that a plugin has."""

    name: str
    order: str
    on_failure: str
    priority: int = 0


class ShownTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that a plugin has: as Python, and its contract."""

    signature: str
    contract: Capability


class ShownPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plugin brings. `version` is that of its state, `package_version` its package's."""

    id: str
    version: str
    target: str
    package: str | None
    package_version: str | None
    summary: str
    description: str
    options: list[PluginOption]
    hooks: list[ShownHook]
    slots: list[str]
    tools: list[ShownTool]
    actions: list[PluginActionDef]
    triggers: list[TriggerEvent]


# Finding out


def listed(found: FoundPlugin) -> ListedPlugin:
    """A plugin with its summary, or with what keeps it from being used."""
    summary, error = "", None
    try:
        require_plugin(found.name)
        summary = str(getattr(found.load(), "summary", ""))
    except StandfastError as problem:
        error = problem.error_object()
    return ListedPlugin(
        name=found.name,
        package=found.package,
        version=found.package_version,
        target=found.target,
        summary=summary,
        error=error,
    )


def look(name: str) -> ShownPlugin:
    """A plugin by its name, or by where it is: `module:Class`."""
    found = None if ":" in name else require_plugin(name)
    factory = found.load() if found is not None else as_factory(_imported(name))
    plugin, brought = _registered(factory)
    return ShownPlugin(
        id=plugin.id,
        version=plugin.version,
        target=name if found is None else found.target,
        package=None if found is None else found.package,
        package_version=None if found is None else found.package_version,
        summary=str(getattr(plugin, "summary", "")),
        description=read_docstring(type(plugin)).description if type(plugin).__doc__ else "",
        options=_options(factory),
        hooks=[
            ShownHook(
                name=kind.name, order=kind.order, on_failure=kind.on_failure, priority=registered.priority
            )
            for kind in HOOKS.values()
            for registered in brought.hooks[kind.name]
        ],
        slots=list(brought.slots),
        tools=[
            ShownTool(signature=_signature(tool), contract=tool.capability)
            for tool in brought.tools.get(plugin.id, [])
        ],
        actions=[made.definition for made in brought.actions.values()],
        triggers=list(brought.triggers.events.values()),
    )


def _imported(reference: str) -> object:
    module, _, path = reference.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise InvalidPlugin(
            f"{reference} cannot be loaded: {described(error)}",
            hint="write module:Class; the module is looked for in this directory too",
        ) from error
    return found


def _registered(factory: PluginFactory) -> tuple[SessionPlugin, Contributions]:
    """The plugin as a session would have it."""
    ctx = PluginSessionContext(session_id="look", extensions=PluginExtensions(), shelf=_NoShelf())
    brought = Contributions()
    try:
        plugin = factory.build(ctx)
        plugin.register(PluginRegistrar(plugin.id, brought))
    except (StandfastError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginFailed(factory.id, "register", described(error)) from error
    brought.sort()
    collect_triggers(brought)
    return plugin, brought


class _NoShelf:
    """Stands for the shelf of a plugin that is only looked at."""

    async def put(self, scope: str, key: str, body: bytes | None) -> None:
        """Nothing is kept."""

    async def get(self, scope: str, key: str) -> bytes | None:
        return None

    async def list(self, scope: str) -> list[tuple[str, bytes]]:
        return []


def _options(factory: PluginFactory) -> list[PluginOption]:
    if not isinstance(factory, Plugin):
        return []
    words = read_docstring(type(factory)).parameters
    return [
        PluginOption(
            name=name,
            type="" if parameter.annotation is parameter.empty else _type_text(parameter.annotation),
            default=None if parameter.default is parameter.empty else repr(parameter.default),
            description=words.get(name, ""),
        )
        for name, parameter in inspect.signature(type(factory)).parameters.items()
    ]


def _signature(tool: RegisteredTool) -> str:
    return stub_of(tool).removeprefix("def ").removesuffix(": ...")


def _type_text(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


# Showing


def show_list(plugins: list[ListedPlugin]) -> None:
    from rich.text import Text

    table = plain_table("plugin", "package", "version", "")
    table.columns[0].no_wrap = True
    for one in plugins:
        words = Text(visible(one.summary))
        if one.error is not None:
            words = Text(f"broken: {visible(one.error.message)}", "red")
        table.add_row(one.name, one.package, one.version, words)
    console().print(table)


def show_hooks(hooks: list[HookKind]) -> None:
    from rich.text import Text

    shown = console()
    for kind in hooks:
        define = "def" if kind.plain else "async def"
        shown.print(f"{define} {kind.name}({', '.join(('self', *kind.takes))})", soft_wrap=True)
        shown.print(f"    answers with {kind.answers}", soft_wrap=True)
        shown.print(Text(f"    asked {kind.order}; if it fails, {_meaning(kind)}", "dim"), soft_wrap=True)


def _meaning(kind: HookKind) -> str:
    return "nothing happens but a log entry" if kind.on_failure == "never fatal" else kind.on_failure


def show_plugin(plugin: ShownPlugin) -> None:
    where = "" if plugin.package is None else f" of {plugin.package} {plugin.package_version}"
    facts = [("plugin", plugin.id), ("version", plugin.version), ("from", f"{plugin.target}{where}")]
    shown = console()
    shown.print(facts_table(facts))
    for text in dict.fromkeys((plugin.summary, plugin.description)):
        if text:
            shown.print(f"\n{visible(text)}")
    for title, table in _tables(plugin):
        if table.row_count:
            shown.print(f"\n{title}")
            shown.print(table)


def _tables(plugin: ShownPlugin) -> list[tuple[str, Any]]:
    return [
        ("Options", _options_table(plugin.options)),
        ("Hooks", _hooks_table(plugin.hooks)),
        ("Exclusive slots", _names_table(plugin.slots)),
        ("Tools", _tools_table(plugin.tools)),
        ("Actions", _actions_table(plugin.actions)),
        ("Triggers", _names_table([event.name for event in plugin.triggers])),
    ]


def _options_table(options: list[PluginOption]) -> Any:
    table = plain_table("option", "type", "default", "")
    for option in options:
        default = "required" if option.default is None else option.default
        table.add_row(option.name, option.type, default, option.description)
    return table


def _hooks_table(hooks: list[ShownHook]) -> Any:
    table = plain_table("hook", "asked", "if it fails")
    for hook in hooks:
        asked = f"{hook.order} ({hook.priority})" if hook.order == "by priority" else hook.order
        table.add_row(hook.name, asked, hook.on_failure)
    return table


def _tools_table(tools: list[ShownTool]) -> Any:
    table = plain_table("tool", "side effect", "approval", "idempotent")
    for tool in tools:
        policy = tool.contract.approval_policy
        approval = policy if isinstance(policy, str) else f"auto: {policy.auto.rule}"
        idempotent = "yes" if tool.contract.idempotent else "no"
        table.add_row(tool.signature, tool.contract.side_effect, approval, idempotent)
    return table


def _actions_table(actions: list[PluginActionDef]) -> Any:
    table = plain_table("action", "kind", "")
    for action in actions:
        table.add_row(action.name, action.kind, action.description.partition("\n")[0])
    return table


def _names_table(names: list[str]) -> Any:
    table = plain_table("")
    table.show_header = False
    for name in names:
        table.add_row(name)
    return table
