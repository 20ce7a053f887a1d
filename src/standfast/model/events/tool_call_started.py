"""A tool call is being executed."""

from __future__ import annotations

import msgspec

from standfast.model.message import ToolCall


class ToolCallStarted(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_started"):
    """A tool call is being executed."""

    turn_id: str
    call: ToolCall
