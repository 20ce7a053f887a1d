"""Sessions in one SQLite file that several processes may use at once.

Theory of operation
-------------------
Writes go to the file's one writer thread, which commits for all waiting callers at once (`Database`); reads
run on threads of their own and never wait for the writer. The modules beside this one contain what happens
inside a transaction: `turns`, `history`, `inputs`, `waits`, `records`, `prune`. Each method of the store is
one of their functions, as a read or as a write; `SessionStore` documents them.

Rules
-----
1. A write that changes a record reads it in the same transaction, so a comparison is a compare-and-set.
2. What can be encoded before the transaction is, because all callers wait for the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw
import msgspec

from standfast.model.outcome import WaitOutcome
from standfast.model.session import SessionHead, TurnRecord
from standfast.ports import session_store as port
from standfast.store import rules
from standfast.store.sqlite import history, prune, records, rows, waits
from standfast.store.sqlite import inputs as queue
from standfast.store.sqlite import turns as lifecycle
from standfast.store.sqlite.database import MAX_READERS, Database
from standfast.store.sqlite.sandbox_migration import COMPONENTS
from standfast.tools.threads import BlockingLoop, DaemonThreads

P = ParamSpec("P")
T = TypeVar("T")
InTransaction = Callable[Concatenate[apsw.Connection, P], T]
Method = Callable[Concatenate["SqliteSessionStore", P], Coroutine[Any, Any, T]]


def _writes(job: InTransaction[P, T]) -> Method[P, T]:
    """Return the method of the store that runs *job* as a write."""

    async def write(self: SqliteSessionStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._write(lambda db: job(db, *args, **kwargs))

    return write


def _reads(query: InTransaction[P, T]) -> Method[P, T]:
    """Return the method of the store that runs *query* as a read."""

    async def read(self: SqliteSessionStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._read(lambda db: query(db, *args, **kwargs))

    return read


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

    head = _reads(rows.head)
    heads = _reads(rows.heads)
    children = _reads(rows.children)
    describe = _writes(rows.describe)
    note_blocked = _writes(rows.note_blocked)
    frame = _reads(history.load_frame)
    path = _reads(history.load_path)
    append = _writes(history.append)
    fork = _writes(history.fork)
    make_session = _writes(history.make)
    add_usage = _writes(history.add_usage)
    rewind = _writes(history.rewind)
    set_state = _writes(history.set_state)
    state = _reads(history.state_body)
    snapshot = _reads(records.find_snapshot)

    async def open_session(self, head: SessionHead) -> SessionHead:
        found = await self.head(head.session_id)
        return await self._write(lambda db: rows.open_session(db, head)) if found is None else found

    async def delete_session(self, session_id: str) -> bool:
        return await self._write(lambda db: prune.delete_session(db, session_id, self._owner_is_dead))

    async def put_snapshot(self, snapshot_id: str, session_id: str, data: bytes, now_ms: int) -> None:
        row = records.snapshot_row(snapshot_id, session_id, now_ms, data)
        await self._write(lambda db: records.put_snapshot(db, row))

    # Turns

    save = _writes(lifecycle.save)
    park = _writes(lifecycle.park)
    renew = _writes(lifecycle.renew)
    cancel = _writes(lifecycle.cancel)
    turn = _reads(rows.turn)
    turns = _reads(rows.turns)
    open_turn = _reads(rows.open_turn)
    open_turn_journal = _reads(rows.open_turn_journal)

    async def begin(self, turn: port.NewTurn, claimant: port.Claimant) -> port.Begun | port.Repeated:
        return await self._write(lambda db: lifecycle.begin(db, turn, claimant, self._owner_is_dead))

    async def take_over(self, turn_id: str, claimant: port.Claimant) -> port.Takeover:
        return await self._write(lambda db: lifecycle.take_over(db, turn_id, claimant, self._owner_is_dead))

    async def commit(self, lease: port.Lease, commit: port.TurnCommit) -> SessionHead | port.CommitRefused:
        entries = rows.encode(commit.entries)
        return await self._write(lambda db: lifecycle.commit(db, lease, commit, entries))

    async def see_clock(self, boot: str, offset_ms: int) -> port.SeenClock:
        known = await self._read(lambda db: waits.find_clock(db, boot))
        if known is not None and not (seen := rules.seen_clock(known, offset_ms)).shift_ms:
            return seen
        return await self._write(lambda db: waits.see_clock(db, boot, offset_ms))

    async def unfinished(self, now_ms: int, *, lease_now_ms: int | None = None) -> list[TurnRecord]:
        lease_ms = now_ms if lease_now_ms is None else lease_now_ms
        is_dead = self._owner_is_dead
        return await self._read(lambda db: lifecycle.unfinished(db, now_ms, lease_ms, is_dead))

    # Inputs and waits

    put_input = _writes(queue.put)
    withdraw_input = _writes(queue.withdraw)
    inputs = _reads(queue.waiting)
    with_queued = _reads(queue.with_queued)
    blob = _reads(queue.blob)
    complete = _writes(waits.complete)
    approvals = _reads(waits.find_approvals)
    approval = _reads(waits.find_approval)
    decide = _writes(waits.decide)

    async def ended_waits(self, turn_id: str, now_ms: int) -> tuple[tuple[str, WaitOutcome], ...]:
        found, unwritten = await self._read(lambda db: waits.ended(db, turn_id, now_ms))
        if not unwritten:
            return found
        return await self._write(lambda db: waits.expire(db, turn_id, now_ms))

    # Tasks, triggers and records of plugins

    add_task = _writes(records.add_task)
    change_task = _writes(records.change_task)
    task = _reads(records.find_task)
    tasks = _reads(records.find_tasks)
    move_tasks = _writes(records.move_tasks)
    remove_task = _writes(records.remove_task)
    put_trigger = _writes(queue.put_trigger)
    trigger = _reads(queue.find_trigger)
    triggers = _reads(queue.find_triggers)
    remove_trigger = _writes(queue.remove_trigger)
    occur = _writes(queue.occur)
    put_plugin_record = _writes(records.put_plugin_record)
    plugin_record = _reads(records.plugin_record)
    plugin_records = _reads(records.plugin_records)

    async def prune(self, request: port.PruneRequest) -> port.Pruned:
        before = self.database.bytes_on_disk()
        pruned = await self._write(lambda db: prune.prune(db, request))
        await self._threads.run(self.database.compact)
        freed = max(0, before - self.database.bytes_on_disk())
        return msgspec.structs.replace(pruned, bytes_freed=freed)
