"""Details of one call from the journal: its attempts; for a cell, also its calls and variables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

import htpy as h
from starlette.responses import Response

from standfast.errors import InvalidArgument, JournalNotKept, TurnNotFound
from standfast.model.code import RUN_CODE, CellVariables, Variable
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.workbench.conversation import by_call, history_view
from standfast.workbench.conversation_html import Options, attempts_html, call_html
from standfast.workbench.parts import data_table
from standfast.workbench.session_reader import MOST_CALLS
from standfast.workbench.shell import respond

ROUTES: Final = Routes()


@ROUTES.add("GET", "/sessions/{session_id}/turns/{turn_id}/calls/{call_id}", Scope.READ)
async def call_details(call: Call) -> Response:
    """Show a call's journal details, as a fragment of the conversation."""
    session, turn_id, call_id = await call.session(), call.path["turn_id"], int(call.path["call_id"])
    head = await call.head()
    try:
        known = (await session.call_history(turn_id)).get(call_id)
    except (JournalNotKept, TurnNotFound):
        gone = h.p(".muted.small")["The journal of this turn is no longer kept."]
        if head.code is None:
            return respond(gone)
        with contextlib.suppress(TurnNotFound, JournalNotKept, InvalidArgument):
            gone = h.div(".stack")[gone, variables_html(await session.cell_variables(turn_id, call_id))]
        return respond(gone)
    if known is None:
        return respond(h.p(".muted.small")["This call has not started."])
    if known.call.name != RUN_CODE or known.call.parent:
        return respond(attempts_html(known.attempts))
    asked = by_call(await call.runtime.store.approvals(turn_id=turn_id))
    options = Options(
        now_ms=call.runtime.now_ms(),
        session_id=session.session_id,
        files=f"/sessions/{session.session_id}/files",
    )
    made = [history_view(one, asked.get((turn_id, one.call.call_id))) for one in known.inner]
    around = await session.cell_variables(turn_id, call_id)
    return respond(
        h.div(".stack")[
            bool(made)
            and h.div(".stack.tight")[
                [call_html(one, options, f"{turn_id}-inner") for one in made[:MOST_CALLS]],
                len(made) > MOST_CALLS
                and h.p(".muted.small")[
                    f"… and {len(made) - MOST_CALLS:,} more. See the ",
                    h.a(href=f"/sessions/{session.session_id}/turns/{turn_id}/journal")["journal"],
                    " for all of them.",
                ],
            ],
            variables_html(around, ended=known.settled),
        ]
    )


def variables_html(around: CellVariables, *, ended: bool = True) -> h.Node:
    """Render the variables before and after a cell, with those that it changed first."""
    if around.before is None and not around.after:
        return h.p(".muted.small")["The variables are no longer kept."]
    before, after = _by_name(around.before), _by_name(around.after)
    names = sorted(before.keys() | after.keys(), key=lambda name: (before.get(name) == after.get(name), name))
    if not names:
        return h.p(".muted.small")["No variables before or after this cell."]
    rows = []
    for name in names:
        one, other = before.get(name), after.get(name)
        changed = around.after is not None and one != other
        rows.append(
            [
                h.code(".changed" if changed else "")[name],
                _value(one, "not kept" if around.before is None else "–"),
                _value(other, "–" if around.after is not None else "not kept" if ended else "still running"),
            ]
        )
    return data_table("Variables before and after", ("Variable", "Before", "After"), rows, ".vars")


def _by_name(found: Iterable[Variable] | None) -> dict[str, Variable]:
    return {one.name: one for one in found or ()}


def _value(one: Variable | None, nothing: str) -> h.Node:
    if one is None:
        return h.span(".muted")[nothing]
    return [h.code[one.text or "?"], one.type and h.span(".muted.small")[f" {one.type}"]]
