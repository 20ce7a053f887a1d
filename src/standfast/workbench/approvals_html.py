"""Renderers for approval requests: the exact call, its age and deadline, and a form for deciders."""

from __future__ import annotations

import json
from typing import Final

import htpy as h
from msgspec import UNSET

from standfast.model.approval import Approval
from standfast.workbench.parts import arguments_table, due, state_badge, when
from standfast.workbench.words import visible

_TABS: Final = (
    ("/approvals", "Waiting"),
    ("/approvals?state=decided", "Decided"),
    ("/grants", "Grants"),
)


def tabs(current: str) -> h.Element:
    return h.nav(".tabs.views", aria_label="Requests and grants")[
        [
            h.a(href=address, aria_current="page" if address == current else None)[title]
            for address, title in _TABS
        ]
    ]


def request_html(
    approval: Approval,
    now_ms: int,
    *,
    decides: bool,
    context: bool = True,
    session: bool = True,
    agent: str = "",
) -> h.Element:
    """Render one approval request; with *context*, add a section that loads the events leading up to it.

    *session* names the session that made the request. *agent* is the session's agent, offered as the scope of
    a grant.
    """
    pending = approval.state == "pending"
    asks = approval.answer_schema is not UNSET
    return h.article(f".request.{approval.state}", id=f"request-{approval.approval_id}")[
        h.header[
            h.a(".name", href=f"/approvals/{approval.approval_id}", data_row=True)[approval.capability],
            session
            and h.span(".muted.small")[
                "in ", h.a(href=f"/sessions/{approval.session_id}")[approval.session_id]
            ],
            h.span(".muted.small")["requested ", when(approval.requested_at, now_ms, " ago")],
            pending and h.span(".muted.small")["expires ", due(approval.expires_at, now_ms)],
            not pending and state_badge(str(approval.state)),
        ],
        pending and approval.reason and h.div(".prose", dir="auto")[h.p[approval.reason]],
        h.p(".label")["Answer" if asks else "Arguments"],
        arguments_table(approval.arguments),
        asks
        and h.pre(".value", tabindex="0", aria_label="Schema of the answer")[
            json.dumps(approval.answer_schema, ensure_ascii=False, indent=2)
        ],
        context and _context(approval),
        _form(approval, agent) if pending and decides else None,
        pending
        and not decides
        and h.p(".muted.small")["You cannot decide: your token lacks the approve scope."],
        not pending and _decided(approval, now_ms),
    ]


def _context(approval: Approval) -> h.Element:
    return h.details(
        hx_get=f"/approvals/{approval.approval_id}/context",
        hx_trigger="toggle once",
        hx_target="find .context",
    )[
        h.summary(".small")["What led to this"],
        # When the list is refreshed, htmx must not replace the context that was loaded here.
        h.div(".context.conversation", hx_morph_skip_children=True)[h.p(".muted.small")["Loading…"]],
    ]


def _form(approval: Approval, agent: str) -> h.Element:
    """Render the decision form. The arguments are submitted only if they were edited."""
    path = f"/approvals/{approval.approval_id}"
    text = visible(json.dumps(approval.arguments, ensure_ascii=False, indent=2))
    asks = approval.answer_schema is not UNSET
    return h.form(
        hx_post=f"{path}/decide", hx_target=f"#request-{approval.approval_id}", hx_swap="outerHTML"
    )[
        h.details(open=asks or None)[
            h.summary(".small")["Answer" if asks else "Edit the arguments"],
            h.div(".stack")[
                h.label[
                    h.span["As JSON"],
                    h.textarea(
                        ".code",
                        name="arguments",
                        rows=str(min(14, text.count("\n") + 2)),
                        spellcheck="false",
                        hx_post=f"{path}/diff",
                        hx_trigger="input changed delay:250ms",
                        hx_target=f"#diff-{approval.approval_id}",
                    )[text],
                ],
                h.div(id=f"diff-{approval.approval_id}", hx_morph_skip_children=True),
            ],
        ],
        None if asks else _grant_fields(approval, agent),
        h.div(".decide")[
            h.label[
                h.span["Reason (optional)"],
                h.input(name="reason", maxlength="2000", dir="auto", autocomplete="off"),
            ],
            h.button(".danger", name="decision", value="deny", data_deny=True)["Deny"],
            h.button(".primary", name="decision", value="approve", data_approve=True)["Approve"],
        ],
    ]


def _grant_fields(approval: Approval, agent: str) -> h.Element:
    """Render the grant fields: a grant approves this call and similar calls in the future."""
    return h.details[
        h.summary(".small")["Approve similar calls in the future, too"],
        h.div(".grant")[
            h.label[
                h.span["Applies to"],
                h.select(name="grant_for")[
                    h.option(value="session")["this session"],
                    agent and h.option(value=f"agent:{agent}")[f"every session of {agent}"],
                ],
            ],
            h.label[
                h.span["Expires"],
                h.select(name="grant_hours")[[h.option(value=hours)[text] for hours, text in _TIMES],],
            ],
            h.label(".wide")[
                h.span["Only if this rule is true (empty: always)"],
                h.input(
                    ".mono",
                    name="grant_rule",
                    placeholder=f"for example: {_suggested_rule(approval)}",
                    maxlength="4000",
                    spellcheck="false",
                    autocomplete="off",
                ),
            ],
            h.button(name="decision", value="grant")["Approve and grant"],
        ],
    ]


_TIMES: Final = (("1", "in an hour"), ("24", "in a day"), ("168", "in a week"), ("720", "in 30 days"))


def _suggested_rule(approval: Approval) -> str:
    """Return an example rule that compares the first numeric argument."""
    for name, value in approval.kwargs.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return f"kwargs[{name!r}] <= {value}"
    return "kwargs['name'] == 'value'"


def _decided(approval: Approval, now_ms: int) -> h.Element:
    words = {"approved": "Approved", "denied": "Denied", "expired": "Expired", "cancelled": "Cancelled"}
    return h.p(".small", dir="auto")[
        words.get(str(approval.state), str(approval.state)),
        approval.decided_by and f" by {approval.decided_by}",
        approval.decided_at is not None and [" ", when(approval.decided_at, now_ms, " ago")],
        approval.edited_digest is not None and ", with edited arguments",
        approval.reason and f": {approval.reason}",
    ]
