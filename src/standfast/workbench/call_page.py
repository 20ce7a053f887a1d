"""What the journal knows about one call: its attempts; about a cell, also its calls and its variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import htpy as h
from starlette.responses import Response

from standfast.errors import JournalNotKept, TurnNotFound
from standfast.model.code import RUN_CODE, CellVariables, Variable
from standfast.server.calls import Call, Route
from standfast.server.credentials import Scope
from standfast.workbench.conversation import by_call, history_view
from standfast.workbench.conversation_html import Options, attempts_html, call_html
from standfast.workbench.shell import respond


async def call_details(call: Call) -> Response:
    """Show what the journal knows about a call, as a part of the conversation."""
    session, turn_id, call_id = await call.session(), call.path["turn_id"], int(call.path["call_id"])
    try:
        known = (await session.call_history(turn_id)).get(call_id)
    except (JournalNotKept, TurnNotFound):
        return respond(h.p(".muted.small")["The journal of this turn is no longer kept."])
    if known is None:
        return respond(h.p(".muted.small")["This call has not begun."])
    if known.call.name != RUN_CODE or known.call.parent:
        return respond(attempts_html(known.attempts))
    asked = by_call(await call.runtime.store.approvals(turn_id=turn_id))
    options = Options(
        now_ms=call.runtime.now_ms(),
        session_id=session.session_id,
        files=f"/sessions/{session.session_id}/files",
    )
    head = await call.head()
    made = [history_view(one, asked.get((turn_id, one.call.call_id))) for one in known.inner]
    around: CellVariables | None = None
    if head.code is None:  # a session that only runs code journals no states
        around = await session.cell_variables(turn_id, call_id)
    return respond(
        h.div(".stack")[
            bool(made)
            and h.div(".stack.tight")[[call_html(one, options, f"{turn_id}-inner") for one in made]],
            None if around is None else variables_html(around),
            not made and around is None and h.p(".muted.small")["This code made no calls."],
        ]
    )


def variables_html(around: CellVariables) -> h.Node:
    """The variables before and after a cell; those that it changed come first."""
    if around.before is None and not around.after:
        return h.p(".muted.small")["The variables are no longer kept."]
    before, after = _by_name(around.before), _by_name(around.after)
    names = sorted(before.keys() | after.keys(), key=lambda name: (before.get(name) == after.get(name), name))
    if not names:
        return h.p(".muted.small")["No variables before or after this cell."]
    return h.div(".scroll", tabindex="0", role="group", aria_label="Variables before and after")[
        h.table(".data.vars")[
            h.thead[h.tr[h.th["Variable"], h.th["Before"], h.th["After"]]],
            h.tbody[
                [
                    h.tr(class_="changed" if around.after is not None and one != other else None)[
                        h.td[h.code[name]],
                        h.td(dir="auto")[_value(one, "not kept" if around.before is None else "–")],
                        h.td(dir="auto")[_value(other, "not over" if around.after is None else "–")],
                    ]
                    for name in names
                    for one, other in [(before.get(name), after.get(name))]
                ]
            ],
        ]
    ]


def _by_name(found: Iterable[Variable] | None) -> dict[str, Variable]:
    return {one.name: one for one in found or ()}


def _value(one: Variable | None, nothing: str) -> h.Node:
    if one is None:
        return h.span(".muted")[nothing]
    return [h.code[one.text or "?"], one.type and h.span(".muted.small")[f" {one.type}"]]


ROUTES: Final = (
    Route(
        method="GET",
        path="/sessions/{session_id}/turns/{turn_id}/calls/{call_id}",
        scope=Scope.READ,
        handler=call_details,
        answer=str,
    ),
)
