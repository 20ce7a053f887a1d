"""Every way Standfast fails, as one tree and one table of codes.

The first split is whose fault it is::

    StandfastError
    ├── CallerError            what was asked for cannot be done as asked
    │   ├── InvalidArgument        INVALID_ARGUMENT
    │   │   └── ValueTooLarge      REQUEST_TOO_LARGE
    │   ├── InvalidSessionId       INVALID_SESSION_ID
    │   ├── InvalidToolName        INVALID_TOOL_NAME
    │   ├── ToolNameTaken          INVALID_TOOL_NAME
    │   ├── ToolConflict           INVALID_TOOL_NAME
    │   ├── UnknownTool            UNKNOWN_TOOL
    │   ├── ToolOrphaned           UNKNOWN_TOOL
    │   ├── GenerationMismatch     INVALID_ARGUMENT
    │   ├── SessionNotFound        SESSION_NOT_FOUND
    │   ├── SessionExists          INVALID_ARGUMENT
    │   ├── SessionWaiting         WAITING_FOR_APPROVAL
    │   ├── SessionBusy            INVALID_ARGUMENT
    │   ├── TurnNotFound           INVALID_ARGUMENT
    │   ├── TurnUnfinished         WAITING_FOR_APPROVAL, INTERRUPTED
    │   ├── TurnWaitsForItself     INVALID_ARGUMENT
    │   ├── NobodyWaits            WAITING_FOR_APPROVAL
    │   ├── IdempotencyConflict    INVALID_ARGUMENT
    │   ├── InputNotFound          INVALID_ARGUMENT
    │   ├── NodeNotFound           INVALID_ARGUMENT
    │   ├── StaleBranch            INVALID_ARGUMENT
    │   ├── TokenNotFound          INVALID_ARGUMENT
    │   ├── TokenAlreadyUsed       INVALID_ARGUMENT
    │   ├── ApprovalNotFound       INVALID_ARGUMENT
    │   ├── ApprovalAlreadyDecided INVALID_ARGUMENT
    │   ├── TaskExists             INVALID_ARGUMENT
    │   ├── TaskNotFound           INVALID_ARGUMENT
    │   ├── MonitorNotFound        INVALID_ARGUMENT
    │   ├── TriggerNotFound        INVALID_ARGUMENT
    │   ├── SignatureRefused       PERMISSION_DENIED (`runtime.triggers`)
    │   ├── ServiceUnavailable     UNSUPPORTED_FEATURE
    │   ├── InvalidPlugin          INVALID_ARGUMENT
    │   ├── PluginConflict         INVALID_ARGUMENT
    │   ├── ProtocolError          INVALID_ARGUMENT
    │   ├── PluginActionError
    │   │   ├── UnknownAction      METHOD_NOT_FOUND
    │   │   ├── UnknownSession     SESSION_NOT_FOUND
    │   │   ├── MissingSession     INVALID_ARGUMENT
    │   │   └── UnexpectedSession  INVALID_ARGUMENT
    │   ├── ScriptRefused          SYNTAX_ERROR, UNSUPPORTED_FEATURE (`sandbox.typescript.script`)
    │   └── SnapshotRefused        SNAPSHOT_CORRUPT, SNAPSHOT_VERSION_MISMATCH,
    │                              SNAPSHOT_CAPABILITY_MISMATCH
    ├── OperatorError          the installation or its configuration is wrong
    │   ├── NotConfigured          IO_ERROR
    │   ├── ProviderMismatch       INVALID_ARGUMENT
    │   ├── CodeExecutionUnavailable   UNSUPPORTED_FEATURE
    │   ├── TurnNotRunnable        a turn cannot run in this process and stays as it is
    │   │   ├── DepsMissing        DEPS_MISSING
    │   │   └── WrongAgent         WRONG_AGENT
    │   └── RuntimeClosed          INTERRUPTED
    ├── OutsideError           a tool, an engine or the network failed
    │   ├── ToolError              the tool author's own code, or TOOL_ERROR
    │   ├── BadToolSource          TOOL_ERROR
    │   ├── CommandNotStarted      IO_ERROR (`runtime.monitors.command`)
    │   ├── EngineFailed           INTERRUPTED
    │   │   └── CodeExecutionRuntimeStopped
    │   ├── InstructionsFailed     RUNTIME_ERROR
    │   ├── PluginFailed           PLUGIN_ERROR
    │   │   └── PluginStateLost    PLUGIN_ERROR
    │   └── ModelError             PROVIDER_ERROR, CONTEXT_OVERFLOW, RATE_LIMITED or the provider's own
    ├── StoreError             what is stored cannot be read or written
    │   ├── RecordCorrupt          IO_ERROR
    │   ├── SchemaTooNew           IO_ERROR
    │   ├── StaleState             INTERRUPTED
    │   ├── LeaseLost              INTERRUPTED
    │   └── StoreUnavailable       IO_ERROR
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
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TOOL_ERROR = "TOOL_ERROR"
    IO_ERROR = "IO_ERROR"
    SERIALIZE_ERROR = "SERIALIZE_ERROR"
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
    "validation_error": (
        "SYNTAX_ERROR TYPE_ERROR UNKNOWN_TOOL UNSUPPORTED_FEATURE RESULT_NOT_SERIALIZABLE INVALID_ARGUMENT "
        "INVALID_SESSION_ID INVALID_TOOL_NAME SESSION_NOT_FOUND METHOD_NOT_FOUND SNAPSHOT_CORRUPT "
        "SNAPSHOT_VERSION_MISMATCH SNAPSHOT_CAPABILITY_MISMATCH"
    ),
    "runtime_error": "RUNTIME_ERROR TOOL_ERROR IO_ERROR SERIALIZE_ERROR",
    "timeout": "TIMEOUT_WALL TIMEOUT_CPU TIMEOUT_TOOL",
    "resource_exhausted": (
        "MEMORY_EXCEEDED STDOUT_EXCEEDED EXTERNAL_CALLS_EXCEEDED STACK_OVERFLOW REQUEST_TOO_LARGE "
        "RESPONSE_TOO_LARGE RATE_LIMITED"
    ),
    "permission_denied": "PERMISSION_DENIED",
    "cancelled": "CANCELLED",
    "waiting_for_approval": "WAITING_FOR_APPROVAL",
    "interrupted": "INTERRUPTED",
}

STATUS_OF_CODE: Final[dict[str, str]] = {
    code: status for status, codes in _STATUS_GROUPS.items() for code in codes.split()
}
"""The run status that each code means. A tool author's own code is a runtime error."""


