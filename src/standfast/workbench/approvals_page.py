"""The approvals inbox across sessions, the page of one request with its context, and decisions."""

from __future__ import annotations

import json
from typing import Annotated, Final, Literal
from urllib.parse import quote

import htpy as h
import msgspec
from starlette.responses import Response

from standfast.errors import StandfastError
from standfast.model.approval import Approval
from standfast.model.session import TurnState
from standfast.runtime.http_values import Decide
from standfast.runtime.sessions.approvals import as_of
from standfast.runtime.sessions.observation import messages_of_turn
from standfast.server.approvals import decide_approval, read_approval, revoke_grant
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.workbench.approvals_html import request_html, tabs
from standfast.workbench.conversation import Item, by_call, items_of
from standfast.workbench.conversation_html import Options, item_html, pretty_lines
from standfast.workbench.forms import field, json_object, read_form
from standfast.workbench.grants_page import give_from_form
from standfast.workbench.inbox import inbox_of, pending
from standfast.workbench.live_turn import LiveTurn, current_items
from standfast.workbench.parts import diff, empty, live_part, pager
from standfast.workbench.session_reader import calls_by_code
from standfast.workbench.shell import page, respond
from standfast.workbench.words import count

_PAGE: Final = 25
_PATH: Final = "/approvals/{approval_id}"
ROUTES: Final = Routes()


class InboxQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The inbox filter: pending or decided requests, optionally only those that match the search text `q`."""

    state: Literal["pending", "decided"] = "pending"
    q: Annotated[str, msgspec.Meta(max_length=200)] = ""
    skip: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = 0


@ROUTES.add("GET", "/approvals", Scope.READ, query=InboxQuery)
async def approvals_page(call: Call) -> Response:
    """Show the approval requests: pending ones oldest first, decided ones latest first."""
    asked: InboxQuery = call.query
    found = [one for one in await _requests(call, asked.state) if _has(one, asked.q)]
    shown = found[asked.skip : asked.skip + _PAGE]
    now_ms, decides = call.runtime.now_ms(), call.credential.allows(Scope.APPROVE)
    place = f"/approvals?state={asked.state}&q={quote(asked.q, safe='')}"
    total = f"{count(len(found), 'request')} {'waiting' if asked.state == 'pending' else 'decided'}"
    agents = {one.session_id: await _agent(call, one) for one in shown}
    main = [
        h.header(".top")[h.h1["Approvals"], h.p("#total.muted")[total]],
        tabs("/approvals" if asked.state == "pending" else "/approvals?state=decided"),
        h.form(
            ".filters",
            role="search",
            hx_get="/approvals",
            hx_trigger="input delay:250ms, submit",
            hx_target="#requests",
            hx_select="#requests",
            hx_select_oob="#total",
            hx_swap="outerMorph",
            hx_push_url="true",
        )[
            h.input(type="hidden", name="state", value=asked.state),
            h.label(".wide")[
                h.span["Search"],
                h.input(
                    name="q",
                    type="search",
                    value=asked.q,
                    data_search=True,
                    placeholder="Tool, session or argument",
                ),
            ],
        ],
        live_part(
            "requests",
            f"{place}&skip={asked.skip}",
            [request_html(one, now_ms, decides=decides, agent=agents[one.session_id]) for one in shown]
            or _nothing(asked),
            _pages(place, asked.skip, len(found)),
            kind=".requests",
            beside="total",
        ),
    ]
    return await page(call, title="Approvals", place="approvals", main=main, stream="/live")


def _pages(place: str, skip: int, found: int) -> h.Node:
    if found <= _PAGE:
        return None
    before = f"{place}&skip={max(0, skip - _PAGE)}" if skip else None
    after = f"{place}&skip={skip + _PAGE}" if skip + _PAGE < found else None
    return pager("Pages", f"{skip + 1:,} to {min(found, skip + _PAGE):,} of {found:,}", before, after)


def _nothing(asked: InboxQuery) -> h.Element:
    if asked.q:
        return empty("No matching requests", "Try another word.")
    if asked.state == "decided":
        return empty(
            "No decisions yet", "Decided requests appear here, with the name of the person who decided."
        )
    return empty("Nothing to decide", "When a tool call needs approval, it appears here at once.")


def _has(approval: Approval, words: str) -> bool:
    if not words:
        return True
    text = f"{approval.capability} {approval.session_id} {json.dumps(approval.arguments, ensure_ascii=False)}"
    return all(word in text.lower() for word in words.lower().split())


async def _requests(call: Call, state: str) -> list[Approval]:
    if state == "pending":
        inbox_of(call.runtime).forget()
        return await pending(call)
    mine = {head.session_id for head in await call.visible_heads()}
    found = [
        one for one in await call.runtime.approvals() if one.session_id in mine and one.state != "pending"
    ]
    return sorted(found, key=lambda one: one.decided_at or one.expires_at, reverse=True)


@ROUTES.add("GET", _PATH, Scope.READ)
async def approval_page(call: Call) -> Response:
    """Show one request and the part of its turn that led to it."""
    approval = as_of(await read_approval(call), call.runtime.now_ms())
    now_ms, decides = call.runtime.now_ms(), call.credential.allows(Scope.APPROVE)
    main = [
        h.header(".top")[h.h1["Approval"], h.a(href="/approvals")["All requests"]],
        live_part(
            "one",
            f"/approvals/{approval.approval_id}",
            request_html(
                approval, now_ms, decides=decides, context=False, agent=await _agent(call, approval)
            ),
            h.h2["What led to this"],
            h.div(".conversation")[await _context_html(call, approval)],
            kind=".stack",
        ),
    ]
    title = f"{approval.capability} in {approval.session_id}"
    return await page(call, title=title, place="approvals", main=main, stream="/live")


async def _agent(call: Call, approval: Approval) -> str:
    """Return the agent of the request's session if this server can grant for it, else ""."""
    head = await call.runtime.store.head(approval.session_id)
    return "" if head is None or head.agent not in call.server.agents else head.agent


