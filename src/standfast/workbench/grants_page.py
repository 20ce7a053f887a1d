"""The grants page: calls approved in advance, and their revocation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import htpy as h
from starlette.responses import Response

from standfast.model.approval import Approval
from standfast.model.grant import Grant
from standfast.runtime.http_values import GiveGrant
from standfast.server.approvals import give_grant, revoke_grant
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.problems import malformed
from standfast.workbench.approvals_html import tabs
from standfast.workbench.forms import field
from standfast.workbench.parts import empty, live_part, state_badge, when
from standfast.workbench.shell import page, respond
from standfast.workbench.words import count, moment

ROUTES: Final = Routes()


@ROUTES.add("GET", "/grants", Scope.READ)
async def grants_page(call: Call) -> Response:
    """List the grants: the calls that people have approved in advance."""
    now_ms, decides = call.runtime.now_ms(), call.credential.allows(Scope.APPROVE)
    found = [one for one in await call.runtime.grants() if one.tenant == call.tenant]
    found.sort(key=lambda one: (not one.is_in_force(now_ms), -one.given_at))
    in_force = count(sum(one.is_in_force(now_ms) for one in found), "grant")
    main = [
        h.header(".top")[h.h1["Approvals"], h.p("#total.muted")[f"{in_force} in force"]],
        tabs("/grants"),
        live_part(
            "grants",
            "/grants",
            [_grant_html(one, now_ms, decides) for one in found[:200]]
            or empty(
                "No grants",
                "A grant approves calls in advance.",
                "To create one, decide a request with “Approve similar calls in the future, too”.",
            ),
            kind=".requests",
            beside="total",
        ),
    ]
    return await page(call, title="Grants", place="approvals", main=main, stream="/live")


def _grant_html(grant: Grant, now_ms: int, decides: bool) -> h.Element:
    is_in_force = grant.is_in_force(now_ms)
    place = f"session {grant.session_id}" if grant.agent is None else f"every session of {grant.agent}"
    shown = "approved" if is_in_force else "expired"
    return h.article(f".request.{shown}", id=f"grant-{grant.grant_id}")[
        h.header[
            h.span(".name", tabindex="0", data_row=True)[grant.capability],
            h.span(".muted.small")[f"for {place}"],
            h.span(".muted.small")["until ", moment(grant.expires_at)],
            state_badge(shown, "In force" if is_in_force else "Ended"),
        ],
        h.p(".small", dir="auto")[
            h.code[grant.rule] if grant.rule else "Every call",
            f" · granted by {grant.given_by} ",
            when(grant.given_at, now_ms, " ago"),
            grant.reason and f": {grant.reason}",
        ],
        grant.revoked_at is not None
        and h.p(".small", dir="auto")[
            f"Revoked by {grant.revoked_by or 'unknown'} ", when(grant.revoked_at, now_ms, " ago")
        ],
        is_in_force
        and decides
        and h.div[
            h.button(
                ".danger",
                type="button",
                hx_post=f"/grants/{grant.grant_id}/revoke",
                hx_target=f"#grant-{grant.grant_id}",
                hx_swap="outerHTML",
            )["Revoke"]
        ],
    ]


@ROUTES.add("POST", "/grants/{grant_id}/revoke", Scope.APPROVE)
async def revoke(call: Call) -> Response:
    """Revoke a grant, then show its new state."""
    revoked = await revoke_grant(call)
    return respond(_grant_html(revoked, call.runtime.now_ms(), True))


async def give_from_form(call: Call, approval: Approval, form: Mapping[str, list[str]]) -> Grant:
    """Create the grant that the form describes. The caller decides the request afterwards."""
    kind, _, agent = field(form, "grant_for").partition(":")
    hours = field(form, "grant_hours")
    if not hours.isdigit() or not 0 < int(hours) <= 8760:
        raise malformed(f"a grant lasts 1 to 8,760 hours, got {hours[:20]!r}")
    asked = GiveGrant(
        capability=approval.capability,
        expires_at=call.runtime.now_ms() + int(hours) * 3_600_000,
        rule=field(form, "grant_rule") or None,
        session_id=approval.session_id if kind == "session" else None,
        agent=agent if kind == "agent" else None,
        reason=field(form, "reason") or None,
    )
    call.body = asked  # the API's handler expects a decoded body
    return await give_grant(call)
