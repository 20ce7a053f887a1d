"""Directives: the actions that a plugin's hook may return, for the turn to execute.

`ALLOWED` in `plugins.directives` lists the directives of each stage.
"""

from __future__ import annotations

import msgspec

from standfast.errors import Code, ErrorObject, TurnCode
from standfast.model.canonical import Json
from standfast.model.message import UserMessage
from standfast.model.session import HoldsSessionIds, SessionIdField


class AbortTurn(msgspec.Struct, frozen=True, kw_only=True, tag="abort_turn"):
    """End the turn now. It takes precedence over everything else."""

    message: str
    code: str = TurnCode.PLUGIN_ABORT
    hint: str | None = None


class EnqueueMessages(msgspec.Struct, frozen=True, kw_only=True, tag="enqueue_messages"):
    """Send messages to the model: before a turn, at its next checkpoint, or after it in a new turn."""

    messages: tuple[UserMessage, ...]


class SessionRequest(HoldsSessionIds, frozen=True, kw_only=True, omit_defaults=True):
    """A session to create. Without an id it is named after the requesting turn."""

    session_id: SessionIdField | None = None
    first_input: UserMessage | None = None
    agent: str | None = None


class CreateSession(msgspec.Struct, frozen=True, kw_only=True, tag="create_session"):
    """Create a session exactly once, even if the process dies."""

    request: SessionRequest


class ReplaceToolArgs(msgspec.Struct, frozen=True, kw_only=True, tag="replace_tool_args"):
    """Call the tool with these arguments instead."""

    arguments: dict[str, Json]


class ShortCircuitTool(msgspec.Struct, frozen=True, kw_only=True, tag="short_circuit_tool"):
    """Settle a call with this result, instead of executing it or in place of its own; see also `ask_person`.

    If it replaces a call's own result, the model reads `texts` beside the value, and the call's own texts are
    dropped.
    """

    value: Json = None
    error: ErrorObject | None = None
    texts: tuple[str, ...] = ()


def deny_call(reason: str, *, hint: str | None = None) -> ShortCircuitTool:
    """Return a directive that denies the call; the model sees *reason*."""
    return ShortCircuitTool(error=ErrorObject(code=Code.PERMISSION_DENIED, message=reason, hint=hint))


def ask_person(reason: str) -> ShortCircuitTool:
    """Return a directive that makes the call wait for a person, under any approval policy."""
    return ShortCircuitTool(error=ErrorObject(code=Code.WAITING_FOR_APPROVAL, message=reason))


class RuntimeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin's event for the session's observers; it becomes a node of the history."""

    kind: str
    body: Json = None


class EmitRuntimeEvents(msgspec.Struct, frozen=True, kw_only=True, tag="emit_runtime_events"):
    """Send events to the session's observers."""

    events: tuple[RuntimeEvent, ...]


class EmitTrace(msgspec.Struct, frozen=True, kw_only=True, tag="emit_trace"):
    """Add a record to the trace."""

    name: str
    body: Json = None


PluginDirective = (
    AbortTurn | EnqueueMessages | CreateSession | ReplaceToolArgs | ShortCircuitTool | EmitRuntimeEvents
    | EmitTrace
)  # fmt: skip
