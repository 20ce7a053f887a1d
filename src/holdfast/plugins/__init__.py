"""Everything that shapes a session: the plugin kernel, and the plugins that ship with Holdfast.

What a plugin author needs is importable from here and loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.plugins.hook import hook as hook  # at once: else the module of the same name would stand here

_HOMES = {
    "holdfast.model.directive": (
        "AbortTurn",
        "CreateSession",
        "EmitRuntimeEvents",
        "EmitTrace",
        "EnqueueMessages",
        "PluginDirective",
        "ReplaceToolArgs",
        "RuntimeEvent",
        "SessionRequest",
        "ShortCircuitTool",
        "ask_person",
        "deny_call",
    ),
    "holdfast.model.plugin_options": ("PluginOptions",),
    "holdfast.model.prompt": ("PromptContribution", "PromptLayer", "PromptSlot"),
    "holdfast.model.session_policy": ("SessionPolicy",),
    "holdfast.plugins.actions": ("PluginActionContext", "PluginActionDef", "action"),
    "holdfast.plugins.contexts": (
        "AssistantResponseHookContext",
        "AssistantResponseTransform",
        "AssistantStreamHookContext",
        "AssistantStreamTransform",
        "CheckpointHookContext",
        "CompactionContext",
        "ContextCompaction",
        "PluginExtensions",
        "PromptHookContext",
        "SessionConfigChanged",
        "SessionRestored",
        "SwitchAgentFrame",
        "ToolCallHookContext",
        "ToolCatalogContext",
        "ToolResultHookContext",
        "ToolResultProjectionContext",
        "TurnFinalized",
        "TurnHookContext",
        "TurnPersisted",
        "TurnResultHookContext",
        "TurnTransformContext",
    ),
    "holdfast.plugins.hook": ("HOOKS", "HookKind", "hook"),
    "holdfast.plugins.host": ("PluginHost", "SessionAuthority", "SessionBuild"),
    "holdfast.plugins.plugin": ("Plugin", "PluginFactory", "PluginSessionContext", "SessionPlugin"),
    "holdfast.plugins.protocol": (
        "ProtocolDriverPlugin",
        "ProtocolSessionPlugin",
        "TurnDriverPreamble",
        "TurnSeat",
    ),
    "holdfast.plugins.registrar": ("PluginRegistrar",),
    "holdfast.plugins.session": ("PluginSession",),
    "holdfast.plugins.triggers": ("TriggerEvent",),
    "holdfast.tools.catalog": ("ToolCatalogContribution",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module 'holdfast.plugins' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)


if TYPE_CHECKING:
    from holdfast.model.directive import AbortTurn as AbortTurn
    from holdfast.model.directive import CreateSession as CreateSession
    from holdfast.model.directive import EmitRuntimeEvents as EmitRuntimeEvents
    from holdfast.model.directive import EmitTrace as EmitTrace
    from holdfast.model.directive import EnqueueMessages as EnqueueMessages
    from holdfast.model.directive import PluginDirective as PluginDirective
    from holdfast.model.directive import ReplaceToolArgs as ReplaceToolArgs
    from holdfast.model.directive import RuntimeEvent as RuntimeEvent
    from holdfast.model.directive import SessionRequest as SessionRequest
    from holdfast.model.directive import ShortCircuitTool as ShortCircuitTool
    from holdfast.model.directive import ask_person as ask_person
    from holdfast.model.directive import deny_call as deny_call
    from holdfast.model.plugin_options import PluginOptions as PluginOptions
    from holdfast.model.prompt import PromptContribution as PromptContribution
    from holdfast.model.prompt import PromptLayer as PromptLayer
    from holdfast.model.prompt import PromptSlot as PromptSlot
    from holdfast.model.session_policy import SessionPolicy as SessionPolicy
    from holdfast.plugins.actions import PluginActionContext as PluginActionContext
    from holdfast.plugins.actions import PluginActionDef as PluginActionDef
    from holdfast.plugins.actions import action as action
    from holdfast.plugins.contexts import AssistantResponseHookContext as AssistantResponseHookContext
    from holdfast.plugins.contexts import AssistantResponseTransform as AssistantResponseTransform
    from holdfast.plugins.contexts import AssistantStreamHookContext as AssistantStreamHookContext
    from holdfast.plugins.contexts import AssistantStreamTransform as AssistantStreamTransform
    from holdfast.plugins.contexts import CheckpointHookContext as CheckpointHookContext
    from holdfast.plugins.contexts import CompactionContext as CompactionContext
    from holdfast.plugins.contexts import ContextCompaction as ContextCompaction
    from holdfast.plugins.contexts import PluginExtensions as PluginExtensions
    from holdfast.plugins.contexts import PromptHookContext as PromptHookContext
    from holdfast.plugins.contexts import SessionConfigChanged as SessionConfigChanged
    from holdfast.plugins.contexts import SessionRestored as SessionRestored
    from holdfast.plugins.contexts import SwitchAgentFrame as SwitchAgentFrame
    from holdfast.plugins.contexts import ToolCallHookContext as ToolCallHookContext
    from holdfast.plugins.contexts import ToolCatalogContext as ToolCatalogContext
    from holdfast.plugins.contexts import ToolResultHookContext as ToolResultHookContext
    from holdfast.plugins.contexts import ToolResultProjectionContext as ToolResultProjectionContext
    from holdfast.plugins.contexts import TurnFinalized as TurnFinalized
    from holdfast.plugins.contexts import TurnHookContext as TurnHookContext
    from holdfast.plugins.contexts import TurnPersisted as TurnPersisted
    from holdfast.plugins.contexts import TurnResultHookContext as TurnResultHookContext
    from holdfast.plugins.contexts import TurnTransformContext as TurnTransformContext
    from holdfast.plugins.hook import HOOKS as HOOKS
    from holdfast.plugins.hook import HookKind as HookKind
    from holdfast.plugins.host import PluginHost as PluginHost
    from holdfast.plugins.host import SessionAuthority as SessionAuthority
    from holdfast.plugins.host import SessionBuild as SessionBuild
    from holdfast.plugins.plugin import Plugin as Plugin
    from holdfast.plugins.plugin import PluginFactory as PluginFactory
    from holdfast.plugins.plugin import PluginSessionContext as PluginSessionContext
    from holdfast.plugins.plugin import SessionPlugin as SessionPlugin
    from holdfast.plugins.protocol import ProtocolDriverPlugin as ProtocolDriverPlugin
    from holdfast.plugins.protocol import ProtocolSessionPlugin as ProtocolSessionPlugin
    from holdfast.plugins.protocol import TurnDriverPreamble as TurnDriverPreamble
    from holdfast.plugins.protocol import TurnSeat as TurnSeat
    from holdfast.plugins.registrar import PluginRegistrar as PluginRegistrar
    from holdfast.plugins.session import PluginSession as PluginSession
    from holdfast.plugins.triggers import TriggerEvent as TriggerEvent
    from holdfast.tools.catalog import ToolCatalogContribution as ToolCatalogContribution
