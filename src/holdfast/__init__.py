"""Holdfast: a durable agent runtime, and a sandbox that can stop in the middle of an expression.

Everything public is importable from here; it is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "holdfast.errors": (
        "HoldfastError",
        "LeaseLost",
        "ModelError",
        "ToolError",
    ),
    "holdfast.model": (
        "Approval",
        "ApprovalState",
        "CallStatus",
        "Capability",
        "CapabilityLimits",
        "Diagnostic",
        "ErrorObject",
        "ExternalCallRecord",
        "Language",
        "Metrics",
        "RunRequest",
        "RunResult",
        "RunStatus",
        "SessionId",
        "SessionInfo",
        "SessionLimits",
        "SessionMeta",
        "Severity",
        "SideEffect",
        "Span",
        "ToolCallContext",
        "auto_approval",
    ),
    "holdfast.tools": (
        "RegisteredTool",
        "Tool",
        "ToolRegistry",
        "tool",
    ),
    "holdfast.runtime.blocking": ("BlockingSandbox",),
    "holdfast.runtime.current_turn": ("SessionMessages",),
    "holdfast.runtime.sandbox": ("Sandbox",),
    "holdfast.tools.builtin.mounts": ("Mount",),
    "holdfast.model.message": (
        "AssistantMessage",
        "InjectedTurnInput",
        "Message",
        "ToolMessage",
        "UserMessage",
    ),
    "holdfast.model.current_turn": ("CurrentTurn",),
    "holdfast.model.head": ("SessionHead",),
    "holdfast.model.ids": ("session_id_from",),
    "holdfast.model.host_requests": (
        "DirectRequest",
        "SessionCreateRequest",
        "TurnInput",
    ),
    "holdfast.model.monitor": (
        "MonitorSpec",
        "MonitorState",
    ),
    "holdfast.model.node": ("Node",),
    "holdfast.model.outcome": ("StopReason",),
    "holdfast.model.task": (
        "TaskSpec",
        "TaskState",
    ),
    "holdfast.model.trigger": (
        "Schedule",
        "Trigger",
    ),
    "holdfast.model.usage": (
        "Usage",
        "UsageLimits",
    ),
    "holdfast.tools.context": (
        "CompleteAfter",
        "CompleteLater",
        "ContinueAs",
        "RunContext",
    ),
    "holdfast.plugins.actions": ("action",),
    "holdfast.plugins.hook": ("hook",),
    "holdfast.plugins.plugin": ("Plugin",),
    "holdfast.protocols.code.plugin": (
        "CodeMode",
        "CodeProtocol",
    ),
    "holdfast.providers.anthropic": ("AnthropicModel",),
    "holdfast.providers.cached": ("Cached",),
    "holdfast.providers.fallback": ("Fallback",),
    "holdfast.providers.google": ("GoogleModel",),
    "holdfast.providers.limited": ("Limited",),
    "holdfast.providers.openai": ("OpenAIModel",),
    "holdfast.providers.openai_compatible": ("OpenAICompatibleModel",),
    "holdfast.providers.rate_limit": ("RateLimit",),
    "holdfast.providers.recorded": ("Recorded",),
    "holdfast.providers.resolve": ("resolve_model",),
    "holdfast.providers.scripted": ("ScriptedModel",),
    "holdfast.runtime.agent": ("Agent",),
    "holdfast.runtime.agent_runtime": ("Runtime",),
    "holdfast.runtime.agent_session": ("Session",),
    "holdfast.runtime.attachments": ("Attachment",),
    "holdfast.runtime.dependencies": ("DepsContext",),
    "holdfast.runtime.result": (
        "AwaitedResult",
        "FinishedTurn",
        "FrameSwitchedTurn",
        "StoppedTurn",
        "TurnResult",
        "TurnStopped",
        "WaitingTurn",
    ),
    "holdfast.runtime.turn": ("Turn",),
    "holdfast.trace": (
        "JsonlTrace",
        "OtelTrace",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "__version__",
    *sorted(_HOME_OF),
]

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import LeaseLost as LeaseLost
    from holdfast.errors import ModelError as ModelError
    from holdfast.errors import ToolError as ToolError
    from holdfast.model import Approval as Approval
    from holdfast.model import ApprovalState as ApprovalState
    from holdfast.model import CallStatus as CallStatus
    from holdfast.model import Capability as Capability
    from holdfast.model import CapabilityLimits as CapabilityLimits
    from holdfast.model import Diagnostic as Diagnostic
    from holdfast.model import ErrorObject as ErrorObject
    from holdfast.model import ExternalCallRecord as ExternalCallRecord
    from holdfast.model import Language as Language
    from holdfast.model import Metrics as Metrics
    from holdfast.model import RunRequest as RunRequest
    from holdfast.model import RunResult as RunResult
    from holdfast.model import RunStatus as RunStatus
    from holdfast.model import SessionId as SessionId
    from holdfast.model import SessionInfo as SessionInfo
    from holdfast.model import SessionLimits as SessionLimits
    from holdfast.model import SessionMeta as SessionMeta
    from holdfast.model import Severity as Severity
    from holdfast.model import SideEffect as SideEffect
    from holdfast.model import Span as Span
    from holdfast.model import ToolCallContext as ToolCallContext
    from holdfast.model import auto_approval as auto_approval
    from holdfast.model.current_turn import CurrentTurn as CurrentTurn
    from holdfast.model.head import SessionHead as SessionHead
    from holdfast.model.host_requests import DirectRequest as DirectRequest
    from holdfast.model.host_requests import SessionCreateRequest as SessionCreateRequest
    from holdfast.model.host_requests import TurnInput as TurnInput
    from holdfast.model.ids import session_id_from as session_id_from
    from holdfast.model.message import AssistantMessage as AssistantMessage
    from holdfast.model.message import InjectedTurnInput as InjectedTurnInput
    from holdfast.model.message import Message as Message
    from holdfast.model.message import ToolMessage as ToolMessage
    from holdfast.model.message import UserMessage as UserMessage
    from holdfast.model.monitor import MonitorSpec as MonitorSpec
    from holdfast.model.monitor import MonitorState as MonitorState
    from holdfast.model.node import Node as Node
    from holdfast.model.outcome import StopReason as StopReason
    from holdfast.model.task import TaskSpec as TaskSpec
    from holdfast.model.task import TaskState as TaskState
    from holdfast.model.trigger import Schedule as Schedule
    from holdfast.model.trigger import Trigger as Trigger
    from holdfast.model.usage import Usage as Usage
    from holdfast.model.usage import UsageLimits as UsageLimits
    from holdfast.plugins.actions import action as action
    from holdfast.plugins.hook import hook as hook
    from holdfast.plugins.plugin import Plugin as Plugin
    from holdfast.protocols.code.plugin import CodeMode as CodeMode
    from holdfast.protocols.code.plugin import CodeProtocol as CodeProtocol
    from holdfast.providers.anthropic import AnthropicModel as AnthropicModel
    from holdfast.providers.cached import Cached as Cached
    from holdfast.providers.fallback import Fallback as Fallback
    from holdfast.providers.google import GoogleModel as GoogleModel
    from holdfast.providers.limited import Limited as Limited
    from holdfast.providers.openai import OpenAIModel as OpenAIModel
    from holdfast.providers.openai_compatible import OpenAICompatibleModel as OpenAICompatibleModel
    from holdfast.providers.rate_limit import RateLimit as RateLimit
    from holdfast.providers.recorded import Recorded as Recorded
    from holdfast.providers.resolve import resolve_model as resolve_model
    from holdfast.providers.scripted import ScriptedModel as ScriptedModel
    from holdfast.runtime.agent import Agent as Agent
    from holdfast.runtime.agent_runtime import Runtime as Runtime
    from holdfast.runtime.agent_session import Session as Session
    from holdfast.runtime.attachments import Attachment as Attachment
    from holdfast.runtime.blocking import BlockingSandbox as BlockingSandbox
    from holdfast.runtime.current_turn import SessionMessages as SessionMessages
    from holdfast.runtime.dependencies import DepsContext as DepsContext
    from holdfast.runtime.result import AwaitedResult as AwaitedResult
    from holdfast.runtime.result import FinishedTurn as FinishedTurn
    from holdfast.runtime.result import FrameSwitchedTurn as FrameSwitchedTurn
    from holdfast.runtime.result import StoppedTurn as StoppedTurn
    from holdfast.runtime.result import TurnResult as TurnResult
    from holdfast.runtime.result import TurnStopped as TurnStopped
    from holdfast.runtime.result import WaitingTurn as WaitingTurn
    from holdfast.runtime.sandbox import Sandbox as Sandbox
    from holdfast.runtime.turn import Turn as Turn
    from holdfast.tools import RegisteredTool as RegisteredTool
    from holdfast.tools import Tool as Tool
    from holdfast.tools import ToolRegistry as ToolRegistry
    from holdfast.tools import tool as tool
    from holdfast.tools.builtin.mounts import Mount as Mount
    from holdfast.tools.context import CompleteAfter as CompleteAfter
    from holdfast.tools.context import CompleteLater as CompleteLater
    from holdfast.tools.context import ContinueAs as ContinueAs
    from holdfast.tools.context import RunContext as RunContext
    from holdfast.trace import JsonlTrace as JsonlTrace
    from holdfast.trace import OtelTrace as OtelTrace


def __getattr__(name: str) -> Any:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
