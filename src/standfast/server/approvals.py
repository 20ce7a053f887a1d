"""Approvals and grants over HTTP, across sessions.

The decider is the request's credential, which the record and the audit log store.
"""

from __future__ import annotations

from typing import Final

from standfast.durable.grants import find_grant
from standfast.errors import ApprovalNotFound, Code, GrantNotFound, RequestRefused
from standfast.model.approval import Approval
from standfast.model.grant import Grant
from standfast.model.session import SessionHead
from standfast.runtime.http_values import ApprovalQuery, Decide, GiveGrant, GrantQuery
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.problems import forbidden

ROUTES: Final = Routes()


@ROUTES.add("GET", "/v1/approvals", Scope.READ, query=ApprovalQuery, answer=list[Approval])
async def list_approvals(call: Call) -> list[Approval]:
    """List approval requests, oldest first."""
    asked: ApprovalQuery = call.query
    if asked.session_id is not None:
        head = await call.head(asked.session_id)
        return await call.runtime.approvals(session=head.session_id, pending=asked.pending)
    mine = {head.session_id for head in await call.visible_heads()}
    found = await call.runtime.approvals(pending=asked.pending)
    return [approval for approval in found if approval.session_id in mine]


@ROUTES.add("GET", "/v1/approvals/{approval_id}", Scope.READ, answer=Approval)
async def read_approval(call: Call) -> Approval:
    """Read one approval request."""
    return await find_approval(call, call.path["approval_id"])


@ROUTES.add("POST", "/v1/approvals/{approval_id}/decision", Scope.APPROVE, body=Decide, answer=Approval)
async def decide(call: Call) -> Approval:
    """Approve a call, with other arguments if given, or deny it, and resume its turn."""
    return await decide_approval(call, call.path["approval_id"], call.body)


async def decide_approval(call: Call, approval_id: str, asked: Decide) -> Approval:
    """Decide an approval in the credential's name, and write the decision to the audit log.

    Whatever the route, only a credential with the scope `approve` may decide.
    """
    if not call.credential.allows(Scope.APPROVE):
        raise forbidden("this needs the scope approve", "create a token with --scope approve")
    _, head = await _find(call, approval_id)
    by = call.credential.identity
    call.server.require_serving()
    if head.code is not None:
        box = call.server.require_sandbox()
        if asked.approved:
            await box.approve(approval_id, kwargs=asked.arguments, reason=asked.reason, decided_by=by)
        else:
            await box.deny(approval_id, reason=asked.reason, decided_by=by)
    elif asked.approved:
        await call.runtime.approve(approval_id, arguments=asked.arguments, reason=asked.reason, decided_by=by)
    else:
        await call.runtime.deny(approval_id, reason=asked.reason, decided_by=by)
    decided, _ = await _find(call, approval_id)
    detail = f"{decided.state} {decided.capability} in {decided.session_id}"
    call.audit("decision", approval_id, detail)
    return decided


@ROUTES.add("GET", "/v1/grants", Scope.READ, query=GrantQuery, answer=list[Grant])
async def list_grants(call: Call) -> list[Grant]:
    """List grants, oldest first."""
    asked: GrantQuery = call.query
    session_id = None if asked.session_id is None else (await call.head(asked.session_id)).session_id
    found = await call.runtime.grants(session=session_id, in_force=asked.in_force)
    return [grant for grant in found if grant.tenant == call.tenant]


@ROUTES.add("POST", "/v1/grants", Scope.APPROVE, body=GiveGrant, answer=Grant, status=201)
async def give_grant(call: Call) -> Grant:
    """Approve calls of a tool in advance, for a session or an agent, until an expiry time."""
    asked: GiveGrant = call.body
    session_id = None if asked.session_id is None else (await call.head(asked.session_id)).session_id
    if asked.agent is not None and asked.agent not in call.server.agents:
        hint = "GET /v1/agents lists them"
        raise RequestRefused(404, Code.NOT_CONFIGURED, f"there is no agent {asked.agent!r}", hint=hint)
    grant = await call.runtime.grant(
        asked.capability,
        given_by=call.credential.identity,
        expires_at=asked.expires_at,
        rule=asked.rule,
        session=session_id,
        agent=asked.agent,
        tenant=call.tenant,
        reason=asked.reason,
    )
    _audit(call, "grant_given", grant)
    return grant


@ROUTES.add("GET", "/v1/grants/{grant_id}", Scope.READ, answer=Grant)
async def read_grant(call: Call) -> Grant:
    """Read one grant."""
    grant_id = call.path["grant_id"]
    grant = await find_grant(call.runtime.store, grant_id)
    if grant.tenant != call.tenant:
        raise GrantNotFound(grant_id)
    return grant


@ROUTES.add("POST", "/v1/grants/{grant_id}/revoke", Scope.APPROVE, answer=Grant)
async def revoke_grant(call: Call) -> Grant:
    """Revoke a grant, effective immediately."""
    grant = await read_grant(call)
    revoked = await call.runtime.revoke_grant(grant.grant_id, revoked_by=call.credential.identity)
    _audit(call, "grant_revoked", revoked)
    return revoked


def _audit(call: Call, event: str, grant: Grant) -> None:
    place = f"session {grant.session_id}" if grant.agent is None else f"agent {grant.agent}"
    call.audit(event, grant.grant_id, f"{grant.capability} for {place}")


async def find_approval(call: Call, approval_id: str) -> Approval:
    """Return an approval; raise `ApprovalNotFound` if the credential may not see it."""
    return (await _find(call, approval_id))[0]


async def _find(call: Call, approval_id: str) -> tuple[Approval, SessionHead]:
    """Return an approval and the head of its session, if the credential may see it."""
    found = await call.runtime.store.approval(approval_id)
    head = None if found is None else await call.runtime.store.head(found.session_id)
    if found is None or head is None or head.tenant != call.tenant:
        raise ApprovalNotFound(approval_id)
    return found, head
