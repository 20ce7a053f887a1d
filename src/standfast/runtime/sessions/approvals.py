"""Decisions about calls that wait for a person, in agents' turns and in sandbox runs."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from standfast.errors import ApprovalNotFound, InvalidArgument
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.canonical import Json, to_json
from standfast.model.capability import SettledCall
from standfast.ports.session_store import SessionStore
from standfast.tools.dispatch import Dispatcher
from standfast.tools.registered_tool import RegisteredTool, validate_answer
from standfast.tools.settlement import request_digest
from standfast.tools.threads import DaemonThreads

Arguments = tuple[list[Json], dict[str, Json]]


async def list_approvals(
    store: SessionStore,
    now_ms: int,
    *,
    session: str | None = None,
    turn: str | None = None,
    pending: bool = False,
) -> list[Approval]:
    """Return the requests, oldest first; with *pending*, those that can still be decided."""
    found = [as_of(one, now_ms) for one in await store.approvals(session_id=session, turn_id=turn)]
    return [one for one in found if one.state is ApprovalState.PENDING] if pending else found


async def get_approval(store: SessionStore, now_ms: int, approval_id: str) -> Approval:
    found = await store.approval(approval_id)
    if found is None:
        raise ApprovalNotFound(approval_id)
    return as_of(found, now_ms)


def as_of(approval: Approval, now_ms: int) -> Approval:
    """Return the request with its status at *now_ms*: `expired` if overdue, even if not stored as such."""
    if approval.state is ApprovalState.PENDING and now_ms >= approval.expires_at:
        return msgspec.structs.replace(approval, state=ApprovalState.EXPIRED)
    return approval


def approving(
    args: Sequence[Json] | None,
    kwargs: Mapping[str, Json] | None,
    reason: str | None,
    decided_by: str | None,
) -> Decision:
    """Return a decision that approves a call, with other arguments if given."""
    return Decision(
        approved=True,
        reason=reason,
        args=to_json(list(args))[0] if args is not None else None,
        kwargs=to_json(dict(kwargs))[0] if kwargs is not None else None,
        decided_by=decided_by,
    )


async def decide(
    store: SessionStore,
    now_ms: int,
    approval: Approval,
    decision: Decision,
    edited: Callable[[Approval, Decision], Awaitable[Arguments]],
) -> Approval:
    """Store the decision on a request, once. *edited* validates the arguments that a person edited."""
    digest = None
    if approval.answer_schema is not msgspec.UNSET:
        if decision.approved:
            validate_answer(
                approval.answer_schema, approval.kwargs if decision.kwargs is None else decision.kwargs
            )
    elif decision.args is not None or decision.kwargs is not None:
        args, kwargs = await edited(approval, decision)
        decision = msgspec.structs.replace(decision, args=args, kwargs=kwargs)
        digest = request_digest(approval.capability, args, kwargs)
    return await store.decide(approval.approval_id, decision, now_ms=now_ms, edited_digest=digest)


async def checked_arguments(
    tool: RegisteredTool, approval: Approval, given: Arguments, dispatcher: Dispatcher, threads: DaemonThreads
) -> Arguments:
    """Return edited arguments; raise `InvalidArgument` if the tool would refuse them."""
    args, kwargs = given
    check = functools.partial(
        dispatcher.check, tool, args, kwargs, session_id=approval.session_id, call_id=approval.call_id
    )
    checked = await threads.run(check) if tool.runs_code else check()
    if isinstance(checked, SettledCall) and checked.record.error is not None:
        raise InvalidArgument(f"the edited arguments are invalid: {checked.record.error.message}")
    return args, kwargs
