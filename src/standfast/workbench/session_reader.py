"""Reads for a session's page: a window of its history, its unfinished turn, its pending requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from standfast.errors import JournalNotKept, TurnNotFound
from standfast.graph.history import nodes_of
from standfast.model.approval import Approval
from standfast.model.call_history import CallHistory
from standfast.model.session import (
    Blocked,
    CurrentTurn,
    Node,
    SessionHead,
    TurnRecord,
    split_node_id,
)
from standfast.ports.session_store import QueuedInput
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.sessions.observation import blocked_in
from standfast.workbench.conversation import TurnItems, turns_of, turns_with_cells

WINDOW: Final = 60
"""The number of nodes that a page shows at first and adds per window, extended to whole turns."""

MOST_CALLS: Final = 300
"""A turn with more calls shows their results on demand, not beside its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindow:
    """Some turns of a session, oldest first. `earlier` is the node before the first one, if there is one."""

    turns: list[TurnItems]
    earlier: str | None = None
    earlier_depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNow:
    """The current state of a session, without its history."""

    head: SessionHead
    state: str
    current: CurrentTurn | None
    approvals: list[Approval]
    inputs: list[QueuedInput]
    blocked: Blocked | None
    made: tuple[CallHistory, ...] = ()
    """The calls that the code of the unfinished turn has made, unless an agent's turn is running."""


async def read_window(
    runtime: Runtime, session_id: str, leaf: str | None, depth: int, after_depth: int | None = None
) -> SessionWindow:
    """Return the turns up to node *leaf* at *depth*: one window, or everything after *after_depth*."""
    if leaf is None or depth == 0:
        return SessionWindow(turns=[])
    after = max(0, depth - WINDOW) if after_depth is None else after_depth
    segments = await runtime.store.path(leaf, after_depth=after)
    nodes = nodes_of(segments)
    ids = {node.caused_by for node in nodes}
    found = await asyncio.gather(*(runtime.store.turn(turn_id) for turn_id in ids))
    records = {one.turn_id: one for one in found if one is not None}
    approvals = await runtime.store.approvals(session_id=session_id)
    first = segments[0] if segments else None
    earlier = first.parent if first is not None and first.depth > 0 else None
    return SessionWindow(
        turns=turns_of(nodes, records, approvals, await read_made(runtime, records.values(), nodes)),
        earlier=earlier,
        earlier_depth=0 if first is None else first.depth,
    )


async def read_made(
    runtime: Runtime, records: Iterable[TurnRecord], nodes: Iterable[Node]
) -> dict[str, tuple[CallHistory, ...]]:
    """Return the calls made by the code of ended turns, by turn id, as far as their journals are kept.

    The *nodes* of the turns show which of them ran code.
    """
    ran_code = turns_with_cells(nodes)
    wanted = [
        one
        for one in records
        if one.turn_id in ran_code and one.summary is not None and 0 < len(one.summary.calls) <= MOST_CALLS
    ]
    found = await asyncio.gather(*(calls_by_code(runtime, one.session_id, one.turn_id) for one in wanted))
    return {one.turn_id: calls for one, calls in zip(wanted, found, strict=True)}


async def calls_by_code(runtime: Runtime, session_id: str, turn_id: str) -> tuple[CallHistory, ...]:
    """Return the calls that a turn's code made, () if its journal is not kept."""
    try:
        calls = await runtime.session_handle(session_id).call_history(turn_id)
    except (JournalNotKept, TurnNotFound):
        return ()
    return tuple(one for one in calls.values() if one.call.parent)


async def read_now(runtime: Runtime, session_id: str) -> SessionNow:
    """Return a session's state, its unfinished turn and its waits."""
    store, session = runtime.store, runtime.session_handle(session_id)
    record = await store.open_turn(session_id)
    current = None if record is None else await session.current_turn()
    head = await session.head()
    if current is not None and head.leaf is not None and split_node_id(head.leaf)[0] == current.turn_id:
        current = None  # it has ended since, and is in the history now
    approvals = [] if current is None else await store.approvals(turn_id=current.turn_id)
    blocked = await blocked_in(store, head)
    made: tuple[CallHistory, ...] = ()
    if current is not None and (current.state != "running" or head.code is not None):
        made = await calls_by_code(runtime, session_id, current.turn_id)
    return SessionNow(
        head=head,
        state=state_of(current, blocked),
        current=current,
        approvals=approvals,
        inputs=await session.inputs(),
        blocked=blocked,
        made=made,
    )


def state_of(current: CurrentTurn | None, blocked: Blocked | None) -> str:
    """Return `idle`, `waiting`, `running`, `interrupted` (its process died) or `blocked` (it cannot run)."""
    if blocked is not None and (current is None or current.state == "interrupted"):
        return "blocked"
    return "idle" if current is None else current.state
