"""Every way Standfast fails, as one tree and one table of codes.

The first split is whose fault it is::

    StandfastError
    ├── CallerError            what was asked for cannot be done as asked
    │   ├── InvalidArgument        INVALID_ARGUMENT
    │   │   └── ValueTooLarge      REQUEST_TOO_LARGE
    │   ├── InvalidSessionId       INVALID_SESSION_ID
    │   ├── InvalidToolName        INVALID_TOOL_NAME
    │   ├── ToolNameTaken          TOOL_CONFLICT
    │   ├── ToolConflict           TOOL_CONFLICT
    │   ├── UnknownTool            UNKNOWN_TOOL
    │   ├── ToolOrphaned           TOOL_ORPHANED
    │   ├── GenerationMismatch     GENERATION_MISMATCH
    │   ├── SessionNotFound        SESSION_NOT_FOUND
    │   ├── SessionExists          SESSION_EXISTS
    │   ├── SessionWaiting         WAITING_FOR_APPROVAL
    │   ├── SessionBusy            SESSION_BUSY
    │   ├── TurnNotFound           TURN_NOT_FOUND
    │   ├── TurnUnfinished         WAITING_FOR_APPROVAL, INTERRUPTED
    │   ├── TurnWaitsForItself     TURN_WAITS_FOR_ITSELF
    │   ├── RuntimeRequired        RUNTIME_REQUIRED
    │   ├── IdempotencyConflict    IDEMPOTENCY_CONFLICT
    │   ├── InputNotFound          INPUT_NOT_FOUND
    │   ├── NodeNotFound           NODE_NOT_FOUND
    │   ├── StaleBranch            STALE_BRANCH
    │   ├── TokenNotFound          TOKEN_NOT_FOUND
    │   ├── TokenAlreadyUsed       TOKEN_ALREADY_USED
    │   ├── ApprovalNotFound       APPROVAL_NOT_FOUND
    │   ├── ApprovalAlreadyDecided APPROVAL_ALREADY_DECIDED
    │   ├── TaskExists             TASK_EXISTS
    │   ├── TaskNotFound           TASK_NOT_FOUND
    │   ├── MonitorNotFound        MONITOR_NOT_FOUND
    │   ├── TriggerNotFound        TRIGGER_NOT_FOUND
    │   ├── SignatureRefused       PERMISSION_DENIED (`runtime.triggers`)
    │   ├── ServiceUnavailable     SERVICE_UNAVAILABLE
    │   ├── InvalidPlugin          INVALID_PLUGIN
    │   ├── PluginConflict         PLUGIN_CONFLICT
    │   ├── ProtocolError          PROTOCOL_ERROR
    │   ├── PluginActionError
    │   │   ├── UnknownAction      METHOD_NOT_FOUND
    │   │   ├── UnknownSession     SESSION_NOT_FOUND
    │   │   ├── MissingSession     SESSION_REQUIRED
    │   │   └── UnexpectedSession  SESSION_NOT_ACCEPTED
    │   ├── ScriptRefused          SYNTAX_ERROR, UNSUPPORTED_FEATURE (`sandbox.typescript.script`)
    │   └── SnapshotRefused        SNAPSHOT_CORRUPT, SNAPSHOT_VERSION_MISMATCH,
    │                              SNAPSHOT_CAPABILITY_MISMATCH
    ├── OperatorError          the installation or its configuration is wrong
    │   ├── NotConfigured          NOT_CONFIGURED
    │   ├── ProviderUnconfigured   PROVIDER_UNCONFIGURED
    │   ├── ProviderUnavailable    PROVIDER_UNAVAILABLE
    │   ├── ProviderMismatch       PROVIDER_MISMATCH
    │   ├── CodeExecutionUnavailable   ENGINE_UNAVAILABLE
    │   ├── TurnNotRunnable        a turn cannot run in this process and stays as it is
    │   │   ├── DepsMissing        DEPS_MISSING
    │   │   └── WrongAgent         WRONG_AGENT
    │   └── RuntimeClosed          RUNTIME_CLOSED
    ├── OutsideError           a tool, an engine or the network failed
    │   ├── ToolError              the tool author's own code, or TOOL_ERROR
    │   ├── BadToolSource          BAD_TOOL_SOURCE
    │   ├── CommandNotStarted      IO_ERROR (`runtime.monitors.command`)
    │   ├── EngineFailed           INTERRUPTED
    │   │   └── CodeExecutionRuntimeStopped
    │   ├── InstructionsFailed     INSTRUCTIONS_FAILED
    │   ├── PluginFailed           PLUGIN_ERROR
    │   │   └── PluginStateLost    PLUGIN_ERROR
    │   └── ModelError             PROVIDER_ERROR, CONTEXT_OVERFLOW, RATE_LIMITED or the provider's own
    ├── StoreError             what is stored cannot be read or written
    │   ├── RecordCorrupt          RECORD_CORRUPT
    │   ├── SchemaTooNew           SCHEMA_TOO_NEW
    │   ├── StaleState             STALE_STATE
    │   ├── LeaseLost              LEASE_LOST
    │   └── StoreUnavailable       STORE_UNAVAILABLE
    └── InternalError          our fault                 RUNTIME_ERROR

Rule 1: an exception and its `ErrorObject` are two views of one thing.
Rule 2: a code, once released, never changes its meaning or its status.
Rule 3: waiting for a person is a value (a run status), never an exception.
"""

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
    WRONG_AGENT = "WRONG_AGENT"


