"""The list of sessions, with search, filters and live states; and a form that creates a session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import htpy as h
import msgspec
from starlette.responses import Response

from standfast.graph.history import nodes_of
from standfast.machine.inputs import TurnStarted, decode_input
from standfast.model.limits import NANO, Usage
from standfast.model.message import AssistantMessage, UserMessage, text_of
from standfast.model.outcome import Waiting
from standfast.model.session import Node, SessionHead, TurnRecord
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.session_views import state_of_session
from standfast.runtime.sessions.observation import blocked_in
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.workbench.conversation import is_cell
from standfast.workbench.markdown import plain_text
from standfast.workbench.parts import STATES, empty, live_part, pager, state_badge, when
from standfast.workbench.shell import page
from standfast.workbench.words import cost, count, one_line

_PAGE: Final = 40
_LAST_NODES: Final = 6
_AGES: Final = {"1h": 3_600_000, "1d": 86_400_000, "7d": 7 * 86_400_000}
_COSTS: Final = {"0.01": "$0.01", "0.1": "$0.10", "1": "$1", "10": "$10"}
ROUTES: Final = Routes()


class SessionsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of the list. `q` searches the id, agent, model and task."""

    q: Annotated[str, msgspec.Meta(max_length=200)] = ""
    state: Literal["", "idle", "running", "waiting", "interrupted", "blocked"] = ""
    agent: Annotated[str, msgspec.Meta(max_length=100)] = ""
    age: Literal["", "1h", "1d", "7d"] = ""
    cost: Literal["", "0.01", "0.1", "1", "10"] = ""
    skip: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionListRow:
    """One row of the list."""

    session_id: str
    state: str
    waits_for: str
    agent: str
    updated_at: int
    usage: Usage
    said: str
    parent: str


@ROUTES.add("GET", "/", Scope.READ, query=SessionsQuery)
async def sessions_page(call: Call) -> Response:
    """List sessions, the most recently used first."""
    asked: SessionsQuery = call.query
    heads = await call.visible_heads()
    now_ms = call.runtime.now_ms()
    rows, more = await _rows(call.runtime, _matching(heads, asked, now_ms), asked)
    address = "/?" + urlencode({**_given(asked), "skip": asked.skip})
    agents = sorted({head.agent for head in heads if head.agent} | set(call.server.agents))
    main = [
        h.header(".top")[
            h.h1["Sessions"],
            h.div(".row.wide-gap")[
                h.span("#total.muted.spare")[count(len(heads), "session")],
                call.credential.allows(Scope.RUN)
                and call.server.agents
                and h.button(".primary", type="button", data_open="new")["New session"],
            ],
        ],
        _filters(asked, agents),
        live_part(
            "rows",
            address,
            h.div(".list.sessions")[[_row_html(row, now_ms) for row in rows]]
            if rows
            else _nothing(asked, bool(heads)),
            _pages(asked, more),
            beside="total",
        ),
        _new_session(call),
    ]
    return await page(call, title="Sessions", place="sessions", main=main, stream="/live")


def _given(asked: SessionsQuery) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(asked).items() if value}


def _matching(heads: Iterable[SessionHead], asked: SessionsQuery, now_ms: int) -> list[SessionHead]:
    """Return the sessions that match every filter but `state`."""
    words = asked.q.lower().split()
    least = int(float(asked.cost) * NANO) if asked.cost else 0
    since = now_ms - _AGES[asked.age] if asked.age else 0
    found = []
    for head in heads:
        task = "" if head.charter is None else head.charter.task
        text = f"{head.session_id} {head.agent} {head.model} {task} {head.forked_from or ''}".lower()
        if (
            asked.agent in ("", head.agent)
            and head.updated_at >= since
            and _used(head).cost_nano_usd >= least
            and all(word in text for word in words)
        ):
            found.append(head)
    return found


def _used(head: SessionHead) -> Usage:
    used = Usage()
    for entry in head.usage:
        used += entry.usage
    return used


async def _rows(
    runtime: Runtime, heads: list[SessionHead], asked: SessionsQuery
) -> tuple[list[SessionListRow], bool]:
    """Return the rows of one page, and whether there are more."""
    left = {record.turn_id for record in await runtime.store.unfinished(runtime.now_ms())}
    rows: list[SessionListRow] = []
    skipped = 0
    for head in heads:
        if not asked.state and skipped < asked.skip:
            skipped += 1
            continue
        record = await runtime.store.open_turn(head.session_id)
        state = state_of_session(record, left, await blocked_in(runtime.store, head))
        if asked.state not in ("", state):
            continue
        if skipped < asked.skip:
            skipped += 1
            continue
        if len(rows) == _PAGE:
            return rows, True
        rows.append(session_row(head, state, record, await _last_words(runtime, head, record)))
    return rows, False


async def _last_words(runtime: Runtime, head: SessionHead, record: TurnRecord | None) -> str:
    """Return the last message: of the unfinished turn if there is one, else of the history."""
    turn = None if record is None else await runtime.store.open_turn_journal(head.session_id)
    started = None if turn is None else decode_input(turn.input)
    if isinstance(started, TurnStarted):
        code = "" if started.code is None else started.code.code
        return one_line(code if started.message is None else text_of(started.message.content))
    if head.leaf is None:
        return ""
    after = max(0, head.depth - _LAST_NODES)
    return last_said(nodes_of(await runtime.store.path(head.leaf, after_depth=after)))


