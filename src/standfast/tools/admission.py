"""Calls before they are executed."""

from __future__ import annotations

from typing import Any

import msgspec

from standfast.model.capability import SettledCall, ToolCallContext
from standfast.model.limits import SANDBOX_TIMEOUT_MS
from standfast.tools.context import RunContext
from standfast.tools.registered_tool import Bound, RegisteredTool


class Admitted(msgspec.Struct, frozen=True):
    """A call that may be executed now. `attempt` counts its executions in a turn, and its waits, from 1."""

    tool: RegisteredTool
    context: ToolCallContext
    bound: Bound
    session_id: str
    call_id: int
    request_digest: str
    run_context: RunContext[Any] | None = None
    timeout_ms: int = SANDBOX_TIMEOUT_MS
    attempt: int = 1


class NeedsApproval(msgspec.Struct, frozen=True):
    """A call that waits for a person."""

    call: Admitted


Admission = Admitted | NeedsApproval | SettledCall