_STATUS_GROUPS: Final = {
    "runtime_error": (
        "RUNTIME_ERROR TOOL_ERROR IO_ERROR SERIALIZE_ERROR NOT_CONFIGURED PROVIDER_UNCONFIGURED "
        "RECORD_CORRUPT SCHEMA_TOO_NEW STORE_UNAVAILABLE BAD_TOOL_SOURCE INSTRUCTIONS_FAILED"
    ),
    "timeout": "TIMEOUT_WALL TIMEOUT_CPU TIMEOUT_TOOL",
    "resource_exhausted": (
        "MEMORY_EXCEEDED STDOUT_EXCEEDED EXTERNAL_CALLS_EXCEEDED STACK_OVERFLOW REQUEST_TOO_LARGE "
        "RESPONSE_TOO_LARGE RATE_LIMITED"
    ),
    "permission_denied": "PERMISSION_DENIED",
    "cancelled": "CANCELLED",
    "waiting_for_approval": "WAITING_FOR_APPROVAL",
    "interrupted": "INTERRUPTED RUNTIME_CLOSED STALE_STATE LEASE_LOST",
}

STATUS_OF_CODE: Final[dict[str, str]] = dict.fromkeys(Code, "validation_error") | {
    code: status for status, codes in _STATUS_GROUPS.items() for code in codes.split()
}
"""The run status that each code means: `validation_error` unless it is in another group.

A tool author's own code is a runtime error.
"""


class StandfastError(Exception):
    """The root of the tree. `code` is stable, `hint` says what to do about it."""

    code: str = Code.RUNTIME_ERROR
    retryable: bool = False
    hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None, span: Span | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        if hint is not None:
            self.hint = hint

    def error_object(self) -> ErrorObject:
        """The same failure as data."""
        return ErrorObject(code=str(self.code), message=self.message, hint=self.hint, span=self.span)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class CallerError(StandfastError):
    """What was asked for cannot be done as asked."""

    code: str = Code.INVALID_ARGUMENT


class InvalidArgument(CallerError):
    """A value that was passed in does not fit."""


class ValueTooLarge(InvalidArgument):
    """A value takes more bytes, or has more parts, than it may. `limit` says how many it may have."""

    code = Code.REQUEST_TOO_LARGE
    hint = "pass less at once"

    def __init__(self, limit: str) -> None:
        super().__init__(f"the value is too large: {limit}")
        self.limit = limit


