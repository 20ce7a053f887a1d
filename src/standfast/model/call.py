"""One call of a capability, and the record it leaves."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.capability import SideEffect
from standfast.model.limits import U32

MAX_TRACEBACKS: Final = 16
"""So many records of one turn or run keep their tracebacks; those of further calls are only logged."""


class CallStatus(enum.StrEnum):
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    DENIED = "denied"
    APPROVAL_PENDING = "approval_pending"


class ExternalCallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked and what came of it, as digests: the audit trail holds no payloads.

    `traceback` is that of the exception that the tool raised, for the tool's developer: at most 8 KB, without
    secrets of the usual forms. Neither the model nor guest code nor the events of a session have it.
    """

    name: str
    side_effect: SideEffect
    duration_ms: U32
    status: CallStatus
    request_digest: str
    response_digest: str | None = None
    error: ErrorObject | None = None
    traceback: str | msgspec.UnsetType = msgspec.UNSET
    """Left out where there is none."""

    def without_traceback(self) -> ExternalCallRecord:
        return msgspec.structs.replace(self, traceback=msgspec.UNSET) if self.traceback else self


class ToolCallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The call as guest code made it."""

    name: str
    args: list[Json] = msgspec.field(default_factory=list)
    kwargs: dict[str, Json] = msgspec.field(default_factory=dict)


class GuestException(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that guest code sees where a call failed."""

    type: str
    message: str


class SettledCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has its result: `value`, or `exception` where it failed.

    With `ends_turn` its tool wants the turn to stop over the failure.
    """

    record: ExternalCallRecord
    value: Json = None
    exception: GuestException | None = None
    ends_turn: bool = False
