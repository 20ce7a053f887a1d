"""Deletes old sessions and records, frames, abandoned branches and unused blobs, as `sql.prune` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from standfast.graph.history import frame_path
from standfast.model.session import TurnState
from standfast.ports.session_store import Pruned, PruneRequest
from standfast.store import rules
from standfast.store.memory_tables import Tables

K = TypeVar("K")
V = TypeVar("V")


def prune(tables: Tables, request: PruneRequest) -> Pruned:
    """Delete the data that *request* names; return the counts."""
    segments, states, blobs = len(tables.segments), len(tables.states), len(tables.blobs)
    sessions, records = _prune_sessions(tables, request), 0
    if request.sessions_before_ms is not None:
        records = _prune_records(tables, request.sessions_before_ms, request.session_id)
    if request.frames or request.branches:
        _prune_segments(tables, request)
    for row in tables.sessions.values():
        tables.sweep_states(row)
    unnamed = {digest.encode() for digest in tables.blobs}
    for text in _texts(tables) if unnamed else ():
        unnamed.difference_update(rules.blob_digests(text))
    for digest in unnamed:
        del tables.blobs[digest.decode()]
    return Pruned(
        sessions=sessions,
        segments=segments - len(tables.segments),
        states=states - len(tables.states),
        blobs=blobs - len(tables.blobs),
        records=records,
    )


def _prune_sessions(tables: Tables, request: PruneRequest) -> int:
    busy = {it.session_id for it in tables.triggers.values() if rules.due_at(it) is not None}
    old = [
        session_id
        for session_id, row in tables.sessions.items()
        if request.session_id in (None, session_id)
        and rules.may_be_pruned(
            row.head,
            request,
            idle=row.open is None
            and not row.inputs
            and session_id not in busy
            and all(it.record.state.is_terminal for it in tables.tasks.get(session_id, {}).values()),
            running=row.open is not None and row.open.record.state is TurnState.RUNNING,
        )
    ]
    for session_id in old:
        tables.drop_session(session_id)
    return len(old)


def _prune_records(tables: Tables, before_ms: int, only: str | None) -> int:
    """Delete decided approvals, ended turns, snapshots and occurrences of that age."""
    count = _drop(
        tables.approvals,
        lambda it: (
            only in (None, it.session_id)
            and it.run_id not in tables.open
            and rules.approval_is_old(it, before_ms)
        ),
    )
    count += _drop(tables.snapshots, lambda it: only in (None, it[0]) and it[1] < before_ms)
    count += _drop(tables.occurrences, lambda at_ms: only is None and at_ms < before_ms)
    turns = [
        turn_id
        for turn_id, it in tables.turns.items()
        if only in (None, it.session_id) and it.state is TurnState.ENDED and (it.ended_at or 0) < before_ms
    ]
    for session_id in {tables.turns[turn_id].session_id for turn_id in turns}:
        row, gone = tables.sessions[session_id], set(turns)
        row.turns = [turn_id for turn_id in row.turns if turn_id not in gone]
    for turn_id in turns:
        tables.drop_turn(turn_id)
    return count + len(turns)


def _drop(table: dict[K, V], is_old: Callable[[V], bool]) -> int:
    """Delete the old records of *table*; return how many."""
    old = [key for key, record in table.items() if is_old(record)]
    for key in old:
        del table[key]
    return len(old)


def _prune_segments(tables: Tables, request: PruneRequest) -> None:
    only, sessions = request.session_id, tables.sessions
    asked = {session_id for session_id in sessions if only in (None, session_id)}
    kept, gone = tables.reached(sessions), set[str]()
    if request.branches:
        gone = {it.segment_id for it in tables.segments.values() if only in (None, it.session_id)} - kept
    if request.frames:
        needed = tables.reached(sessions.keys() - asked)
        for leaf in filter(None, (sessions[session_id].head.leaf for session_id in asked)):
            needed.update(segment.segment_id for segment in frame_path(tables.segments.get, leaf))
        gone |= tables.reached(asked) - needed
    tables.drop_segments(gone)
    for row in tables.sessions.values() if gone else ():
        row.segments[:] = [segment_id for segment_id in row.segments if segment_id not in gone]


def _texts(tables: Tables) -> Iterator[bytes]:
    """Yield all data that could refer to a blob."""
    for turn in tables.open.values():
        yield turn.input
        yield from map(str.encode, turn.blobs)
        yield from (entry.body for entry in turn.journal)
    for first, entries, _ in tables.journals.values():
        yield from rules.journal_texts(first, entries)
    for item in tables.inputs.values():
        yield msgspec.json.encode(item)
    for segment in tables.segments.values():
        yield msgspec.json.encode(segment.entries)
    for state, _ in tables.states.values():
        yield from map(str.encode, state.blobs)
