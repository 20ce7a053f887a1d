"""Calls before they are executed."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.call import SettledCall, ToolCallContext
from holdfast.tools.registry import Bound, RegisteredTool


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that may be executed now."""

    tool: RegisteredTool
    context: ToolCallContext
    bound: Bound
    session_id: str
    call_id: int
    request_digest: str


@dataclass(frozen=True, slots=True)
class NeedsApproval:
    """A call that waits for a person."""

    call: Admitted


Admission = Admitted | NeedsApproval | SettledCall
