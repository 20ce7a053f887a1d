"""The plugin kernel and the shipped plugins. Each name is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports
from standfast.plugins.hook import hook as hook  # eager: the name must not mean the module `hook`

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.plugins.hook": "hook HOOKS HookKind",
        "standfast.model.directive": (
            "AbortTurn CreateSession EmitRuntimeEvents EmitTrace EnqueueMessages PluginDirective "
            "ReplaceToolArgs RuntimeEvent SessionRequest ShortCircuitTool ask_person deny_call"
        ),
        "standfast.model.plugin_options": "PluginOptions",
        "standfast.model.plugin_state": "ProtocolTurnOptions",
        "standfast.model.prompt": "PromptContribution PromptLayer PromptSlot",
        "standfast.model.session": "SessionPolicy",
        "standfast.plugins.actions": "PluginActionContext PluginActionDef action",
        "standfast.plugins.contexts": (
            "AssistantResponseHookContext AssistantResponseTransform AssistantStreamHookContext "
            "AssistantStreamTransform CheckpointHookContext CompactionContext ContextCompaction "
            "PluginExtensions PromptHookContext SessionConfigChanged SessionRestored SwitchAgentFrame "
            "ToolCallHookContext ToolCatalogContext ToolResultHookContext ToolResultProjectionContext "
            "TriggerEvent TurnFinalized TurnHookContext TurnPersisted TurnResultHookContext "
            "TurnTransformContext"
        ),
        "standfast.plugins.plugin": "Plugin PluginFactory PluginSessionContext SessionPlugin",
        "standfast.plugins.protocol": (
            "ProtocolBuildInput ProtocolDriverPlugin ProtocolSessionPlugin read_turn_options"
        ),
        "standfast.plugins.registrar": "PluginRegistrar",
        "standfast.plugins.session": "PluginHost PluginSession SessionAuthority SessionBuild",
        "standfast.plugins.turn_hooks": "TurnContext",
        "standfast.plugins.turn_protocol": "TurnDriverPreamble",
        "standfast.tools.registry": "ToolCatalogContribution",
    },
)


if TYPE_CHECKING:
    from standfast.model.directive import AbortTurn as AbortTurn
    from standfast.model.directive import CreateSession as CreateSession
    from standfast.model.directive import EmitRuntimeEvents as EmitRuntimeEvents
    from standfast.model.directive import EmitTrace as EmitTrace
    from standfast.model.directive import EnqueueMessages as EnqueueMessages
    from standfast.model.directive import PluginDirective as PluginDirective
    from standfast.model.directive import ReplaceToolArgs as ReplaceToolArgs
    from standfast.model.directive import RuntimeEvent as RuntimeEvent
    from standfast.model.directive import SessionRequest as SessionRequest
    from standfast.model.directive import ShortCircuitTool as ShortCircuitTool
    from standfast.model.directive import ask_person as ask_person
    from standfast.model.directive import deny_call as deny_call
    from standfast.model.plugin_options import PluginOptions as PluginOptions
    from standfast.model.plugin_state import ProtocolTurnOptions as ProtocolTurnOptions
    from standfast.model.prompt import PromptContribution as PromptContribution
    from standfast.model.prompt import PromptLayer as PromptLayer
    from standfast.model.prompt import PromptSlot as PromptSlot
    from standfast.model.session import SessionPolicy as SessionPolicy
    from standfast.plugins.actions import PluginActionContext as PluginActionContext
    from standfast.plugins.actions import PluginActionDef as PluginActionDef
    from standfast.plugins.actions import action as action
    from standfast.plugins.contexts import AssistantResponseHookContext as AssistantResponseHookContext
    from standfast.plugins.contexts import AssistantResponseTransform as AssistantResponseTransform
    from standfast.plugins.contexts import AssistantStreamHookContext as AssistantStreamHookContext
    from standfast.plugins.contexts import AssistantStreamTransform as AssistantStreamTransform
    from standfast.plugins.contexts import CheckpointHookContext as CheckpointHookContext
    from standfast.plugins.contexts import CompactionContext as CompactionContext
    from standfast.plugins.contexts import ContextCompaction as ContextCompaction
    from standfast.plugins.contexts import PluginExtensions as PluginExtensions
    from standfast.plugins.contexts import PromptHookContext as PromptHookContext
    from standfast.plugins.contexts import SessionConfigChanged as SessionConfigChanged
    from standfast.plugins.contexts import SessionRestored as SessionRestored
    from standfast.plugins.contexts import SwitchAgentFrame as SwitchAgentFrame
    from standfast.plugins.contexts import ToolCallHookContext as ToolCallHookContext
    from standfast.plugins.contexts import ToolCatalogContext as ToolCatalogContext
    from standfast.plugins.contexts import ToolResultHookContext as ToolResultHookContext
    from standfast.plugins.contexts import ToolResultProjectionContext as ToolResultProjectionContext
    from standfast.plugins.contexts import TriggerEvent as TriggerEvent
    from standfast.plugins.contexts import TurnFinalized as TurnFinalized
    from standfast.plugins.contexts import TurnHookContext as TurnHookContext
    from standfast.plugins.contexts import TurnPersisted as TurnPersisted
    from standfast.plugins.contexts import TurnResultHookContext as TurnResultHookContext
    from standfast.plugins.contexts import TurnTransformContext as TurnTransformContext
    from standfast.plugins.hook import HOOKS as HOOKS
    from standfast.plugins.hook import HookKind as HookKind
    from standfast.plugins.plugin import Plugin as Plugin
    from standfast.plugins.plugin import PluginFactory as PluginFactory
    from standfast.plugins.plugin import PluginSessionContext as PluginSessionContext
    from standfast.plugins.plugin import SessionPlugin as SessionPlugin
    from standfast.plugins.protocol import ProtocolBuildInput as ProtocolBuildInput
    from standfast.plugins.protocol import ProtocolDriverPlugin as ProtocolDriverPlugin
    from standfast.plugins.protocol import ProtocolSessionPlugin as ProtocolSessionPlugin
    from standfast.plugins.protocol import read_turn_options as read_turn_options
    from standfast.plugins.registrar import PluginRegistrar as PluginRegistrar
    from standfast.plugins.session import PluginHost as PluginHost
    from standfast.plugins.session import PluginSession as PluginSession
    from standfast.plugins.session import SessionAuthority as SessionAuthority
    from standfast.plugins.session import SessionBuild as SessionBuild
    from standfast.plugins.turn_hooks import TurnContext as TurnContext
    from standfast.plugins.turn_protocol import TurnDriverPreamble as TurnDriverPreamble
    from standfast.tools.registry import ToolCatalogContribution as ToolCatalogContribution
