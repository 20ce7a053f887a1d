"""The operator's page: running, waiting and stuck turns, queues, tasks, triggers, and pruning."""

from __future__ import annotations

from typing import Final

import htpy as h
from starlette.responses import Response

from standfast.model.outcome import Waiting
from standfast.model.session import SessionHead, TurnRecord
from standfast.model.task import TaskRecord
from standfast.model.trigger import Trigger
from standfast.runtime.http_values import Prune
from standfast.runtime.operations import OperationsView
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.operations import prune as prune_store
from standfast.server.problems import malformed
from standfast.server.tenants import owns_id
from standfast.workbench.forms import field, read_form
from standfast.workbench.parts import cards, data_table, due, state_badge, when
from standfast.workbench.shell import page, respond
from standfast.workbench.words import count, size

_MOST: Final = 100
_AGES: Final = {"30": "30 days", "90": "90 days", "365": "a year"}
ROUTES: Final = Routes()


@ROUTES.add("GET", "/operations", Scope.READ)
async def operations_page(call: Call) -> Response:
    """Show the turns, tasks and triggers of the sessions that the credential may see.

    An operator also sees leases, processes and the size of the store.
    """
    store, now_ms = call.runtime.store, call.runtime.now_ms()
    heads = await call.visible_heads()
    mine = {head.session_id for head in heads}
    tasks = [one for one in await store.tasks(live=True) if one.session_id in mine][:_MOST]
    triggers = [one for one in await call.runtime.triggers() if owns_id(call.tenant, one.name)][:_MOST]
    operator = not call.tenant and call.credential.allows(Scope.ADMIN)
    view = await call.runtime.operations() if operator else None
    left = await store.unfinished(now_ms) if view is None else view.stuck
    stuck = [one for one in left if view is not None or one.session_id in mine][:_MOST]
    main: list[h.Node] = [
        h.header(".top")[h.h1["Operations"], h.p("#total.muted")[count(len(heads), "session")]],
        h.div(
            "#state.stack",
            hx_get="/operations",
            hx_trigger="changed from:#live, every 5s",
            hx_sync="this:queue last",
            hx_select="#state",
            hx_select_oob="#total",
            hx_swap="outerMorph",
        )[
            None if view is None else _cards(view),
            _stuck_table(stuck, now_ms),
            None if view is None else _operator_tables(view),
            _tasks_table(tasks, now_ms),
            _triggers_table(triggers, now_ms),
            _blocked_table(heads, now_ms),
        ],
        operator and _prune_form(),
    ]
    return await page(call, title="Operations", place="operations", main=main, stream="/live")


def _cards(view: OperationsView) -> h.Element:
    counts = view.counts
    return cards(
        (
            ("Running turns", f"{counts.running:,}", ".running"),
            ("Waiting turns", f"{counts.waiting:,}", ".waiting"),
            ("Stuck turns", f"{counts.stuck:,}", ".blocked" if counts.stuck else ".idle"),
            ("Queued inputs", f"{counts.queued:,}", ".idle"),
            ("Store", "in memory" if view.bytes is None else size(view.bytes), ".idle"),
        )
    )


def _operator_tables(view: OperationsView) -> h.Node:
    """Render processes with their leases, queues, waiting turns, and record counts of the store."""
    processes: list[list[h.Node]] = [
        [h.code[one.process], f"{len(one.sessions):,}", _sessions(one.sessions)]
        for one in view.workers[:_MOST]
    ]
    queues: list[list[h.Node]] = [
        [_session(one.session_id), f"{one.inputs:,}", when(one.oldest_at, view.now_ms, " ago")]
        for one in view.queues[:_MOST]
    ]
    waiting: list[list[h.Node]] = [
        [_session(one.session_id), one.agent, wait.kind, due(wait.due_at, view.now_ms)]
        for one in view.waiting[:_MOST]
        for wait in one.waits
    ]
    rows: list[list[h.Node]] = [[name, f"{number:,}"] for name, number in view.rows.items() if number]
    return [
        _table("Processes with leases", ("Process", "Leases", "Sessions"), processes, "No turn is running."),
        bool(queues) and _table("Queues", ("Session", "Inputs", "Oldest"), queues, ""),
        bool(waiting) and _table("Waiting turns", ("Session", "Agent", "Waiting for", "Due"), waiting, ""),
        _table("Records in the store", ("Table", "Rows"), rows, "The store is empty."),
    ]


