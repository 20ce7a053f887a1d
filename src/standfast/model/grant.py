"""A grant: a person's approval, in advance, of calls of one tool.

Rules
-----
1. A grant is for one session or for one agent's sessions of one tenant, and it ends at `expires_at`.
2. A revoked or expired grant approves nothing. It is kept, so that its approvals can be explained.
3. A grant is stored beside the contract of its tool and is not part of it: the contract's digest is
   unchanged.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.approval import MAX_NAME_CHARS
from standfast.model.capability import check_capability_name
from standfast.model.limits import U64
from standfast.model.session import HoldsSessionIds, SessionHead, SessionIdField

MAX_RULE_CHARS: Final = 4_000


class Grant(HoldsSessionIds, frozen=True, kw_only=True):
    """An advance approval of the calls of `capability` for which `rule` is true, or of all without a rule.

    The rule is a Python expression over `args`, `kwargs` and `session_id`, as in an approval policy. The
    grant is for `session_id`, or for every session of `agent` that belongs to `tenant`.
    """

    grant_id: str
    capability: str
    given_by: str
    given_at: U64
    expires_at: U64
    rule: str | None = None
    session_id: SessionIdField | None = None
    agent: str | None = None
    tenant: str = ""
    reason: str | None = None
    revoked_at: U64 | None = None
    revoked_by: str | None = None

    def is_in_force(self, now_ms: int) -> bool:
        return self.revoked_at is None and now_ms < self.expires_at

    def covers(self, head: SessionHead, capability: str) -> bool:
        """Return whether the grant covers calls of *capability* in the session of *head*."""
        if self.capability != capability or self.tenant != head.tenant:
            return False
        return head.session_id == self.session_id if self.agent is None else head.agent == self.agent


def check_grant(grant: Grant) -> Grant:
    """Return *grant*; raise `InvalidArgument` if it is invalid."""
    check_types(grant)
    check_capability_name(grant.capability)
    if (grant.session_id is None) == (grant.agent is None):
        raise InvalidArgument("a grant is for a session or for an agent", hint="pass session= or agent=")
    if not 0 < len(grant.given_by.strip()) <= len(grant.given_by) <= MAX_NAME_CHARS:
        raise InvalidArgument(
            f"given_by must be a name of 1 to {MAX_NAME_CHARS} characters, got {grant.given_by[:80]!r}",
            hint="pass the id or the address of the person who gives the grant",
        )
    if grant.expires_at <= grant.given_at:
        raise InvalidArgument(
            f"a grant must end in the future, got {grant.expires_at} ms, which is past",
            hint="pass expires_at in milliseconds since 1970",
        )
    if grant.rule is not None:
        check_rule(grant.rule)
    return grant


def check_types(grant: Grant) -> None:
    """Raise `InvalidArgument` unless *grant* can be read back from a store."""
    try:
        msgspec.convert(msgspec.to_builtins(grant), Grant)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument(f"grant: {error}") from None


def check_rule(rule: str) -> None:
    """Raise `InvalidArgument` unless *rule* is a Python expression. It is parsed but never evaluated here."""
    problem = ""
    if not rule.strip() or len(rule) > MAX_RULE_CHARS:
        problem = f"has {len(rule)} characters, 1 to {MAX_RULE_CHARS} are allowed"
    else:
        try:
            compile(f"({rule}\n)", "<rule>", "eval", flags=0x400, dont_inherit=True)  # ast.PyCF_ONLY_AST
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problem = f"is not a Python expression: {error}"
    if problem:
        raise InvalidArgument(
            f"the rule {rule[:80]!r} {problem}",
            hint="write an expression over args, kwargs and session_id, such as kwargs['cents'] <= 1000",
        )
