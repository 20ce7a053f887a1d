"""The codes of errors, the status that each one means, and an error as data."""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A place in source text. Lines and columns count from 1; columns count characters."""

    line: int = 1
    column: int = 1
    end_line: int | None = None
    end_column: int | None = None


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """A failure as data: what is stored, sent and shown."""

    code: str
    message: str
    hint: str | None = None
    span: Span | None = None

    def with_hint(self, hint: str) -> ErrorObject:
        return msgspec.structs.replace(self, hint=hint)

    def with_span(self, span: Span) -> ErrorObject:
        return msgspec.structs.replace(self, span=span)


class Code(enum.StrEnum):
    """The stable codes of errors and the run status that each one means."""

    SYNTAX_ERROR = "SYNTAX_ERROR"
    TYPE_ERROR = "TYPE_ERROR"
    UNKNOWN_TOOL = "UNKNOWN_TOOL"
    UNSUPPORTED_FEATURE = "UNSUPPORTED_FEATURE"
    RESULT_NOT_SERIALIZABLE = "RESULT_NOT_SERIALIZABLE"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    INVALID_SESSION_ID = "INVALID_SESSION_ID"
    INVALID_TOOL_NAME = "INVALID_TOOL_NAME"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    METHOD_NOT_FOUND = "METHOD_NOT_FOUND"
    SNAPSHOT_CORRUPT = "SNAPSHOT_CORRUPT"
    SNAPSHOT_VERSION_MISMATCH = "SNAPSHOT_VERSION_MISMATCH"
    SNAPSHOT_CAPABILITY_MISMATCH = "SNAPSHOT_CAPABILITY_MISMATCH"
    SESSION_EXISTS = "SESSION_EXISTS"
    SESSION_BUSY = "SESSION_BUSY"
    TURN_NOT_FOUND = "TURN_NOT_FOUND"
    TURN_WAITS_FOR_ITSELF = "TURN_WAITS_FOR_ITSELF"
    RUNTIME_REQUIRED = "RUNTIME_REQUIRED"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    INPUT_NOT_FOUND = "INPUT_NOT_FOUND"
    NODE_NOT_FOUND = "NODE_NOT_FOUND"
    STALE_BRANCH = "STALE_BRANCH"
    GRANT_NOT_FOUND = "GRANT_NOT_FOUND"
    JOURNAL_NOT_KEPT = "JOURNAL_NOT_KEPT"
    TOKEN_NOT_FOUND = "TOKEN_NOT_FOUND"  # noqa: S105
    TOKEN_ALREADY_USED = "TOKEN_ALREADY_USED"  # noqa: S105
    APPROVAL_NOT_FOUND = "APPROVAL_NOT_FOUND"
    APPROVAL_ALREADY_DECIDED = "APPROVAL_ALREADY_DECIDED"
    TASK_EXISTS = "TASK_EXISTS"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    MONITOR_NOT_FOUND = "MONITOR_NOT_FOUND"
    TRIGGER_NOT_FOUND = "TRIGGER_NOT_FOUND"
    SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"
    INVALID_PLUGIN = "INVALID_PLUGIN"
    PLUGIN_CONFLICT = "PLUGIN_CONFLICT"
    PROTOCOL_ERROR = "PROTOCOL_ERROR"
    SESSION_REQUIRED = "SESSION_REQUIRED"
    SESSION_NOT_ACCEPTED = "SESSION_NOT_ACCEPTED"
    TOOL_CONFLICT = "TOOL_CONFLICT"
    TOOL_ORPHANED = "TOOL_ORPHANED"
    GENERATION_MISMATCH = "GENERATION_MISMATCH"
    PROVIDER_UNAVAILABLE = "PROVIDER_UNAVAILABLE"
    PROVIDER_MISMATCH = "PROVIDER_MISMATCH"
    ENGINE_UNAVAILABLE = "ENGINE_UNAVAILABLE"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TOOL_ERROR = "TOOL_ERROR"
    IO_ERROR = "IO_ERROR"
    SERIALIZE_ERROR = "SERIALIZE_ERROR"
    NOT_CONFIGURED = "NOT_CONFIGURED"
    PROVIDER_UNCONFIGURED = "PROVIDER_UNCONFIGURED"
    RECORD_CORRUPT = "RECORD_CORRUPT"
    SCHEMA_TOO_NEW = "SCHEMA_TOO_NEW"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    BAD_TOOL_SOURCE = "BAD_TOOL_SOURCE"
    MCP_SERVER_FAILED = "MCP_SERVER_FAILED"
    MCP_SERVER_CHANGED = "MCP_SERVER_CHANGED"
    MCP_SIGN_IN_REQUIRED = "MCP_SIGN_IN_REQUIRED"
    INSTRUCTIONS_FAILED = "INSTRUCTIONS_FAILED"
    TIMEOUT_WALL = "TIMEOUT_WALL"
    TIMEOUT_CPU = "TIMEOUT_CPU"
    TIMEOUT_TOOL = "TIMEOUT_TOOL"
    MEMORY_EXCEEDED = "MEMORY_EXCEEDED"
    STDOUT_EXCEEDED = "STDOUT_EXCEEDED"
    EXTERNAL_CALLS_EXCEEDED = "EXTERNAL_CALLS_EXCEEDED"
    STACK_OVERFLOW = "STACK_OVERFLOW"
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
    RESPONSE_TOO_LARGE = "RESPONSE_TOO_LARGE"
    RATE_LIMITED = "RATE_LIMITED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    CANCELLED = "CANCELLED"
    WAITING_FOR_APPROVAL = "WAITING_FOR_APPROVAL"
    INTERRUPTED = "INTERRUPTED"
    RUNTIME_CLOSED = "RUNTIME_CLOSED"
    STALE_STATE = "STALE_STATE"
    LEASE_LOST = "LEASE_LOST"


class TurnCode(enum.StrEnum):
    """The stable codes of turns that end or stay without an answer, beside those of `Code`."""

    PROVIDER_ERROR = "PROVIDER_ERROR"
    CONTEXT_OVERFLOW = "CONTEXT_OVERFLOW"
    TURN_BUDGET = "TURN_BUDGET"
    NO_PROGRESS = "NO_PROGRESS"
    OUTPUT_INVALID = "OUTPUT_INVALID"
    PLUGIN_ABORT = "PLUGIN_ABORT"
    PLUGIN_ERROR = "PLUGIN_ERROR"
    DEPS_MISSING = "DEPS_MISSING"
    ENGINE_MISMATCH = "ENGINE_MISMATCH"
    WRONG_AGENT = "WRONG_AGENT"


_STATUS_GROUPS: Final = {
    "runtime_error": (
        Code.RUNTIME_ERROR,
        Code.TOOL_ERROR,
        Code.IO_ERROR,
        Code.SERIALIZE_ERROR,
        Code.NOT_CONFIGURED,
        Code.PROVIDER_UNCONFIGURED,
        Code.RECORD_CORRUPT,
        Code.SCHEMA_TOO_NEW,
        Code.STORE_UNAVAILABLE,
        Code.BAD_TOOL_SOURCE,
        Code.MCP_SERVER_FAILED,
        Code.MCP_SERVER_CHANGED,
        Code.MCP_SIGN_IN_REQUIRED,
        Code.INSTRUCTIONS_FAILED,
    ),
    "timeout": (Code.TIMEOUT_WALL, Code.TIMEOUT_CPU, Code.TIMEOUT_TOOL),
    "resource_exhausted": (
        Code.MEMORY_EXCEEDED,
        Code.STDOUT_EXCEEDED,
        Code.EXTERNAL_CALLS_EXCEEDED,
        Code.STACK_OVERFLOW,
        Code.REQUEST_TOO_LARGE,
        Code.RESPONSE_TOO_LARGE,
        Code.RATE_LIMITED,
    ),
    "permission_denied": (Code.PERMISSION_DENIED, Code.UNAUTHENTICATED),
    "cancelled": (Code.CANCELLED,),
    "waiting_for_approval": (Code.WAITING_FOR_APPROVAL,),
    "interrupted": (Code.INTERRUPTED, Code.RUNTIME_CLOSED, Code.STALE_STATE, Code.LEASE_LOST),
}

STATUS_OF_CODE: Final[dict[str, str]] = {
    **dict.fromkeys(Code, "validation_error"),
    **{code: status for status, codes in _STATUS_GROUPS.items() for code in codes},
}
"""The run status that each code means: `validation_error` unless it is in another group.

A tool author's own code is a runtime error.
"""
