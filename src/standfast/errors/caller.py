"""Errors of the caller: the request cannot be done as asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from standfast.errors.codes import Code, ErrorObject
from standfast.errors.kinds import CallerError


class InvalidArgument(CallerError):
    """An argument is invalid."""


class ValueTooLarge(InvalidArgument):
    """A value exceeds its size limit in bytes or parts. `limit` describes the limit."""

    code = Code.REQUEST_TOO_LARGE
    hint = "pass less at once"

    def __init__(self, limit: str) -> None:
        super().__init__(f"the value is too large: {limit}")
        self.limit = limit


class RequestTooLarge(CallerError):
    """The code or the inputs of a run are larger than the sandbox accepts."""

    code = Code.REQUEST_TOO_LARGE


class InvalidSessionId(CallerError):
    """A session id has invalid characters or an invalid length, or is reserved."""

    code = Code.INVALID_SESSION_ID
    hint = (
        "use 1 to 64 ASCII letters, digits, '_' or '-'; "
        "standfast.session_id_from(text) makes such an id from any text"
    )

    def __init__(
        self, value: object, problem: str = "must match ^[a-zA-Z0-9_-]{1,64}$", *, hint: str | None = None
    ) -> None:
        super().__init__(f"session id {str(value)[:80]!r} {problem}", hint=hint)


class InvalidToolName(CallerError):
    """A capability's name cannot be called from guest code."""

    code = Code.INVALID_TOOL_NAME


class ToolNameTaken(InvalidToolName):
    """Two owners register the same capability name."""

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
    """The session has a run that waits for a person, so nothing else can run in it."""

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
        super().__init__(f"session {session_id!r} already exists")


class SessionBusy(CallerError):
    """Another worker is running a turn of this session."""

    code = Code.SESSION_BUSY
    retryable = True
    hint = "wait until its turn has ended"

    def __init__(self, session_id: str, owner: str) -> None:
        super().__init__(f"session {session_id!r} is in use by {owner}")
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
            f"turn {turn_id} of session {session_id!r} {state} and must end first",
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
        super().__init__(f"the turn has to wait ({kinds}), which is impossible without a runtime")


class IdempotencyConflict(CallerError):
    """The idempotency key was already used with other content."""

    code = Code.IDEMPOTENCY_CONFLICT
    hint = "use a different key for each input"

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
    hint = "read the active path again, then append"

    def __init__(self, current_leaf_node_id: str | None) -> None:
        super().__init__(f"the active path has moved on to {current_leaf_node_id}")
        self.current_leaf_node_id = current_leaf_node_id


class TokenNotFound(CallerError):
    """No unfinished call waits for this token."""

    code = Code.TOKEN_NOT_FOUND

    def __init__(self, token: str) -> None:
        super().__init__(f"no unfinished turn knows the token {token[:80]!r}")


class TokenAlreadyUsed(CallerError):
    """The token was already used, or its deadline has passed."""

    code = Code.TOKEN_ALREADY_USED

    def __init__(self, token: str) -> None:
        super().__init__(f"token {token[:80]!r} was already used, or its deadline has passed")


class ApprovalNotFound(CallerError):
    """No approval request has this id."""

    code = Code.APPROVAL_NOT_FOUND
    hint = "`standfast approvals list` shows those that exist"

    def __init__(self, approval_id: str) -> None:
        super().__init__(f"there is no approval {approval_id!r}")


class GrantNotFound(CallerError):
    """No grant has this id."""

    code = Code.GRANT_NOT_FOUND
    hint = "`standfast approvals grants` shows those that exist"

    def __init__(self, grant_id: str) -> None:
        super().__init__(f"there is no grant {grant_id!r}")


class JournalNotKept(CallerError):
    """The journal of an ended turn is not, or no longer, in the store."""

    code = Code.JOURNAL_NOT_KEPT
    hint = "set Runtime(keep_journals=SECONDS) to keep the journals of ended turns"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"the journal of turn {turn_id!r} is not kept")


class ApprovalAlreadyDecided(CallerError):
    """The approval was already decided; a decision is final."""

    code = Code.APPROVAL_ALREADY_DECIDED
    hint = "run the code again to request another approval; a decision is final"

    def __init__(self, approval_id: str, state: str) -> None:
        super().__init__(f"approval {approval_id} is already {state}")
        self.approval_id, self.state = approval_id, state


