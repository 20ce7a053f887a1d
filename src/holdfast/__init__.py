"""Holdfast: a durable agent runtime, and a sandbox that can stop in the middle of an expression.

Everything public is importable from here; it is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "holdfast.errors": ("HoldfastError", "ToolError"),
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
    "holdfast.tools": ("RegisteredTool", "Tool", "ToolRegistry", "tool"),
    "holdfast.runtime": ("BlockingSandbox", "Mount", "Sandbox"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "__version__",
    *sorted(_HOME_OF),
]

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError as HoldfastError
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
    from holdfast.runtime import BlockingSandbox as BlockingSandbox
    from holdfast.runtime import Mount as Mount
    from holdfast.runtime import Sandbox as Sandbox
    from holdfast.tools import RegisteredTool as RegisteredTool
    from holdfast.tools import Tool as Tool
    from holdfast.tools import ToolRegistry as ToolRegistry
    from holdfast.tools import tool as tool


def __getattr__(name: str) -> Any:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
