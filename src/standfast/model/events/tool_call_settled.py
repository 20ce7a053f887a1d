"""A tool call has its result, good or bad."""

from __future__ import annotations

import msgspec

from standfast.errors import ErrorObject
from standfast.model.call import ExternalCallRecord
from standfast.model.canonical import Json


class ToolCallSettled(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_settled"):
    """A tool call has its result, good or bad."""

    turn_id: str
    call_id: int
    value: Json = None
    error: ErrorObject | None = None
    record: ExternalCallRecord | None = None
