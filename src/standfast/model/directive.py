"""What a plugin may ask of the turn that it watches.

Hooks return directives; the turn carries them out. Not every directive makes sense at every stage: `ALLOWED`
in `plugins.directives` says which do.
"""

from __future__ import annotations

import msgspec

from standfast.errors import Code, ErrorObject, TurnCode
from standfast.model.canonical import Json
from standfast.model.message import UserMessage
from standfast.model.session import SessionIdField, check_session_id


class AbortTurn(msgspec.Struct, frozen=True, kw_only=True, tag="abort_turn"):
    """End the turn now. It beats everything else."""

    message: str
    code: str = TurnCode.PLUGIN_ABORT
    hint: str | None = None


class EnqueueMessages(msgspec.Struct, frozen=True, kw_only=True, tag="enqueue_messages"):
    """Say this to the model: at once before a turn, at the next checkpoint within one, after it in a turn of
    its own."""

    messages: tuple[UserMessage, ...]


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session to be made. Without an id it is named after the turn that asks for it."""

    session_id: SessionIdField | None = None
    first_input: UserMessage | None = None
    agent: str | None = None

    def __post_init__(self) -> None:
        if self.session_id is not None:
            check_session_id(self.session_id)


class CreateSession(msgspec.Struct, frozen=True, kw_only=True, tag="create_session"):
    """Make a session, once, whatever happens to the process."""

    request: SessionRequest


class ReplaceToolArgs(msgspec.Struct, frozen=True, kw_only=True, tag="replace_tool_args"):
    """Call the tool with these arguments instead."""

    arguments: dict[str, Json]


class ShortCircuitTool(msgspec.Struct, frozen=True, kw_only=True, tag="short_circuit_tool"):
    """Before a call: do not execute it, this is its result. After it: this is its result instead.

    An error with the code WAITING_FOR_APPROVAL is no result yet: it asks a person (`ask_person`).
    """

    value: Json = None
    error: ErrorObject | None = None


def deny_call(reason: str, *, hint: str | None = None) -> ShortCircuitTool:
    """The call is not made; the model is told why."""
    return ShortCircuitTool(error=ErrorObject(code=Code.PERMISSION_DENIED, message=reason, hint=hint))


def ask_person(reason: str) -> ShortCircuitTool:
    """The call is made if a person approves it, whatever the tool's own policy is."""
    return ShortCircuitTool(error=ErrorObject(code=Code.WAITING_FOR_APPROVAL, message=reason))


class RuntimeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a plugin tells whoever observes the session; it becomes a node of the history."""

    kind: str
    body: Json = None


class EmitRuntimeEvents(msgspec.Struct, frozen=True, kw_only=True, tag="emit_runtime_events"):
    """Tell whoever observes the session."""

    events: tuple[RuntimeEvent, ...]


class EmitTrace(msgspec.Struct, frozen=True, kw_only=True, tag="emit_trace"):
    """Put a record into the trace."""

    name: str
    body: Json = None


PluginDirective = (
    AbortTurn
    | EnqueueMessages
    | CreateSession
    | ReplaceToolArgs
    | ShortCircuitTool
    | EmitRuntimeEvents
    | EmitTrace
)
