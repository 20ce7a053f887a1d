"""The trace of a turn, derived from the store: its own spans and those of its subagents' turns.

A subagent's session has the turn's session as its parent. A subagent's turn that began while the turn was
running is placed below the call that was running then; if there were several, below the last to begin.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import JournalNotKept
from standfast.model.code import RUN_CODE
from standfast.model.session import SessionHead
from standfast.model.trace_record import TraceRecord
from standfast.ports.session_store import SessionStore
from standfast.runtime.sessions.time_travel import find_journal
from standfast.trace.journal_spans import journal_spans
from standfast.trace.turn_spans import TracedTurn

MAX_TURNS: Final = 200
"""The most turns of subagents in the trace of one turn."""


async def turn_trace(
    store: SessionStore, session_id: str, turn_id: str, now_ms: int, *, contents: bool = False
) -> list[TraceRecord]:
    """Return the records of a turn and of its subagents' turns. Errors: `TurnNotFound`, `JournalNotKept`."""

    async def read(head: SessionHead | None, session_id: str, turn_id: str) -> list[TraceRecord]:
        turn = await find_journal(store, session_id, turn_id)
        about = TracedTurn(session_id, turn.record.agent, "" if head is None else head.model, RUN_CODE)
        return journal_spans(turn, about, now_ms=now_ms, contents=contents)

    found = await read(await store.head(session_id), session_id, turn_id)
    pending, turns = [(session_id, found)], 0
    while pending and turns < MAX_TURNS:
        above, own = pending.pop(0)
        start, end = own[0].at_ms, max(one.at_ms for one in own)
        for child in await store.children(above):
            for record in await store.turns(child.session_id):
                if not start <= record.created_at <= end or turns >= MAX_TURNS:
                    continue
                try:
                    below = await read(child, child.session_id, record.turn_id)
                except JournalNotKept:
                    continue
                turns += 1
                parent_id = _span_at(own, record.created_at)
                below = [
                    msgspec.structs.replace(one, parent_id=parent_id) if one.kind == "turn" else one
                    for one in below
                ]
                found += below
                pending.append((child.session_id, below))
    return found


def _span_at(records: list[TraceRecord], at_ms: int) -> str:
    """Return the span of the last call that was running at that time, or that of the turn."""
    calls = [
        one
        for one in records
        if one.kind in ("tool_call", "cell") and (one.started_at_ms or 0) <= at_ms <= one.at_ms
    ]
    if calls:
        return max(calls, key=lambda one: one.started_at_ms or 0).span_id
    return next((one.span_id for one in records if one.kind == "turn"), records[0].parent_id)