@ROUTES.add("GET", f"{_PATH}/context", Scope.READ)
async def approval_context(call: Call) -> Response:
    """Show the requesting turn, up to the request."""
    return respond(await _context_html(call, await read_approval(call)))


async def _context_html(call: Call, approval: Approval) -> h.Node:
    options = Options(
        now_ms=call.runtime.now_ms(),
        session_id=approval.session_id,
        files=f"/sessions/{approval.session_id}/files",
    )
    items = await _turn_items(call, approval)
    if not items:
        return h.p(".muted")["The messages of this turn are no longer in the history."]
    return h.section(".turn")[[item_html(item, options) for item in items]]


async def _turn_items(call: Call, approval: Approval) -> tuple[Item, ...]:
    """Return the items of the turn that made the request."""
    session = call.runtime.session_handle(approval.session_id)
    asked = await call.runtime.store.approvals(turn_id=approval.run_id)
    record = await call.runtime.store.turn(approval.run_id)
    if record is not None and record.state is TurnState.ENDED:
        said = await messages_of_turn(call.runtime.store, record)
        numbered = [(f"{record.turn_id}.{place}", one) for place, one in enumerate(said)]
        made = await calls_by_code(call.runtime, record.session_id, record.turn_id)
        return items_of(numbered, record.turn_id, by_call(asked), made=made)
    current = await session.current_turn()
    if current is None:
        return ()
    made = await calls_by_code(call.runtime, approval.session_id, current.turn_id)
    return current_items(current, LiveTurn(), asked, made)


# Actions


@ROUTES.add("POST", f"{_PATH}/decide", Scope.APPROVE, body=bytes)
async def decide(call: Call) -> Response:
    """Approve or deny a request, then show its new state."""
    form = read_form(call)
    approval = await read_approval(call)
    text = field(form, "arguments")
    arguments = json_object(text, "the arguments") if text else None
    if arguments == approval.arguments:
        arguments = None
    decision = field(form, "decision")
    grant = await give_from_form(call, approval, form) if decision == "grant" else None
    approved = decision in ("approve", "grant")
    asked = Decide(
        approved=approved, arguments=arguments if approved else None, reason=field(form, "reason") or None
    )
    try:
        decided = await decide_approval(call, approval.approval_id, asked)
    except StandfastError:
        if grant is not None:  # it would outlive the approval that was refused
            call.path = {"grant_id": grant.grant_id}
            await revoke_grant(call)
        raise
    finally:
        inbox_of(call.runtime).forget()
    return respond(request_html(decided, call.runtime.now_ms(), decides=True, context=False))


@ROUTES.add("POST", f"{_PATH}/diff", Scope.READ, body=bytes)
async def show_diff(call: Call) -> Response:
    """Show how the edited arguments differ from those of the call."""
    approval, text = await read_approval(call), field(read_form(call), "arguments")
    edited = json_object(text, "the arguments")
    return respond(diff(pretty_lines(approval.arguments), pretty_lines(edited)) or "")
