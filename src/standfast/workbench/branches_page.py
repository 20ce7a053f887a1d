"""A session's branches as a graph, and a comparison of two of them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import htpy as h
import msgspec
from starlette.responses import Response

from standfast.errors import StandfastError
from standfast.graph.history import nodes_of
from standfast.model.session import Node, Segment, SessionHead, node_id
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.session_views import state_of_session
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.workbench.branches import GraphRow, family_of, graph_rows
from standfast.workbench.conversation import turns_of
from standfast.workbench.conversation_html import turn_html
from standfast.workbench.parts import empty, live_part, state_badge, when
from standfast.workbench.session_page import options_for, session_header, session_tabs
from standfast.workbench.session_reader import read_made, read_now
from standfast.workbench.shell import page
from standfast.workbench.words import count

_ROW: Final = 36
_LANE: Final = 22
_MOST_TURNS: Final = 30
_PATH: Final = "/sessions/{session_id}"
ROUTES: Final = Routes()


@ROUTES.add("GET", f"{_PATH}/branches", Scope.READ)
async def branches_page(call: Call) -> Response:
    """Show the graph of the sessions that share this one's history, and the sessions that it created."""
    head = await call.head()
    heads = await call.visible_heads()
    family = family_of(head.session_id, heads)
    rows = graph_rows(await _segments(call.runtime, family), family, head.session_id)
    now = await read_now(call.runtime, head.session_id)
    children = await call.runtime.store.children(head.session_id)
    now_ms = call.runtime.now_ms()
    others = [one for one in family if one.session_id != head.session_id]
    main = [
        session_header(now, now_ms),
        session_tabs(head.session_id, "branches"),
        live_part(
            "graph",
            f"/sessions/{head.session_id}/branches",
            graph_html(rows, head.session_id, now_ms)
            if rows
            else empty("No history yet", "Turns, forks and rewinds of this session appear here."),
        ),
        h.p(".muted.small")[
            "A filled dot is the end of a session's history. A dashed dot is a turn that was rewound. ",
            "To fork, use the button beside any message in the conversation."
            if head.code is None
            else "To fork, use the button beside any run.",
        ],
        bool(others) and _compare_form(head.session_id, others),
        live_part(
            "children",
            f"/sessions/{head.session_id}/branches",
            bool(children) and await _children(call, children, now_ms),
            kind=".stack",
        ),
    ]
    title = f"Branches of {head.session_id}"
    return await page(call, title=title, place="sessions", main=main, stream="/live")


async def _segments(runtime: Runtime, family: list[SessionHead]) -> dict[str, Segment]:
    """Return the segments on every path of the family, including turns that were rewound."""
    found: dict[str, Segment] = {}
    for head in family:
        leaves = [] if head.leaf is None else [head.leaf]
        for leaf in leaves:
            found.update({one.segment_id: _longer(found, one) for one in await runtime.store.path(leaf)})
    for head in family:
        for record in await runtime.store.turns(head.session_id):
            if record.turn_id in found or record.ended_at is None:
                continue
            try:
                path = await runtime.store.path(node_id(record.turn_id, 0))
            except StandfastError:
                continue  # the turn was pruned, or wrote no nodes
            found.update({one.segment_id: _longer(found, one) for one in path})
    return found


def _longer(found: dict[str, Segment], segment: Segment) -> Segment:
    """Return the segment with more entries, because a path may end in the middle of a segment."""
    known = found.get(segment.segment_id)
    return segment if known is None or len(known.entries) < len(segment.entries) else known


def graph_html(rows: list[GraphRow], current: str, now_ms: int) -> h.Element:
    """Draw the graph: lanes on the left, one line per turn, each with the sessions that end there."""
    lanes, height = 1 + max(row.lane for row in rows), len(rows) * _ROW
    edges = [
        _edge(rows[row.parent], row.parent, row, place)
        for place, row in enumerate(rows)
        if row.parent is not None
    ]
    dots = []
    for place, row in enumerate(rows):
        x, y = _point(row, place)
        kind = "dot" + (" head" if row.heads else "") + ("" if row.active else " off")
        dots.append(h.circle(class_=kind, cx=str(x), cy=str(y), r="6" if not row.skipped else "4"))
    width = lanes * _LANE + 10
    return h.div(".graph")[
        h.svg(width=str(width), height=str(height), viewBox=f"0 0 {width} {height}", aria_hidden="true")[
            edges, dots
        ],
        h.ol[[_row_html(row, current, now_ms) for row in rows]],
    ]


