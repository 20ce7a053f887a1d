"""Forgetting on request: old sessions and records, earlier frames, abandoned branches, unused blobs.

Rules
-----
1. A segment that a session outside the request reaches on its active path stays.
2. A blob stays as long as its digest stands as text in a segment, in a waiting input or in an open turn, or
   a state or a save of an open turn lists it.
3. Nothing of an open turn goes, and no session that input waits for, that a task goes on for or that a
   trigger is going to wake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from standfast.graph import SessionGraph, frame_path
from standfast.model.approval import ApprovalState
from standfast.model.turn import TurnState
from standfast.ports.session_store import Pruned, PruneRequest
from standfast.store.memory_tables import SessionRow, Tables

_DIGEST: Final = re.compile(rb"[0-9a-f]{64}")


def prune(tables: Tables, request: PruneRequest) -> Pruned:
    """Forget what may go; what is gone, counted."""
    segments, states, blobs = len(tables.graph.segments), len(tables.states), len(tables.blobs)
    sessions = records = 0
    if request.sessions_before_ms is not None:
        sessions = _prune_sessions(tables, request.sessions_before_ms, request.session_id)
        records = _prune_records(tables, request.sessions_before_ms, request.session_id)
    if request.frames or request.branches:
        _prune_segments(tables, request)
    for row in tables.sessions.values():
        tables.sweep_states(row)
    _prune_blobs(tables)
    return Pruned(
        sessions=sessions,
        segments=segments - len(tables.graph.segments),
        states=states - len(tables.states),
        blobs=blobs - len(tables.blobs),
        records=records,
    )


def _prune_sessions(tables: Tables, before_ms: int, only: str | None) -> int:
    busy = tables.triggers.due_sessions()
    old = [
        session_id
        for session_id, row in tables.sessions.items()
        if only in (None, session_id)
        and row.head.updated_at < before_ms
        and _is_idle(tables, row)
        and session_id not in busy
    ]
    for session_id in old:
        tables.forget_session(session_id)
    return len(old)


def _is_idle(tables: Tables, row: SessionRow) -> bool:
    return row.open is None and not row.inputs and not tables.tasks.has_live(row.head.session_id)


def _prune_records(tables: Tables, before_ms: int, only: str | None) -> int:
    """Forget decided approvals, ended turns and occurrences of that age."""
    approvals = [
        approval_id
        for approval_id, (turn_id, it) in tables.approvals.items()
        if only in (None, it.session_id)
        and turn_id not in tables.open
        and it.state != ApprovalState.PENDING
        and (it.decided_at or it.requested_at) < before_ms
    ]
    for approval_id in approvals:
        del tables.approvals[approval_id]
    turns = [
        turn_id
        for turn_id, it in tables.turns.items()
        if only in (None, it.session_id) and it.state is TurnState.ENDED and (it.ended_at or 0) < before_ms
    ]
    for session_id in {tables.turns[turn_id].session_id for turn_id in turns}:
        row, gone = tables.sessions[session_id], set(turns)
        row.turns = [turn_id for turn_id in row.turns if turn_id not in gone]
    for turn_id in turns:
        tables.forget_turn(turn_id)
    occurrences = 0 if only is not None else tables.triggers.prune(before_ms)
    return len(approvals) + len(turns) + occurrences


def _prune_segments(tables: Tables, request: PruneRequest) -> None:
    graph, only = tables.graph, request.session_id
    asked = {session_id for session_id in graph.branches if only in (None, session_id)}
    kept, gone = graph.reached(), set[str]()
    if request.branches:
        gone = {it.segment_id for it in graph.segments.values() if only in (None, it.session_id)} - kept
    if request.frames:
        needed = graph.reached(graph.branches.keys() - asked)
        needed.update(*(_frame_of(graph, session_id) for session_id in asked))
        gone |= graph.reached(asked) - needed
    tables.forget_segments(gone)
    for row in tables.sessions.values() if gone else ():
        row.segments[:] = [segment_id for segment_id in row.segments if segment_id not in gone]


def _frame_of(graph: SessionGraph, session_id: str) -> set[str]:
    """The segments of the frame that a session is in."""
    leaf = graph.branch(session_id).leaf
    if leaf is None:
        return set()
    return {segment.segment_id for segment in frame_path(graph.segments.get, leaf)}


def _prune_blobs(tables: Tables) -> None:
    unnamed = {digest.encode() for digest in tables.blobs}
    for text in _texts(tables) if unnamed else ():
        unnamed.difference_update(_DIGEST.findall(text))
    for digest in unnamed:
        del tables.blobs[digest.decode()]


def _texts(tables: Tables) -> Iterator[bytes]:
    """Everything that could name a blob."""
    for turn in tables.open.values():
        yield turn.input
        yield from map(str.encode, turn.blobs)
        yield from (entry.body for entry in turn.journal)
    for item in tables.inputs.values():
        yield msgspec.json.encode(item)
    for segment in tables.graph.segments.values():
        yield msgspec.json.encode(segment.entries)
    yield from map(str.encode, tables.states.blobs())
