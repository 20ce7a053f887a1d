"""The offers of a store for one machine: all work, to every process that asks."""

from __future__ import annotations

from standfast.ports.session_store import SessionStore, SessionWork


async def offer(
    store: SessionStore, now_ms: int, agents: tuple[str, ...], limit: int, without: tuple[str, ...]
) -> list[SessionWork]:
    """Return up to *limit* sessions of these agents with work, except turns that need engines *without*."""
    found = [
        SessionWork(session_id=record.session_id, turn_id=record.turn_id)
        for record in await store.unfinished(now_ms)
        if record.agent in agents
        and (record.cancel_requested or record.summary is None or record.summary.engine not in without)
    ]
    for session_id in await store.with_queued():
        head = await store.head(session_id)
        if head is not None and head.agent in agents:
            found.append(SessionWork(session_id=session_id, turn_id=None))
    import random  # slow to import, and needed only by workers

    random.shuffle(found)  # otherwise sessions that cannot run could block all others
    return found[:limit]