class StandfastError(Exception):
    """The root of the tree. `code` is stable, `hint` says what to do about it."""

    code: str = Code.RUNTIME_ERROR
    retryable: bool = False

    def __init__(self, message: str, *, hint: str | None = None, span: Span | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.span = span

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

    def __init__(self, limit: str) -> None:
        super().__init__(f"the value is too large: {limit}", hint="pass less at once")
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
    """Two owners want one capability name."""

    def __init__(self, name: str, owner: str, other: str) -> None:
        super().__init__(
            f"capability {name!r} of {other} is already registered by {owner}",
            hint="rename one of them with @tool(name=...)",
        )
        self.name, self.owner, self.other = name, owner, other


class UnknownTool(CallerError):
    """No capability has this name."""

    code = Code.UNKNOWN_TOOL


class SessionNotFound(CallerError):
    """No session has this id."""

    code = Code.SESSION_NOT_FOUND

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"there is no session {session_id!r}", hint="`standfast sessions list` shows those that exist"
        )


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
    """A new session was to have an id that another one has."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is a session {session_id!r} already", hint="choose another id")


class SessionBusy(CallerError):
    """Another worker runs a turn of the session right now."""

    retryable = True

    def __init__(self, session_id: str, owner: str) -> None:
        super().__init__(
            f"session {session_id!r} is being worked on by {owner}", hint="wait until its turn has ended"
        )
        self.session_id, self.owner = session_id, owner


class TurnNotFound(CallerError):
    """No turn has this id, or it has ended and cannot go on."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(
            f"there is no turn {turn_id!r} that could go on", hint="`standfast sessions show` lists the turns"
        )
        self.turn_id = turn_id


class TurnUnfinished(CallerError):
    """The session has a turn that waits, or that was left by its process; it comes first."""

    def __init__(self, session_id: str, turn_id: str, *, waits: bool) -> None:
        state = "waits" if waits else "was interrupted"
        super().__init__(
            f"turn {turn_id} of session {session_id!r} {state} and comes first",
            hint="decide what it waits for, cancel it, or queue the input behind it"
            if waits
            else "`session.resume()` or `standfast recover` goes on with it",
        )
        self.session_id, self.turn_id, self.waits = session_id, turn_id, waits
        self.code = Code.WAITING_FOR_APPROVAL if waits else Code.INTERRUPTED


