"""When a wait is over, and with what outcome. The rules of the port, for every store.

Rule: a wait is over when its answer is there, or when its time is over, whichever comes first.
"""

from __future__ import annotations

import msgspec

from standfast.errors import TokenNotFound
from standfast.model.approval import Approval, ApprovalState
from standfast.model.wait import Approved, Denied, Elapsed, Expired, Wait, WaitOutcome

TOKEN_PREFIX = "cpl_"  # noqa: S105 (the form of a token, none itself)


def moved_along(wait: Wait, shift_ms: int) -> Wait:
    """The wait after the time of day was set by *shift_ms*: it lasts as long as it was meant to.

    An approval is not moved: people were told its time.
    """
    if wait.kind == "approval":
        return wait
    return msgspec.structs.replace(wait, due_at=max(0, wait.due_at + shift_ms))


def answer_of(approval: Approval) -> WaitOutcome | None:
    """What a decision means to the call that waits for it; None while there is none."""
    match approval.state:
        case ApprovalState.PENDING:
            return None
        case ApprovalState.APPROVED:
            edited = None if approval.edited_digest is None else approval.arguments
            return Approved(arguments=edited, by=approval.decided_by)
        case ApprovalState.DENIED:
            return Denied(reason=approval.reason, by=approval.decided_by)
        case ApprovalState.EXPIRED | ApprovalState.CANCELLED:
            return Expired()


def timed_out(wait: Wait, now_ms: int) -> WaitOutcome | None:
    """What becomes of a wait without an answer."""
    if now_ms < wait.due_at:
        return None
    return Elapsed() if wait.kind == "timer" else Expired()


def expired(approval: Approval, now_ms: int) -> Approval:
    """The approval as it stands at that time."""
    if approval.state != ApprovalState.PENDING or now_ms < approval.expires_at:
        return approval
    return msgspec.structs.replace(approval, state=ApprovalState.EXPIRED, decided_at=now_ms)


def turn_of_token(token: str) -> str:
    """The turn that a completion token (`cpl_<turn_id>.<anything>`) belongs to."""
    turn_id, dot, rest = token.removeprefix(TOKEN_PREFIX).partition(".")
    if not token.startswith(TOKEN_PREFIX) or not (turn_id and dot and rest):
        raise TokenNotFound(token)
    return turn_id