class TaskExists(CallerError):
    """The session has a running task with this id."""

    code = Code.TASK_EXISTS
    hint = "cancel it first, or use another id"

    def __init__(self, session_id: str, task_id: str) -> None:
        super().__init__(f"session {session_id!r} already has a live task {task_id!r}")


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


class RequestRefused(CallerError):
    """A server refused a request with the HTTP response `status` and `headers`."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.code, self.headers = status, code, dict(headers or {})


class SignatureRefused(CallerError):
    """A webhook's signature does not match its body and secret."""

    code = Code.PERMISSION_DENIED

    def __init__(self, source: str) -> None:
        super().__init__(
            f"the signature of a message from {source[:128]!r} is wrong",
            hint="it is the HMAC-SHA256 of the raw body in hex; both sides must have the same secret",
        )


class ServiceUnavailable(CallerError):
    """This service is not available in this session, hook or server."""

    code = Code.SERVICE_UNAVAILABLE

    def __init__(self, service: str, why: str) -> None:
        super().__init__(f"{service} is unavailable in this session: {why}")
        self.service = service


class SnapshotRefused(CallerError):
    """A snapshot cannot be restored here; `code` gives the reason."""

    code: str

    def __init__(self, code: Code, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ScriptRefused(CallerError):
    """Code that cannot be run as written. `problems` has all that were found, line by line."""

    def __init__(self, problems: Sequence[ErrorObject]) -> None:
        first = problems[0]
        super().__init__(first.message, hint=first.hint, span=first.span)
        self.code = first.code
        self.problems = problems


class TypeCheckFailed(CallerError):
    """The code could not be checked within its limits; `code` names the limit."""

    hint = "check less code at once"

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class UnreadableInput(CallerError):
    """A cell input is neither the text nor the JSON that its media type claims."""

    code = Code.RUNTIME_ERROR


class PluginConflict(CallerError):
    """Two plugins claim the same name or slot."""

    code = Code.PLUGIN_CONFLICT

    def __init__(self, what: str, owner: str, other: str, *, hint: str | None = None) -> None:
        super().__init__(f"{what} is claimed by plugin {owner!r} and by plugin {other!r}", hint=hint)
        self.owner = owner
        self.other = other


class InvalidPlugin(CallerError):
    """A plugin does not conform to the plugin interface."""

    code = Code.INVALID_PLUGIN


class ProtocolError(CallerError):
    """The session's protocol does not accept this value."""

    code = Code.PROTOCOL_ERROR


class PluginActionError(CallerError):
    """A plugin action was called incorrectly."""

    def __init__(self, name: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"action {name!r} {problem}", hint=hint)
        self.name = name


class UnknownAction(PluginActionError):
    """No plugin of the session has this action."""

    code = Code.METHOD_NOT_FOUND


class UnknownSession(PluginActionError):
    """The session that the action targets does not exist."""

    code = Code.SESSION_NOT_FOUND


class MissingSession(PluginActionError):
    """The action needs a session and was given none."""

    code = Code.SESSION_REQUIRED


class UnexpectedSession(PluginActionError):
    """The action takes no session and was given one."""

    code = Code.SESSION_NOT_ACCEPTED


class ToolConflict(InvalidToolName):
    """Two sources offer the same tool id or name; nothing was changed."""

    code = Code.TOOL_CONFLICT
    hint = "rename one of the tools, or remove one of the sources"

    def __init__(self, kind: str, value: str, *, owner: str, other: str, tools: tuple[str, str]) -> None:
        super().__init__(
            f"{tools[0]!r} of {owner} and {tools[1]!r} of {other} both claim the tool {kind} {value[:80]!r}"
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
    hint = "read the state again, and apply the change to that"

    def __init__(self, *, expected: int, actual: int) -> None:
        super().__init__(f"the tool state is of generation {expected}, the registry is at {actual}")
        self.expected, self.actual = expected, actual


class AccessDenied(CallerError):
    """Access to a path or an address was not granted. Nothing was opened or sent."""

    code = Code.PERMISSION_DENIED


class RepliesLeftOver(CallerError):
    """A scripted model was closed with unused replies; *first* summarizes the first of them."""

    hint = "remove them from the script, or create it with strict=False"

    def __init__(self, model_id: str, *, total: int, asked: int, first: str) -> None:
        super().__init__(
            f"{total - asked} of the {total} replies of {model_id} were not used; "
            f"the first of them is reply {asked + 1}: {first!r}"
        )
        self.count = total - asked