class TurnWaitsForItself(CallerError):
    """A turn was to wait for something that waits for this turn."""

    def __init__(self, session_id: str, awaited: str) -> None:
        what = "itself" if session_id == awaited else f"session {awaited!r}, which waits for it"
        super().__init__(
            f"the turn of session {session_id!r} would wait for {what}",
            hint="queue the input, or start the turn from a background task, and do not wait for it here",
        )
        self.session_id, self.awaited = session_id, awaited


class NobodyWaits(CallerError):
    """A turn without a runtime came to a call that has to wait: nobody could go on with it."""

    code = Code.WAITING_FOR_APPROVAL

    def __init__(self, kinds: str) -> None:
        super().__init__(
            f"the turn has to wait ({kinds}), and a run without a runtime is over when it does",
            hint='use a session: `async with Runtime("standfast.db") as runtime`',
        )


class IdempotencyConflict(CallerError):
    """The key was used before, with other content."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"idempotency key {key[:80]!r} was used before with other content", hint="use a key per input"
        )
        self.key = key


class InputNotFound(CallerError):
    """No waiting input has this id: it was claimed, withdrawn, or never there."""

    def __init__(self, input_id: str) -> None:
        super().__init__(f"there is no waiting input {input_id!r}")
        self.input_id = input_id


class NodeNotFound(CallerError):
    """No node of this session has this id."""

    def __init__(self, node_id: str) -> None:
        super().__init__(
            f"there is no node {node_id[:80]!r} in this session", hint="`standfast sessions show` lists them"
        )
        self.node_id = node_id


class StaleBranch(CallerError):
    """A node that must be on the active path is not; nothing was written."""

    def __init__(self, current_leaf_node_id: str | None) -> None:
        super().__init__(
            f"the active path has moved on to {current_leaf_node_id}", hint="read the path again, then append"
        )
        self.current_leaf_node_id = current_leaf_node_id


class TokenNotFound(CallerError):
    """No call waits, or can still wait, for this token."""

    def __init__(self, token: str) -> None:
        super().__init__(f"no unfinished turn knows the token {token[:80]!r}")


class TokenAlreadyUsed(CallerError):
    """A completion is delivered once; this one has been, or came too late."""

    def __init__(self, token: str) -> None:
        super().__init__(f"token {token[:80]!r} was used already, or its time is over")


class ApprovalNotFound(CallerError):
    """No approval request has this id."""

    def __init__(self, approval_id: str) -> None:
        super().__init__(
            f"there is no approval {approval_id!r}", hint="`standfast approvals list` shows those that exist"
        )


class ApprovalAlreadyDecided(CallerError):
    """An approval is decided once; this one has been."""

    def __init__(self, approval_id: str, state: str) -> None:
        super().__init__(
            f"approval {approval_id} is already {state}",
            hint="a decision is used once; run the code again to ask anew",
        )
        self.approval_id, self.state = approval_id, state


class TaskExists(CallerError):
    """A live task of the session has this id."""

    def __init__(self, session_id: str, task_id: str) -> None:
        super().__init__(
            f"session {session_id!r} has a task {task_id!r} that is not over",
            hint="cancel it first, or use another id",
        )


class TaskNotFound(CallerError):
    """The session has no task of this id."""

    def __init__(self, session_id: str, task_id: str) -> None:
        super().__init__(f"session {session_id!r} has no task {task_id[:128]!r}")


class MonitorNotFound(CallerError):
    """The session has no monitor of this id."""

    def __init__(self, session_id: str, monitor_id: str) -> None:
        super().__init__(f"session {session_id!r} has no monitor {monitor_id[:128]!r}")


class TriggerNotFound(CallerError):
    """There is no trigger of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no trigger {name[:128]!r}", hint="`standfast triggers list` shows them")


class ServiceUnavailable(CallerError):
    """A service of the runtime that this session, or this place in it, does not have."""

    code = Code.UNSUPPORTED_FEATURE

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
    """Something that this call needs is not set up."""