def session_row(head: SessionHead, state: str, record: TurnRecord | None, said: str) -> SessionListRow:
    """Return the row of a session; *said* is its last message."""
    outcome = None if record is None or record.summary is None else record.summary.outcome
    kinds = {wait.kind for wait in outcome.waits} if isinstance(outcome, Waiting) else set()
    words = {"approval": "a decision", "timer": "a timer", "completion": "a result"}
    return SessionListRow(
        session_id=head.session_id,
        state=state,
        waits_for=", ".join(sorted(words[kind] for kind in kinds)) if state == "waiting" else "",
        agent=head.agent,
        updated_at=head.updated_at,
        usage=_used(head),
        said=said or (head.charter.task if head.charter is not None else ""),
        parent="" if head.charter is None else head.charter.parent_session_id or "",
    )


def last_said(nodes: list[Node]) -> str:
    """Return the last message of the user or the model, or the last code, on one line."""
    for node in reversed(nodes):
        payload = node.payload
        if isinstance(payload, AssistantMessage) and payload.text.strip():
            return one_line(plain_text(payload.text))
        if isinstance(payload, UserMessage) and (text := text_of(payload.content).strip()):
            return one_line(text)
        if isinstance(payload, AssistantMessage) and payload.tool_calls and is_cell(payload.tool_calls[0]):
            return one_line(str((payload.tool_calls[0].arguments or {})["code"]))
    return ""


def _row_html(row: SessionListRow, now_ms: int) -> h.Element:
    waits = f"Waiting for {row.waits_for}" if row.waits_for else ""
    return h.div(".line", id=f"s-{row.session_id}")[
        h.a(".name", href=f"/sessions/{row.session_id}", data_row=True)[row.session_id],
        h.span(".badge")[state_badge(row.state, waits)],
        h.span(".agent", title=row.agent)[row.agent],
        h.span(".cost")[cost(row.usage)],
        h.span(".age")[when(row.updated_at, now_ms)],
        h.span(".said", dir="auto")[row.said or "No messages yet"],
    ]


def _filters(asked: SessionsQuery, agents: list[str]) -> h.Element:
    def choice(name: str, title: str, options: Iterable[tuple[str, str]], chosen: str) -> h.Element:
        return h.label[
            h.span[title],
            h.select(name=name)[
                [h.option(value=value, selected=value == chosen)[text] for value, text in options]
            ],
        ]

    return h.form(
        ".filters",
        role="search",
        action="/",
        hx_get="/",
        hx_trigger="input delay:250ms, submit",  # `change` would reload the list and push its URL twice
        hx_target="#rows",
        hx_select="#rows",
        hx_swap="outerMorph",
        hx_push_url="true",
    )[
        h.label(".wide")[
            h.span["Search"],
            h.input(
                name="q",
                type="search",
                value=asked.q,
                data_search=True,
                placeholder="ID, agent, model or task",
            ),
        ],
        choice("state", "State", [("", "Any"), *STATES.items()], asked.state),
        choice("agent", "Agent", [("", "Any"), *((name, name) for name in agents)], asked.agent),
        choice(
            "age",
            "Last used",
            [("", "Any time"), ("1h", "Past hour"), ("1d", "Past day"), ("7d", "Past week")],
            asked.age,
        ),
        choice(
            "cost",
            "Cost",
            [("", "Any"), *((value, f"{text} or more") for value, text in _COSTS.items())],
            asked.cost,
        ),
    ]


def _pages(asked: SessionsQuery, more: bool) -> h.Node:
    if not more and not asked.skip:
        return None
    given = _given(asked)
    before = "/?" + urlencode({**given, "skip": max(0, asked.skip - _PAGE)})
    after = "/?" + urlencode({**given, "skip": asked.skip + _PAGE})
    return pager("Pages", "", before if asked.skip else None, after if more else None, ".more")


def _nothing(asked: SessionsQuery, any_session: bool) -> h.Element:
    if any_session and _given(asked):
        return empty("No matching sessions", h.a(href="/")["Clear the filters"])
    return empty(
        "No sessions yet",
        "Sessions started by clients, by triggers or with the button above appear here.",
        ["To start one from a terminal, run ", h.code["standfast chat"], "."],
    )


def _new_session(call: Call) -> h.Node:
    if not call.credential.allows(Scope.RUN) or not call.server.agents:
        return None
    return h.dialog("#new", aria_labelledby="new-title")[
        h.h2("#new-title")["New session"],
        h.form(".stack", hx_post="/sessions", hx_swap="none")[
            h.label[
                h.span["Agent"],
                h.select(name="agent")[[h.option(value=name)[name] for name in call.server.agents]],
            ],
            h.label[
                h.span["Session ID"],
                h.input(
                    name="session_id",
                    maxlength="64",
                    pattern="[a-zA-Z0-9_\\-]{1,64}",
                    placeholder="Generated if empty",
                    autocomplete="off",
                ),
            ],
            h.label[h.span["First message"], h.textarea(name="message", rows="3", dir="auto")],
            h.div(".row")[
                h.button(".primary")["Start session"],
                h.button(type="button", data_close=True)["Cancel"],
            ],
        ],
    ]
