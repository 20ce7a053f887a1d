"""A request for a person's approval of one call, and the decision.

Rules
-----
Bound: `binding` is a digest of the capability contract, the arguments, the session and the call.
Once: a compare-and-set changes its state from `pending`, exactly once, and one call uses it.
Limited: after `expires_at` it cannot be approved.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json, digest_json
from standfast.model.limits import U64
from standfast.model.session import HoldsSessionIds, SessionIdField

MAX_NAME_CHARS: Final = 256


class ApprovalState(enum.StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Approval(HoldsSessionIds, frozen=True, kw_only=True):
    """A request for a person's approval of one call, with its decision.

    `args` and `kwargs` are the call's own until a person edits them, which sets `edited_digest`. `decided_by`
    names the person who decided, as the deciding program or command gave it, or who gave the `grant` that
    approved the call. If the tool asks a question (`AskPerson`), `answer_schema` is the JSON Schema of the
    answer, and `kwargs` are the answer.
    """

    approval_id: str
    state: ApprovalState
    session_id: SessionIdField
    capability: str
    args: list[Json]
    kwargs: dict[str, Json]
    requested_at: U64
    expires_at: U64
    binding: str
    run_id: str
    call_id: int
    decided_at: U64 | None = None
    reason: str | None = None
    edited_digest: str | None = None
    decided_by: str | None = None
    answer_schema: dict[str, Any] | UnsetType = UNSET
    """Omitted if the tool asks no question."""
    grant: str | UnsetType = UNSET
    """The id of the grant that approved the call; omitted if a person decided."""

    @property
    def arguments(self) -> dict[str, Json]:
        """The arguments as one object, as a model passes them: positional ones are under `args`."""
        return {"args": self.args} if self.args and not self.kwargs else self.kwargs


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A person's decision. `args` and `kwargs`, if given, replace the call's."""

    approved: bool
    reason: str | None = None
    args: list[Json] | None = None
    kwargs: dict[str, Json] | None = None
    decided_by: str | None = None

    def __post_init__(self) -> None:
        by = self.decided_by
        if by is not None and not (isinstance(by, str) and 0 < len(by.strip()) <= len(by) <= MAX_NAME_CHARS):
            raise InvalidArgument(
                f"decided_by must be a name of 1 to {MAX_NAME_CHARS} characters, got {str(by)[:80]!r}",
                hint="pass the id or the address of the person who decided, or leave it out",
            )
        if self.reason is not None and not isinstance(self.reason, str):
            raise InvalidArgument(f"the reason of a decision must be text, got {self.reason!r:.80}")


def bind_approval(approval: Approval, contract: str) -> str:
    """Return the digest of the tool's *contract*, the arguments, the session and the call."""
    return digest_json(
        [
            contract,
            approval.capability,
            *([approval.args] if approval.args else []),
            approval.kwargs,
            approval.session_id,
            approval.run_id,
            approval.call_id,
        ]
    )