def _sessions(ids: tuple[str, ...]) -> h.Node:
    shown: list[h.Node] = []
    for session_id in ids[:5]:
        shown += [", " if shown else "", _session(session_id)]
    return [*shown, f" and {len(ids) - 5:,} more" if len(ids) > 5 else ""]


def _table(title: str, columns: tuple[str, ...], rows: list[list[h.Node]], nothing: str) -> h.Element:
    """Render a titled table, or the text *nothing* if it has no rows."""
    return h.section(".stack")[
        h.h2[title],
        data_table(title, columns, rows, "" if len(columns) > 2 else ".short")
        if rows
        else h.p(".muted")[nothing],
    ]


def _session(session_id: str) -> h.Element:
    return h.a(href=f"/sessions/{session_id}")[session_id]


def _stuck_table(stuck: list[TurnRecord], now_ms: int) -> h.Element:
    rows: list[list[h.Node]] = [
        [
            _session(one.session_id),
            one.agent,
            "its wait is over"
            if one.summary is not None and isinstance(one.summary.outcome, Waiting)
            else "its process is gone",
            when(one.created_at, now_ms, " ago"),
        ]
        for one in stuck
    ]
    columns = ("Session", "Agent", "Why it could continue", "Started")
    return _table("Stuck turns", columns, rows, "None: every turn that can run is running.")


def _tasks_table(tasks: list[TaskRecord], now_ms: int) -> h.Node:
    if not tasks:
        return None
    rows: list[list[h.Node]] = [
        [
            one.label or one.id,
            _session(one.session_id),
            state_badge("running" if not one.state.is_terminal else "idle", str(one.state)),
            when(one.created_at, now_ms, " ago"),
        ]
        for one in tasks
    ]
    return _table("Background tasks", ("Task", "Session", "State", "Started"), rows, "")


def _triggers_table(triggers: list[Trigger], now_ms: int) -> h.Node:
    if not triggers:
        return None
    rows: list[list[h.Node]] = [
        [
            one.name,
            _session(one.session_id),
            one.source if one.schedule is None else h.code[one.schedule.cron or one.source],
            ("off" if not one.enabled else "–") if one.next_at is None else due(one.next_at, now_ms),
        ]
        for one in triggers
    ]
    return _table("Triggers", ("Trigger", "Session", "Source", "Next"), rows, "")


def _blocked_table(heads: list[SessionHead], now_ms: int) -> h.Node:
    blocked = [(head, head.blocked) for head in heads if head.blocked is not None][:_MOST]
    if not blocked:
        return None
    rows: list[list[h.Node]] = [
        [
            _session(head.session_id),
            f"{note.error.code}: {note.error.message}",
            when(note.at_ms, now_ms, " ago"),
        ]
        for head, note in blocked
    ]
    return _table("Blocked sessions", ("Session", "Why", "Since"), rows, "")


def _prune_form() -> h.Element:
    return h.form(
        ".panel",
        hx_post="/operations/prune",
        hx_target="#pruned",
        hx_confirm="Delete these sessions and records permanently?",
    )[
        h.h2["Prune"],
        h.p(".muted.small")["Permanently deletes idle sessions and old records, and frees their space."],
        h.div(".row.ends")[
            h.label[
                h.span["Unused for"],
                h.select(name="days")[[h.option(value=days)[text] for days, text in _AGES.items()]],
            ],
            h.label[
                h.span["Also delete"],
                h.select(name="also")[
                    h.option(value="")["nothing else"],
                    h.option(value="branches")["rewound turns"],
                    h.option(value="frames")["earlier frames"],
                ],
            ],
            h.button(".danger")["Prune"],
        ],
        h.p("#pruned", role="status"),
    ]


@ROUTES.add("POST", "/operations/prune", Scope.ADMIN, body=bytes, operator_only=True)
async def prune(call: Call) -> Response:
    """Delete old sessions and records, and show how many were deleted."""
    form = read_form(call)
    days, also = field(form, "days"), field(form, "also")
    if days not in _AGES:
        raise malformed(f"days must be one of {', '.join(_AGES)}, got {days[:20]!r}")
    call.body = Prune(older_than_s=int(days) * 86_400, branches=also == "branches", frames=also == "frames")
    done = await prune_store(call)
    return respond(
        f"Deleted {count(done.sessions, 'session')}, {count(done.segments, 'segment')} and "
        f"{count(done.records, 'record')}; {size(done.bytes_freed)} freed."
    )