class InvalidSessionId(CallerError):
    """A session id has characters or a length that ids may not have."""

    code = Code.INVALID_SESSION_ID

    def __init__(self, value: object) -> None:
        super().__init__(
            f"session id {str(value)[:80]!r} must match ^[a-zA-Z0-9_-]{{1,64}}$",
            hint="use 1 to 64 ASCII letters, digits, '_' or '-'; "
            "standfast.session_id_from(text) makes such an id from any text",
        )


class InvalidToolName(CallerError):
    """A capability's name cannot be called from guest code."""

    code = Code.INVALID_TOOL_NAME


class ToolNameTaken(InvalidToolName):
    """Two owners want the same capability name."""

    code = Code.TOOL_CONFLICT
    hint = "rename one of them with @tool(name=...)"

    def __init__(self, name: str, owner: str, other: str) -> None:
        super().__init__(f"capability {name!r} of {other} is already registered by {owner}")
        self.name, self.owner, self.other = name, owner, other


class UnknownTool(CallerError):
    """No capability has this name."""

    code = Code.UNKNOWN_TOOL


class SessionNotFound(CallerError):
    """No session has this id."""

    code = Code.SESSION_NOT_FOUND
    hint = "`standfast sessions list` shows those that exist"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id!r}")


class SessionWaiting(CallerError):
    """The session has a run that waits for a person, so nothing else can run on it."""

    code = Code.WAITING_FOR_APPROVAL

    def __init__(self, session_id: str, approval_ids: list[str]) -> None:
        ids = ", ".join(approval_ids)
        super().__init__(
            f"session {session_id!r} has a run that waits for approval {ids}",
            hint=f"approve or deny {ids}, cancel the run, reset the session, or use another session",
        )
        self.approval_ids = approval_ids


class SessionExists(CallerError):
    """A new session was given the id of an existing one."""

    code = Code.SESSION_EXISTS
    hint = "choose another id"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is a session {session_id!r} already")


class SessionBusy(CallerError):
    """Another worker is running a turn of this session."""

    code = Code.SESSION_BUSY
    retryable = True
    hint = "wait until its turn has ended"

    def __init__(self, session_id: str, owner: str) -> None:
        super().__init__(f"session {session_id!r} is being worked on by {owner}")
        self.session_id, self.owner = session_id, owner


class TurnNotFound(CallerError):
    """No turn has this id, or the turn has ended and cannot be resumed."""

    code = Code.TURN_NOT_FOUND
    hint = "`standfast sessions show` lists the turns"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"there is no unfinished turn {turn_id!r}")
        self.turn_id = turn_id


class TurnUnfinished(CallerError):
    """The session has a turn that waits, or that its process left unfinished; it must end first."""

    def __init__(self, session_id: str, turn_id: str, *, waits: bool) -> None:
        state = "waits" if waits else "was interrupted"
        super().__init__(
            f"turn {turn_id} of session {session_id!r} {state} and comes first",
            hint="decide what it waits for, cancel it, or queue the input behind it"
            if waits
            else "continue it with `session.resume()` or `standfast recover`",
        )
        self.session_id, self.turn_id, self.waits = session_id, turn_id, waits
        self.code = Code.WAITING_FOR_APPROVAL if waits else Code.INTERRUPTED


class TurnWaitsForItself(CallerError):
    """The turn would wait for a session that waits for this turn."""

    code = Code.TURN_WAITS_FOR_ITSELF
    hint = "queue the input, or start the turn from a background task, and do not wait for it here"

    def __init__(self, session_id: str, awaited: str) -> None:
        what = "itself" if session_id == awaited else f"session {awaited!r}, which waits for it"
        super().__init__(f"the turn of session {session_id!r} would wait for {what}")
        self.session_id, self.awaited = session_id, awaited


class RuntimeRequired(CallerError):
    """A turn without a runtime reached a call that must wait."""

    code = Code.RUNTIME_REQUIRED
    hint = 'use a session: `async with Runtime("standfast.db") as runtime`'

    def __init__(self, kinds: str) -> None:
        super().__init__(f"the turn has to wait ({kinds}), and a run without a runtime is over when it does")


