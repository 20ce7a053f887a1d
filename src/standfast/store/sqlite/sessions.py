"""Sessions in one SQLite file that several processes may use at once.

Theory of operation
-------------------
Writes go to the file's one writer thread, which commits for all waiting callers at once (`Database`); reads
run on threads of their own and never wait for the writer. The modules beside this one contain what happens
inside a transaction: `turns`, `history`, `inputs`, `waits`, `records`, `prune`.

Rules
-----
1. A write that changes a record reads it in the same transaction, so a comparison is a compare-and-set.
2. What can be encoded before the transaction is, because all callers wait for the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from standfast.model.approval import Approval, Decision
from standfast.model.canonical import Json
from standfast.model.limits import UsageEntry
from standfast.model.session import (
    Blocked,
    CodeSettings,
    Entry,
    Segment,
    SessionCharter,
    SessionHead,
    TurnRecord,
    TurnSummary,
)
from standfast.model.task import TaskRecord
from standfast.model.trigger import Occurrence, Trigger
from standfast.model.wait import WaitOutcome
from standfast.ports.session_store import (
    Begun,
    Blob,
    Claimant,
    CommitRefused,
    Lease,
    NewSession,
    NewTurn,
    Pruned,
    PruneRequest,
    QueuedInput,
    Renewed,
    Repeated,
    Save,
    Saved,
    SeenClock,
    StateRecord,
    Takeover,
    TurnCommit,
    TurnInProgress,
)
from standfast.store import rules
from standfast.store.sqlite import history, inputs, prune, records, rows, turns, waits
from standfast.store.sqlite.database import MAX_READERS, Database
from standfast.store.sqlite.inputs import occur
from standfast.store.sqlite.sandbox_migration import COMPONENTS
from standfast.tools.threads import BlockingLoop, DaemonThreads

T = TypeVar("T")


class SqliteSessionStore:
    """A `SessionStore` in the file *path*, made if need be, for this user only."""

    durable = True

    def __init__(
        self, path: str | Path, *, owner_is_dead: Callable[[str], bool] = lambda owner: False
    ) -> None:
        self.database = Database(path, COMPONENTS)
        self._owner_is_dead = owner_is_dead
        self._threads = DaemonThreads("standfast-reader", at_most=MAX_READERS)

    async def close(self) -> None:
        await self._threads.run(self.database.close)
        self._threads.close()

    async def _write(self, job: Callable[[apsw.Connection], T]) -> T:
        if isinstance(asyncio.get_running_loop(), BlockingLoop):
            return self.database.write(job)  # the caller's thread has nothing else to do
        return await self.database.write_soon(job)

    async def _read(self, query: Callable[[apsw.Connection], T]) -> T:
        if isinstance(asyncio.get_running_loop(), BlockingLoop):
            return self.database.read_consistently(query)
        return await self._threads.run(lambda: self.database.read_consistently(query))

    # Sessions and their history

    async def open_session(self, head: SessionHead) -> SessionHead:
        def job(db: apsw.Connection) -> SessionHead:
            found = rows.find_session(db, head.session_id)
            return rows.insert_session(db, head).head if found is None else found.head

        found = await self.head(head.session_id)
        return await self._write(job) if found is None else found

    async def head(self, session_id: str) -> SessionHead | None:
        found = await self._read(lambda db: rows.find_session(db, session_id))
        return None if found is None else found.head

    async def heads(self) -> list[SessionHead]:
        return await self._read(rows.heads)

    async def describe(
        self,
        session_id: str,
        *,
        agent: str,
        model: str,
        host: dict[str, Json],
        metadata: dict[str, Json] | None = None,
        code: CodeSettings | None = None,
    ) -> None:
        def job(db: apsw.Connection) -> None:
            session = rows.require_session(db, session_id)
            head = rules.described(
                session.head, agent=agent, model=model, host=host, metadata=metadata, code=code
            )
            rows.write_head(db, session, head)

        await self._write(job)

    async def note_blocked(self, session_id: str, blocked: Blocked | None) -> None:
        def job(db: apsw.Connection) -> None:
            session = rows.find_session(db, session_id)
            if session is not None:
                head = msgspec.structs.replace(session.head, blocked=blocked)
                rows.write_head(db, session, head)

        await self._write(job)

    async def delete_session(self, session_id: str) -> bool:
        return await self._write(lambda db: prune.delete_session(db, session_id, self._owner_is_dead))

    async def frame(self, leaf: str, *, known: str | None = None) -> tuple[Segment, ...]:
        return await self._read(lambda db: history.load_frame(db, leaf, known))

    async def path(self, leaf: str, *, after_depth: int = 0) -> tuple[Segment, ...]:
        return await self._read(lambda db: history.load_path(db, leaf, after_depth))

    async def append(
        self, session_id: str, segment_id: str, entries: tuple[Entry, ...], requires: str | None, now_ms: int
    ) -> SessionHead:
        return await self._write(
            lambda db: history.append(
                db, rows.require_session(db, session_id), segment_id, entries, now_ms, requires
            )
        )

    async def fork(
        self,
        session_id: str,
        new_id: str,
        at: str | None,
        now_ms: int,
        *,
        charter: SessionCharter | None = None,
    ) -> SessionHead:
        return await self._write(
            lambda db: history.fork(db, rows.require_session(db, session_id), new_id, at, now_ms, charter)
        )

    async def make_session(self, new: NewSession) -> SessionHead:
        return await self._write(lambda db: history.make(db, new))

    async def add_usage(
        self, session_id: str, usage: tuple[UsageEntry, ...], model_calls: int, now_ms: int
    ) -> SessionHead:
        return await self._write(lambda db: history.add_usage(db, session_id, usage, model_calls, now_ms))

    async def rewind(self, session_id: str, to: str, now_ms: int) -> SessionHead:
        return await self._write(
            lambda db: history.rewind(db, turns.require_at_rest(db, session_id), to, now_ms)
        )

    async def set_state(
        self, session_id: str, state: StateRecord, blobs: tuple[Blob, ...], now_ms: int
    ) -> SessionHead:
        return await self._write(
            lambda db: history.set_state(db, turns.require_at_rest(db, session_id), state, blobs, now_ms)
        )

    async def state(self, state_id: str) -> bytes | None:
        return await self._read(lambda db: history.state_body(db, state_id))

    async def put_snapshot(self, snapshot_id: str, session_id: str, data: bytes, now_ms: int) -> None:
        row = records.snapshot_row(snapshot_id, session_id, now_ms, data)
        await self._write(lambda db: records.put_snapshot(db, row))

    async def snapshot(self, snapshot_id: str) -> bytes | None:
        return await self._read(lambda db: records.find_snapshot(db, snapshot_id))

    # Turns

    async def begin(self, turn: NewTurn, claimant: Claimant) -> Begun | Repeated:
        return await self._write(lambda db: turns.begin(db, turn, claimant, self._owner_is_dead))

    async def take_over(self, turn_id: str, claimant: Claimant) -> Takeover:
        return await self._write(lambda db: turns.take_over(db, turn_id, claimant, self._owner_is_dead))

    async def save(self, lease: Lease, save: Save) -> Saved:
        return await self._write(lambda db: turns.save(db, lease, save))

    async def park(self, lease: Lease, save: Save, summary: TurnSummary) -> None:
        await self._write(lambda db: turns.park(db, lease, save, summary))

    async def commit(self, lease: Lease, commit: TurnCommit) -> SessionHead | CommitRefused:
        entries = rows.encode(commit.entries)
        return await self._write(lambda db: turns.commit(db, lease, commit, entries))

    async def renew(self, leases: tuple[Lease, ...], now_ms: int, lease_ms: int) -> Renewed:
        return await self._write(lambda db: turns.renew(db, leases, now_ms, lease_ms))

    async def turn(self, turn_id: str) -> TurnRecord | None:
        found = await self._records("turns.turn_id = ?", turn_id)
        return found[0] if found else None

    async def turns(self, session_id: str) -> list[TurnRecord]:
        return await self._records("sessions.id = ?", session_id)

    async def _records(self, condition: str, value: str) -> list[TurnRecord]:
        def query(db: apsw.Connection) -> list[TurnRecord]:
            return [rows.whole_record(db, turn) for turn in rows.find_turns(db, condition, value)]

        return await self._read(query)

    async def open_turn(self, session_id: str) -> TurnRecord | None:
        def query(db: apsw.Connection) -> TurnRecord | None:
            found = rows.find_turns(db, "sessions.id = ? AND turns.state <> 'ended'", session_id)
            return found[0].record if found else None

        return await self._read(query)

    async def open_turn_journal(self, session_id: str) -> TurnInProgress | None:
        def query(db: apsw.Connection) -> TurnInProgress | None:
            for turn in rows.find_turns(db, "sessions.id = ? AND turns.state <> 'ended'", session_id):
                assert turn.input is not None  # it goes when the turn ends
                saved = rows.journal(db, turn.record.turn_id)
                return TurnInProgress(record=turn.record, input=turn.input, journal=saved)
            return None

        return await self._read(query)

    async def see_clock(self, boot: str, offset_ms: int) -> SeenClock:
        known = await self._read(lambda db: waits.find_clock(db, boot))
        if known is not None and not (seen := rules.seen_clock(known, offset_ms)).shift_ms:
            return seen
        return await self._write(lambda db: waits.see_clock(db, boot, offset_ms))

    async def unfinished(self, now_ms: int, *, lease_now_ms: int | None = None) -> list[TurnRecord]:
        lease_ms = now_ms if lease_now_ms is None else lease_now_ms
        is_dead = self._owner_is_dead
        return await self._read(lambda db: turns.unfinished(db, now_ms, lease_ms, is_dead))

    async def cancel(self, turn_id: str) -> bool:
        return await self._write(lambda db: turns.cancel(db, turn_id))

    # Input for a session

    async def put_input(self, item: QueuedInput, blobs: tuple[Blob, ...] = ()) -> None:
        await self._write(lambda db: inputs.put(db, item, blobs))

    async def withdraw_input(self, input_id: str) -> bool:
        return await self._write(lambda db: inputs.withdraw(db, input_id))

    async def inputs(self, session_id: str) -> list[QueuedInput]:
        return await self._read(lambda db: inputs.waiting(db, session_id))

    async def blob(self, digest: str) -> bytes | None:
        return await self._read(lambda db: inputs.blob(db, digest))

    # Waits

    async def ended_waits(self, turn_id: str, now_ms: int) -> tuple[tuple[str, WaitOutcome], ...]:
        found, unwritten = await self._read(lambda db: waits.ended(db, turn_id, now_ms))
        if not unwritten:
            return found
        return await self._write(lambda db: waits.expire(db, turn_id, now_ms))

    async def complete(self, token: str, outcome: WaitOutcome, now_ms: int) -> TurnRecord:
        return await self._write(lambda db: waits.complete(db, token, outcome, now_ms))

    async def approvals(self, *, session_id: str | None = None, turn_id: str | None = None) -> list[Approval]:
        return await self._read(lambda db: waits.find_approvals(db, session_id=session_id, turn_id=turn_id))

    async def approval(self, approval_id: str) -> Approval | None:
        return await self._read(lambda db: waits.find_approval(db, approval_id))

    async def decide(
        self, approval_id: str, decision: Decision, *, now_ms: int, edited_digest: str | None
    ) -> Approval:
        return await self._write(lambda db: waits.decide(db, approval_id, decision, now_ms, edited_digest))

    # Sessions that others made

    async def children(self, session_id: str) -> list[SessionHead]:
        return await self._read(lambda db: rows.children(db, session_id))

    async def with_queued(self) -> list[str]:
        return await self._read(inputs.with_queued)

    # Tasks

    async def add_task(self, record: TaskRecord) -> None:
        await self._write(lambda db: records.add_task(db, record))

    async def change_task(
        self, session_id: str, task_id: str, change: Callable[[TaskRecord], TaskRecord]
    ) -> TaskRecord:
        return await self._write(lambda db: records.change_task(db, session_id, task_id, change))

    async def task(self, session_id: str, task_id: str) -> TaskRecord | None:
        return await self._read(lambda db: records.find_task(db, session_id, task_id))

    async def tasks(self, *, session_id: str | None = None, live: bool = False) -> list[TaskRecord]:
        return await self._read(lambda db: records.find_tasks(db, session_id, live))

    async def move_tasks(self, from_id: str, to_id: str, task_ids: tuple[str, ...], now_ms: int) -> None:
        await self._write(lambda db: records.move_tasks(db, from_id, to_id, task_ids, now_ms))

    async def remove_task(self, session_id: str, task_id: str) -> bool:
        return await self._write(lambda db: records.remove_task(db, session_id, task_id))

    # Triggers

    async def put_trigger(self, trigger: Trigger, *, seen: Trigger | None = None) -> bool:
        return await self._write(lambda db: inputs.put_trigger(db, trigger, seen))

    async def trigger(self, name: str) -> Trigger | None:
        return await self._read(lambda db: inputs.find_trigger(db, name))

    async def triggers(self) -> list[Trigger]:
        return await self._read(inputs.find_triggers)

    async def remove_trigger(self, name: str) -> bool:
        return await self._write(lambda db: inputs.remove_trigger(db, name))

    async def occur(
        self, occurrence: Occurrence, inputs: tuple[QueuedInput, ...], advance: Trigger | None = None
    ) -> bool:
        return await self._write(lambda db: occur(db, occurrence, inputs, advance))

    # Records of plugins

    async def put_plugin_record(
        self, plugin_id: str, scope: str, key: str, body: bytes | None, now_ms: int
    ) -> None:
        await self._write(lambda db: records.put_plugin_record(db, (plugin_id, scope, key), body, now_ms))

    async def plugin_record(self, plugin_id: str, scope: str, key: str) -> bytes | None:
        return await self._read(lambda db: records.plugin_record(db, (plugin_id, scope, key)))

    async def plugin_records(self, plugin_id: str, scope: str) -> list[tuple[str, bytes]]:
        return await self._read(lambda db: records.plugin_records(db, plugin_id, scope))

    # The rest

    async def prune(self, request: PruneRequest) -> Pruned:
        before = self.database.bytes_on_disk()
        pruned = await self._write(lambda db: prune.prune(db, request))
        await self._threads.run(self.database.compact)
        freed = max(0, before - self.database.bytes_on_disk())
        return msgspec.structs.replace(pruned, bytes_freed=freed)
