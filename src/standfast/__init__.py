"""Standfast: a durable agent runtime, and a sandbox that can stop in the middle of an expression.

Every public name is importable from here and loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.errors": "ErrorObject LeaseLost ModelError Span StandfastError ToolError TurnStopped",
        "standfast.mcp.config": "read_mcp_servers",
        "standfast.mcp.contracts": "McpTool",
        "standfast.mcp.credentials": "McpSignIn",
        "standfast.mcp.jail": "McpJail",
        "standfast.mcp.mcp_server": "McpServer",
        "standfast.model.approval": "Approval ApprovalState",
        "standfast.model.capability": (
            "CallStatus Capability ExternalCallRecord SideEffect ToolCallContext auto_approval"
        ),
        "standfast.model.code": "Diagnostic Language Severity",
        "standfast.model.grant": "Grant",
        "standfast.model.host_requests": "DirectRequest SessionCreateRequest TurnInput",
        "standfast.model.journal": "EditedCall JournalEdit JournalStep",
        "standfast.model.limits": "CapabilityLimits SessionLimits Usage UsageLimits",
        "standfast.model.message": (
            "AssistantMessage InjectedTurnInput Message RequestedCall ToolMessage UserMessage"
        ),
        "standfast.model.monitor": "MonitorSpec MonitorState",
        "standfast.model.outcome": "StopReason",
        "standfast.model.run": "Metrics RunRequest RunResult RunStatus",
        "standfast.model.session": (
            "CurrentTurn Node SessionHead SessionId SessionInfo SessionMeta session_id_from"
        ),
        "standfast.model.task": "TaskSpec TaskState",
        "standfast.model.trigger": "Schedule Trigger",
        "standfast.plugins.actions": "action",
        "standfast.plugins.hook": "hook",
        "standfast.plugins.plugin": "Plugin",
        "standfast.protocols.code.plugin": "CodeMode CodeProtocol",
        "standfast.providers.anthropic": "AnthropicModel",
        "standfast.providers.cached": "Cached",
        "standfast.providers.fallback": "Fallback",
        "standfast.providers.google": "GoogleModel",
        "standfast.providers.openai": "OpenAIModel",
        "standfast.providers.openai_compatible": "OpenAICompatibleModel",
        "standfast.providers.rate_limit": "Limited RateLimit",
        "standfast.providers.recorded": "Recorded",
        "standfast.providers.resolve": "resolve_model",
        "standfast.providers.scripted": "ScriptedModel",
        "standfast.runtime.agent": "Agent",
        "standfast.runtime.agent_runtime": "Runtime open_store",
        "standfast.runtime.agent_session": "Attachment Session",
        "standfast.runtime.blocking": "BlockingSandbox",
        "standfast.runtime.dependencies": "DepsContext runtime_loop",
        "standfast.runtime.result": (
            "AwaitedResult FinishedTurn FrameSwitchedTurn StoppedTurn TurnResult WaitingTurn"
        ),
        "standfast.runtime.sandbox": "Sandbox",
        "standfast.runtime.sessions.observation": "SessionMessages",
        "standfast.runtime.turn": "Turn",
        "standfast.tools.decorator": "Tool tool",
        "standfast.tools.registered_tool": "RegisteredTool",
        "standfast.tools.registry": "ToolRegistry",
        "standfast.tools.builtin.mounts": "Mount",
        "standfast.tools.context": "AskPerson CompleteAfter CompleteLater ContinueAs RunContext",
        "standfast.trace": "JsonlTrace OtelTrace",
    },
)
__all__.insert(0, "__version__")

if TYPE_CHECKING:
    from standfast.errors import ErrorObject as ErrorObject
    from standfast.errors import LeaseLost as LeaseLost
    from standfast.errors import ModelError as ModelError
    from standfast.errors import Span as Span
    from standfast.errors import StandfastError as StandfastError
    from standfast.errors import ToolError as ToolError
    from standfast.errors import TurnStopped as TurnStopped
    from standfast.mcp.config import read_mcp_servers as read_mcp_servers
    from standfast.mcp.contracts import McpTool as McpTool
    from standfast.mcp.credentials import McpSignIn as McpSignIn
    from standfast.mcp.jail import McpJail as McpJail
    from standfast.mcp.mcp_server import McpServer as McpServer
    from standfast.model.approval import Approval as Approval
    from standfast.model.approval import ApprovalState as ApprovalState
    from standfast.model.capability import CallStatus as CallStatus
    from standfast.model.capability import Capability as Capability
    from standfast.model.capability import ExternalCallRecord as ExternalCallRecord
    from standfast.model.capability import SideEffect as SideEffect
    from standfast.model.capability import ToolCallContext as ToolCallContext
    from standfast.model.capability import auto_approval as auto_approval
    from standfast.model.code import Diagnostic as Diagnostic
    from standfast.model.code import Language as Language
    from standfast.model.code import Severity as Severity
    from standfast.model.grant import Grant as Grant
    from standfast.model.host_requests import DirectRequest as DirectRequest
    from standfast.model.host_requests import SessionCreateRequest as SessionCreateRequest
    from standfast.model.host_requests import TurnInput as TurnInput
    from standfast.model.journal import EditedCall as EditedCall
    from standfast.model.journal import JournalEdit as JournalEdit
    from standfast.model.journal import JournalStep as JournalStep
    from standfast.model.limits import CapabilityLimits as CapabilityLimits
    from standfast.model.limits import SessionLimits as SessionLimits
    from standfast.model.limits import Usage as Usage
    from standfast.model.limits import UsageLimits as UsageLimits
    from standfast.model.message import AssistantMessage as AssistantMessage
    from standfast.model.message import InjectedTurnInput as InjectedTurnInput
    from standfast.model.message import Message as Message
    from standfast.model.message import RequestedCall as RequestedCall
    from standfast.model.message import ToolMessage as ToolMessage
    from standfast.model.message import UserMessage as UserMessage
    from standfast.model.monitor import MonitorSpec as MonitorSpec
    from standfast.model.monitor import MonitorState as MonitorState
    from standfast.model.outcome import StopReason as StopReason
    from standfast.model.run import Metrics as Metrics
    from standfast.model.run import RunRequest as RunRequest
    from standfast.model.run import RunResult as RunResult
    from standfast.model.run import RunStatus as RunStatus
    from standfast.model.session import CurrentTurn as CurrentTurn
    from standfast.model.session import Node as Node
    from standfast.model.session import SessionHead as SessionHead
    from standfast.model.session import SessionId as SessionId
    from standfast.model.session import SessionInfo as SessionInfo
    from standfast.model.session import SessionMeta as SessionMeta
    from standfast.model.session import session_id_from as session_id_from
    from standfast.model.task import TaskSpec as TaskSpec
    from standfast.model.task import TaskState as TaskState
    from standfast.model.trigger import Schedule as Schedule
    from standfast.model.trigger import Trigger as Trigger
    from standfast.plugins.actions import action as action
    from standfast.plugins.hook import hook as hook
    from standfast.plugins.plugin import Plugin as Plugin
    from standfast.protocols.code.plugin import CodeMode as CodeMode
    from standfast.protocols.code.plugin import CodeProtocol as CodeProtocol
    from standfast.providers.anthropic import AnthropicModel as AnthropicModel
    from standfast.providers.cached import Cached as Cached
    from standfast.providers.fallback import Fallback as Fallback
    from standfast.providers.google import GoogleModel as GoogleModel
    from standfast.providers.openai import OpenAIModel as OpenAIModel
    from standfast.providers.openai_compatible import OpenAICompatibleModel as OpenAICompatibleModel
    from standfast.providers.rate_limit import Limited as Limited
    from standfast.providers.rate_limit import RateLimit as RateLimit
    from standfast.providers.recorded import Recorded as Recorded
    from standfast.providers.resolve import resolve_model as resolve_model
    from standfast.providers.scripted import ScriptedModel as ScriptedModel
    from standfast.runtime.agent import Agent as Agent
    from standfast.runtime.agent_runtime import Runtime as Runtime
    from standfast.runtime.agent_runtime import open_store as open_store
    from standfast.runtime.agent_session import Attachment as Attachment
    from standfast.runtime.agent_session import Session as Session
    from standfast.runtime.blocking import BlockingSandbox as BlockingSandbox
    from standfast.runtime.dependencies import DepsContext as DepsContext
    from standfast.runtime.dependencies import runtime_loop as runtime_loop
    from standfast.runtime.result import AwaitedResult as AwaitedResult
    from standfast.runtime.result import FinishedTurn as FinishedTurn
    from standfast.runtime.result import FrameSwitchedTurn as FrameSwitchedTurn
    from standfast.runtime.result import StoppedTurn as StoppedTurn
    from standfast.runtime.result import TurnResult as TurnResult
    from standfast.runtime.result import WaitingTurn as WaitingTurn
    from standfast.runtime.sandbox import Sandbox as Sandbox
    from standfast.runtime.sessions.observation import SessionMessages as SessionMessages
    from standfast.runtime.turn import Turn as Turn
    from standfast.tools import RegisteredTool as RegisteredTool
    from standfast.tools import Tool as Tool
    from standfast.tools import ToolRegistry as ToolRegistry
    from standfast.tools import tool as tool
    from standfast.tools.builtin.mounts import Mount as Mount
    from standfast.tools.context import AskPerson as AskPerson
    from standfast.tools.context import CompleteAfter as CompleteAfter
    from standfast.tools.context import CompleteLater as CompleteLater
    from standfast.tools.context import ContinueAs as ContinueAs
    from standfast.tools.context import RunContext as RunContext
    from standfast.trace import JsonlTrace as JsonlTrace
    from standfast.trace import OtelTrace as OtelTrace