class IdempotencyConflict(CallerError):
    """The idempotency key was used before with other content."""

    code = Code.IDEMPOTENCY_CONFLICT
    hint = "use a key per input"

    def __init__(self, key: str) -> None:
        super().__init__(f"idempotency key {key[:80]!r} was used before with other content")
        self.key = key


class InputNotFound(CallerError):
    """No queued input has this id: it was claimed or withdrawn, or never existed."""

    code = Code.INPUT_NOT_FOUND

    def __init__(self, input_id: str) -> None:
        super().__init__(f"there is no waiting input {input_id!r}")
        self.input_id = input_id


class NodeNotFound(CallerError):
    """No node of this session has this id."""

    code = Code.NODE_NOT_FOUND
    hint = "`standfast sessions show` lists them"

    def __init__(self, node_id: str) -> None:
        super().__init__(f"there is no node {node_id[:80]!r} in this session")
        self.node_id = node_id


class StaleBranch(CallerError):
    """A node that must be on the active path is not; nothing was written."""

    code = Code.STALE_BRANCH
    hint = "read the path again, then append"

    def __init__(self, current_leaf_node_id: str | None) -> None:
        super().__init__(f"the active path has moved on to {current_leaf_node_id}")
        self.current_leaf_node_id = current_leaf_node_id


class TokenNotFound(CallerError):
    """No unfinished call waits for this token."""

    code = Code.TOKEN_NOT_FOUND

    def __init__(self, token: str) -> None:
        super().__init__(f"no unfinished turn knows the token {token[:80]!r}")


class TokenAlreadyUsed(CallerError):
    """The token was used before, or its deadline has passed."""

    code = Code.TOKEN_ALREADY_USED

    def __init__(self, token: str) -> None:
        super().__init__(f"token {token[:80]!r} was used already, or its time is over")


class ApprovalNotFound(CallerError):
    """No approval request has this id."""

    code = Code.APPROVAL_NOT_FOUND
    hint = "`standfast approvals list` shows those that exist"

    def __init__(self, approval_id: str) -> None:
        super().__init__(f"there is no approval {approval_id!r}")


class ApprovalAlreadyDecided(CallerError):
    """The approval was decided before; a decision is final."""

    code = Code.APPROVAL_ALREADY_DECIDED
    hint = "a decision is used once; run the code again to ask anew"

    def __init__(self, approval_id: str, state: str) -> None:
        super().__init__(f"approval {approval_id} is already {state}")
        self.approval_id, self.state = approval_id, state


class TaskExists(CallerError):
    """The session has a running task with this id."""

    code = Code.TASK_EXISTS
    hint = "cancel it first, or use another id"

    def __init__(self, session_id: str, task_id: str) -> None:
        super().__init__(f"session {session_id!r} has a task {task_id!r} that is not over")


class TaskNotFound(CallerError):
    """The session has no task with this id."""

    code = Code.TASK_NOT_FOUND

    def __init__(self, session_id: str, task_id: str) -> None:
        super().__init__(f"session {session_id!r} has no task {task_id[:128]!r}")


class MonitorNotFound(CallerError):
    """The session has no monitor with this id."""

    code = Code.MONITOR_NOT_FOUND

    def __init__(self, session_id: str, monitor_id: str) -> None:
        super().__init__(f"session {session_id!r} has no monitor {monitor_id[:128]!r}")


class TriggerNotFound(CallerError):
    """No trigger has this name."""

    code = Code.TRIGGER_NOT_FOUND
    hint = "`standfast triggers list` shows them"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no trigger {name[:128]!r}")


class ServiceUnavailable(CallerError):
    """The session, or this place in it, does not have this service of the runtime."""

    code = Code.SERVICE_UNAVAILABLE

    def __init__(self, service: str, why: str) -> None:
        super().__init__(f"{service} is unavailable in this session: {why}")
        self.service = service