def _row_html(row: GraphRow, current: str, now_ms: int) -> h.Element:
    label = ("Frame · " if row.frame else "") + row.label
    address = f"/sessions/{row.heads[0] if row.heads else row.session_id}#turn-{row.segment_id}"
    return h.li[
        [h.b[("this session" if name == current else name)] for name in row.heads],
        h.a(href=address, title=label, dir="auto", data_row=True, class_="muted" if row.skipped else None)[
            label
        ],
        not row.active and h.span(".muted.small.spare")["rewound"],
        when(row.at_ms, now_ms, " ago"),
    ]


def _point(row: GraphRow, place: int) -> tuple[int, int]:
    return 12 + row.lane * _LANE, _ROW // 2 + place * _ROW


def _edge(parent: GraphRow, parent_place: int, row: GraphRow, place: int) -> h.Element:
    (x1, y1), (x2, y2) = _point(parent, parent_place), _point(row, place)
    bend = f"C {x1} {y1 + _ROW} {x2} {y1} {x2} {y1 + _ROW}" if x1 != x2 else ""
    return h.path(class_="edge", d=f"M {x1} {y1} {bend} L {x2} {y2}")


def _compare_form(session_id: str, others: list[SessionHead]) -> h.Element:
    return h.form(".row.ends", action=f"/sessions/{session_id}/compare", method="get")[
        h.label[
            h.span["Compare with"],
            h.select(name="other")[[h.option(value=one.session_id)[one.session_id] for one in others]],
        ],
        h.button["Compare"],
    ]


async def _children(call: Call, children: list[SessionHead], now_ms: int) -> h.Node:
    store = call.runtime.store
    left = {record.turn_id for record in await store.unfinished(now_ms)}
    records = await asyncio.gather(*(store.open_turn(one.session_id) for one in children))
    return [
        h.h2["Child sessions"],
        h.div(".list.sessions")[
            [
                h.div(".line")[
                    h.a(".name", href=f"/sessions/{one.session_id}", data_row=True)[one.session_id],
                    h.span(".badge")[state_badge(state_of_session(record, left, one.blocked))],
                    h.span(".agent")[one.agent],
                    h.span,
                    h.span(".age")[when(one.updated_at, now_ms)],
                    h.span(".said", dir="auto")["" if one.charter is None else one.charter.task],
                ]
                for one, record in zip(children, records, strict=True)
            ]
        ],
    ]


class CompareQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The session to compare this one with."""

    other: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]


@ROUTES.add("GET", f"{_PATH}/compare", Scope.READ, query=CompareQuery)
async def compare_page(call: Call) -> Response:
    """Show two branches side by side, below the history that they share."""
    asked: CompareQuery = call.query
    heads = [await call.head(), await call.head(asked.other)]
    paths = [
        [] if head.leaf is None else nodes_of(await call.runtime.store.path(head.leaf)) for head in heads
    ]
    shared = shared_length(*paths)
    turns = len({node.caused_by for node in paths[0][:shared]})
    columns = [await _column(call, head, path[shared:]) for head, path in zip(heads, paths, strict=True)]
    main = [
        h.header(".top")[
            h.h1["Compare"], h.a(href=f"/sessions/{heads[0].session_id}/branches")["All branches"]
        ],
        live_part(
            "compared",
            f"/sessions/{heads[0].session_id}/compare?other={heads[1].session_id}",
            h.p(".note")[f"Shared history: {count(turns, 'turn')} with {count(shared, 'message')}."],
            h.div(".columns")[columns],
            kind=".stack",
        ),
    ]
    title = f"{heads[0].session_id} and {heads[1].session_id}"
    return await page(call, title=title, place="sessions", main=main, stream="/live")


def shared_length(left: list[Node], right: list[Node]) -> int:
    """Return the number of leading nodes that two paths share."""
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one.id != other.id:
            return place
    return min(len(left), len(right))


async def _column(call: Call, head: SessionHead, nodes: list[Node]) -> h.Element:
    every = list(dict.fromkeys(node.caused_by for node in nodes))
    ids = every[-_MOST_TURNS:]
    found = await asyncio.gather(*(call.runtime.store.turn(one) for one in ids))
    records = {one.turn_id: one for one in found if one is not None}
    approvals = await call.runtime.store.approvals(session_id=head.session_id)
    made = await read_made(call.runtime, records.values(), nodes)
    turns = turns_of([node for node in nodes if node.caused_by in set(ids)], records, approvals, made)
    options = options_for(call, head)
    return h.section(".stack", aria_label=head.session_id)[
        h.h2[h.a(href=f"/sessions/{head.session_id}")[head.session_id]],
        len(every) > len(ids)
        and h.p(".muted.small")[f"… {count(len(every) - len(ids), 'earlier turn')} not shown"],
        [turn_html(turn, options) for turn in turns] or h.p(".muted")["No turns after the shared history."],
        await call.runtime.store.open_turn(head.session_id) is not None
        and h.p(".note.wait.small")["The current turn is compared when it has ended."],
    ]
