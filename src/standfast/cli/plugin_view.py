"""Descriptions of plugins: their code runs as before an agent's first turn, and nothing is stored."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module

import msgspec

from standfast.cli.output import console, styled, visible
from standfast.cli.report import facts_table, plain_table
from standfast.cli.tools import approval_text
from standfast.errors import ErrorObject, InvalidPlugin, PluginFailed, StandfastError
from standfast.model.capability import Capability
from standfast.plugins.actions import PluginActionDef
from standfast.plugins.contexts import PluginExtensions, TriggerEvent
from standfast.plugins.discovery import FoundPlugin, require_plugin
from standfast.plugins.hook import HOOKS, HookKind
from standfast.plugins.plugin import Plugin, PluginFactory, PluginSessionContext, SessionPlugin, as_factory
from standfast.plugins.registrar import Contributions, PluginRegistrar, collect_triggers
from standfast.tools.docstrings import read_docstring
from standfast.tools.stubs import stub_of
from standfast.tools.tracebacks import described


class ListedPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin in the list. It cannot be used if it has an `error`."""

    name: str
    package: str
    version: str
    target: str
    summary: str = ""
    error: ErrorObject | None = None


class PluginOption(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of a plugin's constructor. `default` is None if it is required."""

    name: str
    type: str
    default: str | None
    description: str


class ShownHook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook that a plugin implements."""

    name: str
    order: str
    on_failure: str
    priority: int = 0


class ShownTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a plugin: its Python signature and its contract."""

    signature: str
    contract: Capability


class ShownPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plugin adds. `version` is that of its state, `package_version` its package's."""

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


def listed(found: FoundPlugin) -> ListedPlugin:
    """Describe a plugin by its summary, or by the error that prevents its use."""
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


def load_plugin(name: str) -> ShownPlugin:
    """Load a plugin by its name, or by its location `module:Class`."""
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
            ShownTool(
                signature=stub_of(tool).removeprefix("def ").removesuffix(": ..."), contract=tool.capability
            )
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
            hint="write module:Class; the module may be in the current directory",
        ) from error
    return found


def _registered(factory: PluginFactory) -> tuple[SessionPlugin, Contributions]:
    """Build and register the plugin as a session would."""
    ctx = PluginSessionContext(session_id="look", extensions=PluginExtensions(), storage=_NoStorage())
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


class _NoStorage:
    """The storage given to a plugin that is only inspected; it stores nothing."""

    async def put(self, scope: str, key: str, body: bytes | None) -> None:
        """Drop *body*."""

    async def get(self, scope: str, key: str) -> bytes | None:
        return None

    async def list(self, scope: str) -> list[tuple[str, bytes]]:
        return []


def _options(factory: PluginFactory) -> list[PluginOption]:
    if not isinstance(factory, Plugin):
        return []
    words = read_docstring(type(factory)).parameters
    options = []
    for name, parameter in inspect.signature(type(factory)).parameters.items():
        kind = parameter.annotation
        if not isinstance(kind, str):
            kind = "" if kind is parameter.empty else inspect.formatannotation(kind)
        default = None if parameter.default is parameter.empty else repr(parameter.default)
        options.append(PluginOption(name=name, type=kind, default=default, description=words.get(name, "")))
    return options


def show_list(plugins: list[ListedPlugin]) -> None:
    rows = []
    for one in plugins:
        words = styled(one.summary)
        if one.error is not None:
            words = styled(f"broken: {one.error.message}", "red")
        rows.append((one.name, one.package, one.version, words))
    console().print(plain_table("plugin", "package", "version", "", rows=rows, whole=(0,)))


def show_hooks(hooks: list[HookKind]) -> None:
    shown = console()
    for kind in hooks:
        define = "def" if kind.plain else "async def"
        failure = "it is only logged" if kind.on_failure == "never fatal" else kind.on_failure
        shown.print(f"{define} {kind.name}({', '.join(('self', *kind.takes))})", soft_wrap=True)
        shown.print(f"    returns {kind.answers}", soft_wrap=True)
        shown.print(styled(f"    called {kind.order}; if it fails, {failure}", "dim"), soft_wrap=True)


def show_plugin(plugin: ShownPlugin) -> None:
    where = "" if plugin.package is None else f" of {plugin.package} {plugin.package_version}"
    facts = [("plugin", plugin.id), ("version", plugin.version), ("from", f"{plugin.target}{where}")]
    shown = console()
    shown.print(facts_table(facts))
    for text in dict.fromkeys((plugin.summary, plugin.description)):
        if text:
            shown.print(f"\n{visible(text)}")
    options = [
        (one.name, one.type, "required" if one.default is None else one.default, one.description)
        for one in plugin.options
    ]
    hooks = []
    for hook in plugin.hooks:
        asked = f"{hook.order} ({hook.priority})" if hook.order == "by priority" else hook.order
        hooks.append((hook.name, asked, hook.on_failure))
    tools = [
        (one.signature, kind.side_effect, approval_text(kind), "yes" if kind.idempotent else "no")
        for one in plugin.tools
        for kind in [one.contract]
    ]
    actions = [(one.name, one.kind, one.description.partition("\n")[0]) for one in plugin.actions]
    tables = (
        ("Options", plain_table("option", "type", "default", "", rows=options)),
        ("Hooks", plain_table("hook", "order", "if it fails", rows=hooks)),
        ("Exclusive slots", plain_table("", rows=[(name,) for name in plugin.slots])),
        ("Tools", plain_table("tool", "side effect", "approval", "idempotent", rows=tools)),
        ("Actions", plain_table("action", "kind", "", rows=actions)),
        ("Triggers", plain_table("", rows=[(event.name,) for event in plugin.triggers])),
    )
    for title, table in tables:
        if table.row_count:
            shown.print(f"\n{title}")
            shown.print(table)
