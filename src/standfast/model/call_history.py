"""A tool call as recorded in its turn's journal: attempts, waits, the result, and the calls of its code."""

from __future__ import annotations

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.capability import ExternalCallRecord
from standfast.model.message import ToolCall


class CallAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution of a call, or the check before one.

    `outcome` is running, timed_out, interrupted (its process ended), cancelled, the kind of wait that it led
    to (approval, timer, completion), or the status of the result.
    """

    number: int
    began_ms: int
    ended_ms: int | None = None
    outcome: str = "running"


class CallHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call with its attempts. `inner` has the calls that its code made, in order."""

    call: ToolCall
    attempts: tuple[CallAttempt, ...] = ()
    value: Json = None
    error: ErrorObject | None = None
    record: ExternalCallRecord | None = None
    settled: bool = False
    inner: tuple[CallHistory, ...] = ()
