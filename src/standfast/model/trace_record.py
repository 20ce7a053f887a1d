"""One line of a trace: a span that is over, or an event.

Theory of operation
-------------------
A span is one record, written when it ends, so a process that dies loses no span that had ended. A turn is a
trace of its own. The ids of its spans are derived from the turn's id and the span's key, so a process that
takes the turn over continues its trace.

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
    """Something worth knowing about a session that changes nothing in it.

    A span has a `span_id`, began at `started_at_ms` and took `duration_ms`; `parent_id` is the span that it
    is a part of. `name` is whose span it is: the agent's, the model's, the tool's, the hook's.
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
        if self.session_id:  # an event of the runtime itself belongs to no session
            check_session_id(self.session_id)

    @property
    def trace_id(self) -> str:
        """The trace that it belongs to, as 32 hexadecimal digits: that of its turn, else of its session."""
        return trace_id_of(self.turn_id, self.session_id)


def trace_id_of(turn_id: str, session_id: str = "") -> str:
    """The trace of a turn, or of what happens in a session outside of turns."""
    return _digits(turn_id or f"session {session_id}", 16)


def span_id_of(turn_id: str, key: str = "turn") -> str:
    """The span of a turn, or of what has *key* in it: the same in every process, 16 hexadecimal digits."""
    return _digits(f"{turn_id} {key}", 8)


def _digits(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