class SnapshotRefused(CallerError):
    """A snapshot cannot be restored here; `code` says which of the reasons it is."""

    code: str

    def __init__(self, code: Code, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class OperatorError(StandfastError):
    """The installation or its configuration is wrong."""

    code: str = Code.IO_ERROR


class NotConfigured(OperatorError):
    """A file, variable or agent that this call needs is missing or unreadable."""

    code = Code.NOT_CONFIGURED


class CodeExecutionUnavailable(OperatorError):
    """The engine for this language cannot run on this machine."""

    code = Code.ENGINE_UNAVAILABLE


class TurnNotRunnable(OperatorError):
    """A turn cannot run in this process. It stays as it is, and none of its approvals is used."""

    def __init__(self, message: str, *, turn_id: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.turn_id = turn_id


class DepsMissing(TurnNotRunnable):
    """The turn's agent declares `deps_type`, and this process has no deps for the turn."""

    code = TurnCode.DEPS_MISSING


class WrongAgent(TurnNotRunnable):
    """The turn belongs to agent *owner*, and this process would continue it with another one."""

    code = TurnCode.WRONG_AGENT

    def __init__(self, message: str, *, turn_id: str, owner: str, hint: str | None = None) -> None:
        super().__init__(message, turn_id=turn_id, hint=hint)
        self.owner = owner


class ProviderMismatch(OperatorError):
    """The session was opened with a model of another provider."""

    code = Code.PROVIDER_MISMATCH
    hint = "open it with a model of the same provider, or fork it: a fork may change its provider"

    def __init__(self, session_id: str, *, expected: str, actual: str) -> None:
        super().__init__(f"session {session_id!r} was talking to {expected}, not to {actual}")
        self.session_id, self.expected, self.actual = session_id, expected, actual


class ProviderUnconfigured(OperatorError):
    """The provider of a session's model lacks a setting, such as its API key."""

    code = Code.PROVIDER_UNCONFIGURED
    session_id: str = ""


class ProviderUnavailable(OperatorError):
    """No provider with this id is registered, so the session's model cannot be opened."""

    code = Code.PROVIDER_UNAVAILABLE
    session_id: str = ""

    def __init__(self, provider_id: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.provider_id = provider_id


class RuntimeClosed(OperatorError):
    """The runtime was closed while a turn ran."""

    code = Code.RUNTIME_CLOSED
    hint = "the turn is unfinished, not lost: continue it with `session.resume()`"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"the runtime was closed while turn {turn_id} ran")
        self.turn_id = turn_id


class OutsideError(StandfastError):
    """Something outside Standfast failed."""


class ToolError(OutsideError):
    """Raised by a tool to fail with a code of its own; guest code can catch it.

    Raise it from a handler: `raise ToolError("OUT_OF_STOCK", "none left")`. With `ends_turn` the model is not
    asked what to make of it: the turn stops as `tool_error`.
    """

    code: str = Code.TOOL_ERROR

    def __init__(self, code: str, message: str, *, hint: str | None = None, ends_turn: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.ends_turn = ends_turn


class EngineFailed(OutsideError):
    """The process that runs guest code died or cannot be started."""

    code = Code.INTERRUPTED
    retryable = True


class CodeExecutionRuntimeStopped(EngineFailed):
    """The process that ran a cell ended unexpectedly, or did not do the same again after a restart."""


class ModelError(OutsideError):
    """A model call failed. `retry_after_ms` is how long the provider asks to wait."""

    code: str = TurnCode.PROVIDER_ERROR

    def __init__(
        self,
        message: str,
        *,
        code: str = TurnCode.PROVIDER_ERROR,
        retryable: bool = False,
        retry_after_ms: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms


class StoreError(StandfastError):
    """What is stored cannot be read or written."""

    code = Code.IO_ERROR


class RecordCorrupt(StoreError):
    """A stored record does not match its digest."""

    code = Code.RECORD_CORRUPT
    hint = "the file was changed or damaged; restore it from a backup, or destroy that record"

    def __init__(self, what: str) -> None:
        super().__init__(f"stored record {what} does not match its digest")


class SchemaTooNew(StoreError):
    """The file was written by a later version of Standfast."""

    code = Code.SCHEMA_TOO_NEW


class StaleState(StoreError):
    """Another process changed the session between our read and our write."""

    code = Code.STALE_STATE
    retryable = True


class LeaseLost(StoreError):
    """Another worker took the session over; this write was refused."""

    code = Code.LEASE_LOST
    hint = "another process continues the turn"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"the lease on session {session_id!r} was lost, nothing was written")
        self.session_id = session_id


class StoreUnavailable(StoreError):
    """The store could not be written: disk full, locked or unreadable."""

    code = Code.STORE_UNAVAILABLE
    retryable = True


class InstructionsFailed(OutsideError):
    """The function that makes an agent's instructions raised, or returned no text; the turn did not begin."""

    code = Code.INSTRUCTIONS_FAILED


class PluginFailed(OutsideError):
    """A plugin raised, took too long, or answered with something that it must not answer with."""

    code = TurnCode.PLUGIN_ERROR

    def __init__(self, plugin_id: str, where: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"plugin {plugin_id!r} failed in {where}: {problem}", hint=hint)
        self.plugin_id = plugin_id


class PluginStateLost(PluginFailed):
    """A plugin could not say what it remembers, or could not take in what it had remembered."""


class PluginConflict(CallerError):
    """Two plugins claim the same name or slot."""

    code = Code.PLUGIN_CONFLICT

    def __init__(self, what: str, owner: str, other: str, *, hint: str | None = None) -> None:
        super().__init__(f"{what} is claimed by plugin {owner!r} and by plugin {other!r}", hint=hint)
        self.owner = owner
        self.other = other


class InvalidPlugin(CallerError):
    """A plugin is not built as plugins must be."""

    code = Code.INVALID_PLUGIN


class ProtocolError(CallerError):
    """The session's protocol cannot take this value."""

    code = Code.PROTOCOL_ERROR


class PluginActionError(CallerError):
    """A plugin's action cannot be called like this."""

    def __init__(self, name: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"action {name!r} {problem}", hint=hint)
        self.name = name


class UnknownAction(PluginActionError):
    """No plugin of the session has this action."""

    code = Code.METHOD_NOT_FOUND


class UnknownSession(PluginActionError):
    """The session that the action is to work on does not exist."""

    code = Code.SESSION_NOT_FOUND


class MissingSession(PluginActionError):
    """The action needs a session and was given none."""

    code = Code.SESSION_REQUIRED


class UnexpectedSession(PluginActionError):
    """The action takes no session and was given one."""

    code = Code.SESSION_NOT_ACCEPTED


class InternalError(StandfastError):
    """A defect of Standfast's own."""


class ToolConflict(InvalidToolName):
    """Two sources want the same tool id or tool name; nothing was changed."""

    code = Code.TOOL_CONFLICT
    hint = "rename one of the tools, or remove one of the sources"

    def __init__(self, kind: str, value: str, *, owner: str, other: str, tools: tuple[str, str]) -> None:
        super().__init__(
            f"{tools[0]!r} of {owner} and {tools[1]!r} of {other} both want the tool {kind} {value[:80]!r}"
        )
        self.kind, self.value, self.owner, self.other = kind, value, owner, other


class ToolOrphaned(UnknownTool):
    """The tool is known, but no source offers it any more."""

    code = Code.TOOL_ORPHANED

    def __init__(self, name: str, source: str) -> None:
        super().__init__(
            f"the tool {name[:80]!r} is gone: its source {source!r} no longer offers it",
            hint=f"it comes back, with its settings, when {source!r} is connected again",
        )
        self.name, self.source = name, source


class GenerationMismatch(CallerError):
    """The registry has changed since this state was read; nothing was applied."""

    code = Code.GENERATION_MISMATCH
    hint = "read the state again, change it, and apply that"

    def __init__(self, *, expected: int, actual: int) -> None:
        super().__init__(f"the tool state is of generation {expected}, the registry is at {actual}")
        self.expected, self.actual = expected, actual


class BadToolSource(OutsideError):
    """A tool source raised, or returned an invalid manifest or tool; nothing was changed."""

    code = Code.BAD_TOOL_SOURCE
    hint = "the source is at fault, or it is down"

    def __init__(self, source: str, what: str) -> None:
        super().__init__(f"tool source {source!r} {what}")
        self.source = source
