"""Approval requests, each bound to contract, arguments, session, turn and call; results of ended waits."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, assert_never

import msgspec

from standfast.durable.effects import EffectWaits
from standfast.errors import Code, ErrorObject, InvalidArgument
from standfast.machine.commands import RunTool
from standfast.model.approval import Approval, ApprovalState, bind_approval
from standfast.model.canonical import Json, to_json
from standfast.model.capability import SettledCall
from standfast.model.outcome import Approved, Completed, Denied, Elapsed, Expired, Failed, Wait, WaitOutcome
from standfast.tools import settlement
from standfast.tools.context import AskPerson
from standfast.tools.registered_tool import Admitted, RegisteredTool, check_schema

if TYPE_CHECKING:
    from standfast.model.grant import Grant
    from standfast.plugins.turn_hooks import TurnContext


def request_approval(
    turn: TurnContext,
    tool: RegisteredTool,
    call_id: int,
    given: tuple[list[Json], dict[str, Json]],
    *,
    interrupted: bool = False,
    reason: str | None = None,
    grant: Grant | None = None,
) -> EffectWaits:
    """Return the approval request for a call with the arguments *given*, and the wait for the decision.

    If *grant* is given, it has approved the request.
    """
    now, (args, named) = turn.services.clock.now_ms(), given
    approval = Approval(
        approval_id=f"apr_{os.urandom(10).hex()}",
        state=ApprovalState.PENDING,
        session_id=turn.session_id,
        capability=tool.name,
        args=args,
        kwargs=named,
        requested_at=now,
        expires_at=now + turn.services.settings.approval_ttl_ms,
        binding="",
        run_id=turn.turn_id,
        call_id=call_id,
        reason="it was interrupted by a crash; run it again?" if interrupted else reason,
    )
    approval = msgspec.structs.replace(approval, binding=bind_approval(approval, tool.digest))
    granted = None
    if grant is not None:
        decided = {"state": ApprovalState.APPROVED, "decided_at": now, "reason": grant.reason}
        by = {"decided_by": grant.given_by, "grant": grant.grant_id}
        approval = msgspec.structs.replace(approval, **decided, **by)
        granted = Approved(by=grant.given_by, grant=grant.grant_id)
    terms: dict[str, Json] = {"contract": tool.digest}
    if interrupted:
        terms["interrupted"] = True
    wait = Wait(
        wait_id=approval.approval_id,
        kind="approval",
        call_id=call_id,
        due_at=approval.expires_at,
        value=terms,
    )
    return EffectWaits(wait, approval, granted=granted)


async def grant_for(turn: TurnContext, call: Admitted) -> Grant | None:
    """Return the oldest grant in force that approves *call*; None if a person has to decide."""
    from standfast.durable.grants import list_grants  # few calls need approval

    now, services = turn.services.clock.now_ms(), turn.services
    for grant in await list_grants(services.store):
        if not grant.is_in_force(now) or not grant.covers(turn.head, call.tool.name):
            continue
        # A rule is evaluated in the sandbox, which blocks.
        if grant.rule is None or await services.threads.run(partial(turn.dispatcher.meets, grant.rule, call)):
            return grant
    return None


def ask_question(turn: TurnContext, call: Admitted, question: AskPerson) -> EffectWaits:
    """Return the wait for a person's answer to a tool's question, with the answer's defaults filled in."""
    if not isinstance(question.message, str):
        raise InvalidArgument(
            f"the question of {call.tool.name}() must be text, got {question.message!r:.80}"
        )
    to_json(question.message)  # raises if it could not be stored
    schema, _ = to_json(question.answer)
    check_schema(schema, f"the answer that {call.tool.name}() asks for")
    fields = schema.get("properties", {})
    answer = {
        name: part["default"] for name, part in fields.items() if isinstance(part, dict) and "default" in part
    }
    asked = request_approval(turn, call.tool, call.call_id, ([], answer), reason=question.message)
    approval, terms = asked.approval, asked.wait.value
    assert approval is not None
    assert isinstance(terms, dict)
    terms["question"] = to_json(question.state)[0]
    if question.declinable:
        terms["declinable"] = True
    return EffectWaits(asked.wait, msgspec.structs.replace(approval, answer_schema=schema))


def settle_wait(call: Admitted, command: RunTool, outcome: WaitOutcome) -> SettledCall:
    """Return the result of a call that is not executed after its wait ended with *outcome*."""
    tool, waited = call.tool, command.waited
    kind, value = (None, None) if waited is None else (waited.kind, waited.value)
    match outcome:
        case Denied() | Expired() if isinstance(value, dict) and value.get("interrupted"):
            return settlement.settle_interrupted(tool, call.request_digest)
        case Denied() | Expired() if command.timeouts and kind == "approval":
            return settlement.settle_timed_out(call)
        case Denied(reason=reason):
            words = f": {reason}" if reason else ""
            return settlement.settle_denied(call, f"a person refused the call of {tool.name}(){words}")
        case Expired() if kind == "completion":
            message = f"the result of {tool.name}() was not delivered in time"
            late = ErrorObject(code=Code.TIMEOUT_TOOL, message=message)
            return settlement.settle_failure(tool, call.request_digest, late)
        case Expired():
            return settlement.settle_denied(call, f"the approval of {tool.name}() expired without a decision")
        case Elapsed():
            return settlement.settle_outcome(call, time.monotonic(), value, None)
        case Completed(value=delivered):
            return settlement.settle_outcome(call, time.monotonic(), delivered, None)
        case Failed(error=error):
            return settlement.settle_failure(tool, call.request_digest, error)
        case Approved():
            raise AssertionError("an approved call is executed")
        case _:
            assert_never(outcome)
