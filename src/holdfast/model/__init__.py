"""Frozen values, one file per idea. No I/O, no clock."""

from holdfast.errors import ErrorObject, Span
from holdfast.model.approval import Approval, ApprovalState, Decision
from holdfast.model.call import (
    CallStatus,
    ExternalCallRecord,
    GuestException,
    SettledCall,
    ToolCallContext,
)
from holdfast.model.canonical import Json, canonical_json, digest_bytes, digest_json, to_json
from holdfast.model.capability import (
    ApprovalPolicy,
    AutoApproval,
    AutoRule,
    Capability,
    SideEffect,
    auto_approval,
    is_python_identifier,
)
from holdfast.model.diagnostic import Diagnostic, Severity
from holdfast.model.ids import SessionId
from holdfast.model.language import Language
from holdfast.model.limits import CapabilityLimits, SessionLimits
from holdfast.model.run import Metrics, RunRequest, RunResult, RunStatus, status_of_code
from holdfast.model.session import SNAPSHOT_VERSION, SessionInfo, SessionMeta

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