class CodeExecutionUnavailable(OperatorError):
    """Code of this language cannot be run here."""

    code = Code.UNSUPPORTED_FEATURE


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
    """A session was carried on by another provider than the one it was opened with."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, session_id: str, *, expected: str, actual: str) -> None:
        super().__init__(
            f"session {session_id!r} was talking to {expected}, not to {actual}",
            hint="open it with a model of the same provider, or fork it: a fork may change its provider",
        )
        self.session_id, self.expected, self.actual = session_id, expected, actual


class RuntimeClosed(OperatorError):
    """The runtime was closed while a turn ran."""

    code = Code.INTERRUPTED

    def __init__(self, turn_id: str) -> None:
        super().__init__(
            f"the runtime was closed while turn {turn_id} ran",
            hint="the turn is unfinished, not lost: `session.resume()` goes on with it",
        )
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
    """The process that ran guest code died or cannot be started."""

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

    def __init__(self, what: str) -> None:
        super().__init__(
            f"stored record {what} does not match its digest",
            hint="the file was changed or damaged; restore it from a backup, or destroy that record",
        )


class SchemaTooNew(StoreError):
    """The file was written by a later version of Standfast."""


class StaleState(StoreError):
    """Another process changed the session between our read and our write."""

    code = Code.INTERRUPTED
    retryable = True


class LeaseLost(StoreError):
    """Another worker has taken the session over; what this one still wanted to write was refused."""

    code = Code.INTERRUPTED

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"the lease on session {session_id!r} was lost, nothing was written",
            hint="another process goes on with the turn",
        )
        self.session_id = session_id


class StoreUnavailable(StoreError):
    """The store could not be written: disk full, locked or unreadable."""

    retryable = True


class InstructionsFailed(OutsideError):
    """The function that makes an agent's instructions raised, or returned no text; the turn did not begin."""


class PluginFailed(OutsideError):
    """A plugin raised, took too long, or answered with something that it must not answer with."""

    code = TurnCode.PLUGIN_ERROR

    def __init__(self, plugin_id: str, where: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"plugin {plugin_id!r} failed in {where}: {problem}", hint=hint)
        self.plugin_id = plugin_id


class PluginStateLost(PluginFailed):
    """A plugin could not say what it remembers, or could not take in what it had remembered."""


class PluginConflict(CallerError):
    """Two plugins claim the same thing."""

    def __init__(self, what: str, owner: str, other: str, *, hint: str | None = None) -> None:
        super().__init__(f"{what} is claimed by plugin {owner!r} and by plugin {other!r}", hint=hint)
        self.owner = owner
        self.other = other


class InvalidPlugin(CallerError):
    """A plugin is not made as plugins are."""


class ProtocolError(CallerError):
    """The session's protocol does not take what it was given."""


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
    """The action needs a session, and was given none."""


class UnexpectedSession(PluginActionError):
    """The action takes no session, and was given one."""


class InternalError(StandfastError):
    """A defect of Standfast's own."""


class ToolConflict(InvalidToolName):
    """Two sources want one tool id or one tool name; nothing was changed."""

    def __init__(self, kind: str, value: str, *, owner: str, other: str, tools: tuple[str, str]) -> None:
        super().__init__(
            f"{tools[0]!r} of {owner} and {tools[1]!r} of {other} both want the tool {kind} {value[:80]!r}",
            hint="rename one of the tools, or remove one of the sources",
        )
        self.kind, self.value, self.owner, self.other = kind, value, owner, other


class ToolOrphaned(UnknownTool):
    """The tool is known, but nothing offers it any more."""

    def __init__(self, name: str, source: str) -> None:
        super().__init__(
            f"the tool {name[:80]!r} is gone: its source {source!r} no longer offers it",
            hint=f"it comes back, with its settings, when {source!r} is connected again",
        )
        self.name, self.source = name, source


class GenerationMismatch(CallerError):
    """The tools have changed since the state was read; nothing was changed by it."""

    def __init__(self, *, expected: int, actual: int) -> None:
        super().__init__(
            f"the tool state is of generation {expected}, the registry is at {actual}",
            hint="read the state again, change it, and apply that",
        )
        self.expected, self.actual = expected, actual


class BadToolSource(OutsideError):
    """A source of tools raised, or answered with what is no manifest or no tool; nothing was changed."""

    code: str = Code.TOOL_ERROR

    def __init__(self, source: str, what: str) -> None:
        super().__init__(f"tool source {source!r} {what}", hint="the source is at fault, or it is down")
        self.source = source
