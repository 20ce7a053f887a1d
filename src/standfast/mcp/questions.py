"""Approvals as questions to the person at an MCP client.

A client of 2026-07-28 is asked with `input_required`, one of 2025-11-25 with an elicitation; a client that
supports neither, or may not approve, gets instructions for deciding. Rule: a decision is accepted only from
the client's person, never from a tool argument, because a model writes those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from standfast.mcp.callers import McpCaller
from standfast.mcp.connection import STATELESS
from standfast.model.approval import Approval
from standfast.model.canonical import Json

if TYPE_CHECKING:
    import mcp_types as types

_DECISION: Final = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Allow this call"},
        "reason": {"type": "string", "title": "Reason for a refusal, shown to the model"},
    },
    "required": ["approve"],
}

DECIDE_WITH: Final = "standfast approvals approve"

Decision = tuple[bool, dict[str, Any] | None, str | None]
"""Whether a call is approved, the answer to its question, the reason for a denial."""


def can_ask(ctx: Any, caller: McpCaller) -> bool:
    """Return whether the person at the client can be asked, and may decide."""
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None and caller.may("approve")


def input_requests(pending: list[Approval]) -> dict[str, Any]:
    """Return the questions for a client of 2026-07-28, by approval id."""
    import mcp_types as types

    return {one.approval_id: types.ElicitRequest(params=_question(one)) for one in pending}


def decisions(pending: list[Approval], responses: Any) -> dict[str, Decision]:
    """Return the answers of the client's person, by approval id; ignore answers to anything else."""
    import mcp_types as types

    known = {one.approval_id: one for one in pending}
    return {
        key: _decision(known[key], answer)
        for key, answer in (responses or {}).items()
        if key in known and isinstance(answer, types.ElicitResult) and answer.action != "cancel"
    }


async def ask(ctx: Any, caller: McpCaller, pending: list[Approval]) -> Any:
    """Return the person's decisions, {} if the person cannot be asked, or an `input_required` result."""
    import mcp_types as types

    if not pending or not can_ask(ctx, caller):
        return {}
    if ctx.protocol_version >= STATELESS:
        return types.InputRequiredResult(result_type="input_required", input_requests=input_requests(pending))
    found: dict[str, Decision] = {}
    for one in pending:
        question = _question(one)
        answer = await ctx.session.elicit_form(question.message, question.requested_schema, ctx.request_id)
        if answer.action != "cancel":
            found[one.approval_id] = _decision(one, answer)
    return found


def how_to_decide(approval: Approval, command: str) -> dict[str, Json]:
    """Return a description of an approval, with the *command* with which a person decides it."""
    told: dict[str, Json] = {
        "tool": approval.capability,
        "arguments": approval.arguments,
        "reason": approval.reason,
        "decide_with": f"{command} {approval.approval_id}",
    }
    if approval.answer_schema is not msgspec.UNSET:
        told["answer_schema"] = approval.answer_schema
        told["decide_with"] = f"{command} --arguments JSON {approval.approval_id}"
    return told


def client_name(ctx: Any) -> str:
    params = ctx.session.client_params
    return params.client_info.name if params is not None and params.client_info is not None else "client"


def _question(approval: Approval) -> types.ElicitRequestFormParams:
    import mcp_types as types

    schema: dict[str, Any] = _DECISION
    arguments = msgspec.json.encode(approval.arguments).decode()
    message = f"{approval.capability}({arguments}) needs your approval."
    if approval.reason:
        message = f"{message} {approval.reason}"
    if approval.answer_schema is not msgspec.UNSET:
        schema, message = approval.answer_schema, str(approval.reason)
    return types.ElicitRequestFormParams(mode="form", message=message, requested_schema=schema)


def _decision(approval: Approval, answer: types.ElicitResult) -> Decision:
    content: dict[str, Any] = dict(answer.content or {})
    if answer.action != "accept":
        return False, None, "declined"
    if approval.answer_schema is not msgspec.UNSET:
        return True, content, None
    reason = content.get("reason")
    return content.get("approve") is True, None, reason if isinstance(reason, str) and reason else None
