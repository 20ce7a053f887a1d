"""Decisions about calls that wait for a person."""

from __future__ import annotations

import functools

import msgspec

from standfast.errors import ApprovalNotFound, InvalidArgument
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.canonical import Json
from standfast.model.capability import SettledCall
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.tools.registered_tool import ARGS, from_native, is_positional
from standfast.tools.settlement import request_digest


async def list_approvals(
    directory: SessionDirectory, *, session: str | None, pending: bool
) -> list[Approval]:
    """The requests to people, oldest first; with *pending*, those that can still be decided."""
    found, now = await directory.store.approvals(session_id=session), directory.now_ms()
    return [
        one for one in found if not pending or (one.state is ApprovalState.PENDING and now < one.expires_at)
    ]


async def decide(directory: SessionDirectory, approval_id: str, decision: Decision) -> Approval:
    """Decide a request once. Edited arguments that the tool would refuse are refused before that."""
    approval = await directory.store.approval(approval_id)
    if approval is None:
        raise ApprovalNotFound(approval_id)
    edited = None
    if decision.kwargs is not None:
        args, kwargs = await _edited_arguments(directory, approval, decision.kwargs)
        decision = msgspec.structs.replace(decision, args=args, kwargs=kwargs)
        edited = request_digest(approval.capability, args, kwargs)
    now = directory.now_ms()
    decided = await directory.store.decide(approval_id, decision, now_ms=now, edited_digest=edited)
    directory.changed.set()
    return decided


async def _edited_arguments(
    directory: SessionDirectory, approval: Approval, edited: dict[str, Json]
) -> tuple[list[Json], dict[str, Json]]:
    """Split a person's arguments by position and by name, refusing those that the tool would refuse."""
    live = await directory.put_to_work(approval.session_id)
    if live is None or live.prepared is None:  # the tool is not known here: the call has to tell its form
        if approval.args and len(edited) == 1 and isinstance(listed := edited.get(ARGS), list):
            return listed, {}
        return [], edited
    context, dispatcher = await live.context(), live.prepared.dispatcher
    await context.prepare(approval.capability)
    tool = context.called_tool(approval.capability)
    positional = is_positional(tool.capability)
    args, kwargs = (from_native(tool.capability, edited), {}) if positional else ([], edited)
    check = functools.partial(
        dispatcher.check, tool, args, kwargs, session_id=approval.session_id, call_id=approval.call_id
    )
    checked = await directory.services.threads.run(check) if tool.runs_code else check()
    if isinstance(checked, SettledCall) and checked.record.error is not None:
        raise InvalidArgument(f"the edited arguments do not fit: {checked.record.error.message}")
    return args, kwargs
