"""Frozen values, one file per idea. No I/O, no clock."""

from standfast.errors import ErrorObject, Span
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.canonical import Json, canonical_json, digest_bytes, digest_json, to_json
from standfast.model.capability import (
    ApprovalPolicy,
    AutoApproval,
    AutoRule,
    CallStatus,
    Capability,
    ExternalCallRecord,
    GuestException,
    SettledCall,
    SideEffect,
    ToolCallContext,
    auto_approval,
    is_python_identifier,
)
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.model.language import Language
from standfast.model.limits import CapabilityLimits, SessionLimits
from standfast.model.run import Metrics, RunRequest, RunResult, RunStatus, status_of_code
from standfast.model.session import SNAPSHOT_VERSION, SessionId, SessionInfo, SessionMeta

__all__ = [
    "SNAPSHOT_VERSION",
    "Approval",
    "ApprovalPolicy",
    "ApprovalState",
    "AutoApproval",
    "AutoRule",
    "CallStatus",
    "Capability",
    "CapabilityLimits",
    "Decision",
    "Diagnostic",
    "ErrorObject",
    "ExternalCallRecord",
    "GuestException",
    "Json",
    "Language",
    "Metrics",
    "RunRequest",
    "RunResult",
    "RunStatus",
    "SessionId",
    "SessionInfo",
    "SessionLimits",
    "SessionMeta",
    "SettledCall",
    "Severity",
    "SideEffect",
    "Span",
    "ToolCallContext",
    "auto_approval",
    "canonical_json",
    "digest_bytes",
    "digest_json",
    "is_python_identifier",
    "status_of_code",
    "to_json",
]
