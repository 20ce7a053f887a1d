"""The operator's view of a store and of the processes that use it."""

from __future__ import annotations

import msgspec

from standfast.model.outcome import Wait, Waiting
from standfast.model.session import HoldsSessionIds, SessionIdField, TurnRecord, TurnState
from standfast.model.trigger import Trigger
from standfast.ports.session_store import HeldLease, SessionStore, TurnCounts


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds leases, with its name (machine, pid, start time) and the leased sessions."""

    process: str
    sessions: tuple[str, ...]


class TurnWaits(HoldsSessionIds, frozen=True, kw_only=True):
    """A waiting turn. Each of its `waits` has the time at which it ends at the latest."""

    turn_id: str
    session_id: SessionIdField
    agent: str
    waits: tuple[Wait, ...]


class SessionQueue(HoldsSessionIds, frozen=True, kw_only=True):
    """A session with queued inputs, and since when the oldest of them has been waiting."""

    session_id: SessionIdField
    inputs: int
    oldest_at: int


class OperationsView(msgspec.Struct, frozen=True, kw_only=True):
    """Leases, workers, queues, waits, triggers and sizes, of all processes that use the store.

    `stuck` are the turns that could continue but that no process runs; a turn is stuck for a moment whenever
    a wait ends. `rows` counts the records of each table; `bytes` is the database's size, None in memory.
    """

    now_ms: int
    counts: TurnCounts
    workers: tuple[LeaseHolder, ...]
    leases: tuple[HeldLease, ...]
    running: tuple[TurnRecord, ...]
    stuck: tuple[TurnRecord, ...]
    waiting: tuple[TurnWaits, ...]
    queues: tuple[SessionQueue, ...]
    triggers: tuple[Trigger, ...]
    rows: dict[str, int]
    bytes: int | None


async def view_operations(store: SessionStore, now_ms: int, lease_now_ms: int) -> OperationsView:
    """Return the current operations view of a store."""
    found = await store.survey()
    left = await store.unfinished(now_ms, lease_now_ms=lease_now_ms)
    stuck = {record.turn_id for record in left}
    processes: dict[str, list[str]] = {}
    for lease in found.leases:
        processes.setdefault(lease.owner.rpartition("/")[0], []).append(lease.session_id)
    queues = []
    for session_id in await store.with_queued():
        inputs = [item for item in await store.inputs(session_id) if item.kind == "queue"]
        if inputs:
            oldest = min(item.created_at for item in inputs)
            queues.append(SessionQueue(session_id=session_id, inputs=len(inputs), oldest_at=oldest))
    return OperationsView(
        now_ms=now_ms,
        counts=await store.turn_counts(now_ms, lease_now_ms=lease_now_ms),
        workers=tuple(
            LeaseHolder(process=name, sessions=tuple(sessions))
            for name, sessions in sorted(processes.items())
        ),
        leases=found.leases,
        running=tuple(
            one for one in found.turns if one.state is TurnState.RUNNING and one.turn_id not in stuck
        ),
        stuck=tuple(left),
        waiting=tuple(_waiting(one) for one in found.turns if one.state is TurnState.WAITING),
        queues=tuple(queues),
        triggers=tuple(await store.triggers()),
        rows=found.rows,
        bytes=found.bytes,
    )


def _waiting(record: TurnRecord) -> TurnWaits:
    outcome = None if record.summary is None else record.summary.outcome
    return TurnWaits(
        turn_id=record.turn_id,
        session_id=record.session_id,
        agent=record.agent,
        waits=outcome.waits if isinstance(outcome, Waiting) else (),
    )
