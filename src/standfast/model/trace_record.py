"""One line of a trace: a finished span, or an event.

Theory of operation
------------------- A span is one record, written when it ends, so a process that dies loses no finished span.
A turn is its own trace. The ids of its spans are derived from the turn's id and the span's key, so a process
that takes the turn over continues its trace.

Rule: messages, arguments and results are only in `body` under `content`; a sink sees them only if it asks for
them.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from standfast.model.canonical import Json
from standfast.model.limits import U64
from standfast.model.session import check_session_id

TraceKind = Literal[
    "turn", "model_call", "tool_call", "cell", "hook", "wait", "task", "usage", "event"
]  # fmt: skip

TraceStatus = Literal["", "ok", "error", "timeout", "denied", "expired", "cancelled", "open"]


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A span or an event of a session. Recording it changes nothing in the session.

    A span has a `span_id`, began at `started_at_ms` and took `duration_ms`; `parent_id` is the enclosing
    span. `name` is the name of the agent, model, tool or hook.
    """

    at_ms: U64
    name: str
    kind: TraceKind = "event"
    session_id: str = ""
    turn_id: str = ""
    span_id: str = ""
    parent_id: str = ""
    started_at_ms: U64 | None = None
    duration_ms: float | None = None
    status: TraceStatus = ""
    plugin_id: str = ""
    body: Json = None

    def __post_init__(self) -> None:
        if self.session_id:  # an event of the runtime itself has no session
            check_session_id(self.session_id)

    @property
    def trace_id(self) -> str:
        """The id of the record's trace, 32 hexadecimal digits: that of its turn, or else of its session."""
        return trace_id_of(self.turn_id, self.session_id)


def trace_id_of(turn_id: str, session_id: str = "") -> str:
    """Return the trace id of a turn, or of a session's events outside of turns."""
    return _digits(turn_id or f"session {session_id}", 16)


def span_id_of(turn_id: str, key: str = "turn") -> str:
    """Return the id of a turn's span, or of the span *key* in it: 16 hex digits, equal in every process."""
    return _digits(f"{turn_id} {key}", 8)


def _digits(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
