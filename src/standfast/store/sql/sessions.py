"""The session store in an SQL database, whose methods are functions of the other modules of this package.

Theory of operation
-------------------
Writes are jobs that share transactions (see `group_writer`); reads run on threads of their own, or
immediately if they are brief, and never wait for the writer. The work inside a transaction is in `turns`,
`history`, `inputs`, `waits`, `records` and `prune`. Each method of the store runs one of their functions as a
read or a write; `SessionStore` documents them.

Rules
-----
1. A write that changes a record reads it in the same transaction, so a comparison is a compare-and-set.
2. Values are encoded before the transaction where possible, because all callers wait for the writer.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec

from standfast.errors import RecordCorrupt
from standfast.model.approval import Approval, Decision
from standfast.model.outcome import WaitOutcome
from standfast.model.session import SessionHead, TurnRecord, TurnSummary
from standfast.ports import session_store as port
from standfast.store import rules
from standfast.store.object_blobs import ObjectBlobs, refuse_apart
from standfast.store.sql import history, records, rows, waits
from standfast.store.sql import inputs as queue
from standfast.store.sql import survey as operations
from standfast.store.sql import turns as lifecycle
from standfast.store.sql.connection import Connection
from standfast.store.sql.group_writer import Haste, WriteScope
from standfast.tools.threads import BlockingLoop, DaemonThreads

_replace = msgspec.structs.replace

P = ParamSpec("P")
T = TypeVar("T")
InTransaction = Callable[Concatenate[Connection, P], T]
Method = Callable[Concatenate["SqlSessionStore", P], Coroutine[Any, Any, T]]


BRIEF_BYTES: Final = 64 << 10
"""The largest brief write: computing digests and copying takes time."""


def is_brief(save: port.Save) -> bool:
    size = _size(save.blobs)
    for entry in save.entries:
        size += len(entry.body)
    return size < BRIEF_BYTES


def _size(blobs: tuple[port.Blob, ...]) -> int:
    return sum([len(blob.data) for blob in blobs]) if blobs else 0


class SqlDatabase(Protocol):
    """A database that runs jobs and queries. `write_soon` is for callers on a loop, the others block."""

    def write(self, job: Callable[[Any], T], scope: WriteScope | None = None) -> T: ...

    def write_soon(
        self, job: Callable[[Any], T], scope: WriteScope | None = None, haste: Haste = ""
    ) -> asyncio.Future[T]: ...

    def read_consistently(self, query: Callable[[Any], T]) -> T: ...

    def can_read_at_once(self) -> bool: ...

    def close(self) -> None: ...


def _writes(job: InTransaction[P, T]) -> Method[P, T]:
    """Return the method of the store that runs *job* as a write."""

    async def write(self: SqlSessionStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._write(lambda db: job(db, *args, **kwargs))

    return write


def _writes_session(job: InTransaction[P, T]) -> Method[P, T]:
    """Return the method that runs *job*, which locks only the session that its first argument names."""

    async def write(self: SqlSessionStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        named: Any = args[0] if args else next(iter(kwargs.values()))
        scope = WriteScope(named if isinstance(named, str) else named.session_id)
        return await self._write(lambda db: job(db, *args, **kwargs), scope)

    return write


def _reads(query: InTransaction[P, T], *, brief: bool = False) -> Method[P, T]:
    """Return the method of the store that runs *query* as a read. A *brief* one reads a few rows by key."""

    async def read(self: SqlSessionStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._read(lambda db: query(db, *args, **kwargs), brief)

    return read


def _reads_if_any(some: str, query: InTransaction[P, list[T]]) -> Method[P, list[T]]:
    """Return the method that runs *query* as a read if the brief statement *some* finds a row.

    These lists are mostly empty, which needs no thread to find out, and are read every second.
    """

    async def read(self: SqlSessionStore, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        if self._finds_none(some):
            return []
        return await self._read(lambda db: query(db, *args, **kwargs))

    return read


class SqlSessionStore(ABC):
    """A `SessionStore` in *database*, read by up to *readers* threads; large blobs are in *blobs*."""

    durable = True

    def __init__(
        self,
        database: SqlDatabase,
        owner_is_dead: Callable[[str], bool],
        readers: int,
        blobs: ObjectBlobs | None = None,
    ) -> None:
        self.database = database
        self._owner_is_dead = owner_is_dead
        self._threads = DaemonThreads("standfast-reader", at_most=readers)
        self._objects = blobs
        self._folder: str | None = None
        self._running: dict[str, lifecycle.SavedEntries] = {}
        """The sessions whose turns are beginning or running here, with the entries saved by those turns."""

    async def close(self) -> None:
        await self._threads.run(self.database.close)
        self._threads.close()

    async def _write(
        self, job: Callable[[Connection], T], scope: WriteScope | None = None, *, brief_of: str | None = None
    ) -> T:
        """Run *job* as a write; *brief_of* is the session of a brief one, "" if it is not known."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, BlockingLoop):
            return self.database.write(job, scope)  # the caller's thread would only wait
        haste: Haste = "" if brief_of is None else self._haste(loop, brief_of)
        return await self.database.write_soon(job, scope, haste)

    @abstractmethod
    def _haste(self, loop: asyncio.AbstractEventLoop, session_id: str) -> Haste:
        """Return how a brief write of a session is to be written."""

    async def _read(self, query: Callable[[Connection], T], brief: bool = False) -> T:
        at_once = brief and self.database.can_read_at_once()
        if at_once or isinstance(asyncio.get_running_loop(), BlockingLoop):
            return self.database.read_consistently(query)
        return await self._threads.run(lambda: self.database.read_consistently(query))

    def _finds_none(self, sql: str) -> bool:
        """Return whether *sql*, a brief statement, finds no row; False if only a thread can find out."""
        database = self.database
        return database.can_read_at_once() and not database.read_consistently(
            lambda db: db.execute(sql).fetchall()
        )

    # Blobs

    async def blob(self, digest: str) -> bytes | None:
        found = await self._blob(digest, lambda data: data, ObjectBlobs.get)
        return None if found is None else bytes(found)

    async def blob_part(self, digest: str, start: int, stop: int | None = None) -> port.BlobPart | None:
        return await self._blob(
            digest,
            lambda data: port.BlobPart.of(data, start, stop),
            lambda objects, blob: objects.get_part(blob, start, stop),
        )

    async def _blob(
        self,
        digest: str,
        of_row: Callable[[bytes], T],
        of_object: Callable[[ObjectBlobs, port.Blob], T | None],
    ) -> T | None:
        """Return the result of a callable for the blob's bytes, which are in its row or in an object."""
        for _ in range(2):  # a sweep may delete the object between both reads, after its row
            found = await self._read(lambda db: queue.blob(db, digest))
            if found is None or not found.apart:
                return None if found is None else of_row(found.data)
            if (objects := self._objects) is None:
                refuse_apart(digest)
            read = await self._block(partial(of_object, objects, found))
            if read is not None:
                return read
        raise RecordCorrupt(f"blob {digest} (its object is missing)")

    async def _placed(self, blobs: tuple[port.Blob, ...]) -> tuple[port.Blob, ...]:
        """Upload the blobs that are too large for the database; return the blobs to store in its rows."""
        objects = self._objects
        if objects is None or all(len(blob.data) <= objects.over_bytes for blob in blobs):
            return blobs
        folder = await self._own_folder()
        return tuple(
            [
                await self._block(partial(objects.put, folder, blob))
                if len(blob.data) > objects.over_bytes
                else blob
                for blob in blobs
            ]
        )

    async def _sweep_objects(self, names: list[str]) -> None:
        """Delete the objects *names* of deleted blobs, and old objects that no blob names."""
        if (objects := self._objects) is None:
            return
        folder = await self._own_folder()
        old = await self._block(lambda: objects.uploaded_long_ago(folder))
        named = {blob.data.decode() for blob in await self._read(queue.blobs_apart)}
        ours = [name for name in names if name.startswith(f"{folder}/")]
        await self._block(lambda: objects.delete([*ours, *(name for name in old if name not in named)]))

    async def _own_folder(self) -> str:
        if self._folder is None:
            otherwise = os.urandom(8).hex()
            self._folder = await self._write(lambda db: records.own_folder(db, otherwise))
        return self._folder

    async def _block(self, work: Callable[[], T]) -> T:
        """Run *work*, which blocks, on a thread where it does not delay other callers."""
        if isinstance(asyncio.get_running_loop(), BlockingLoop):
            return work()
        return await self._threads.run(work)

    # Sessions and their history

    head = _reads(rows.head, brief=True)
    heads = _reads(rows.heads)
    children = _reads(rows.children)
    describe = _writes_session(rows.describe)
    note_blocked = _writes_session(rows.note_blocked)
    frame = _reads(history.load_frame)
    path = _reads(history.load_path)
    append = _writes_session(history.append)
    fork = _writes(history.fork)
    add_usage = _writes_session(history.add_usage)
    rewind = _writes_session(history.rewind)
    state = _reads(history.state_body)
    turn_states = _reads(history.turn_states)
    snapshot = _reads(records.find_snapshot)

    async def make_session(self, new: port.NewSession) -> SessionHead:
        if new.blobs:
            new = _replace(new, blobs=await self._placed(new.blobs))
        return await self._write(lambda db: history.make(db, new))

    async def set_state(
        self, session_id: str, state: port.StateRecord, blobs: tuple[port.Blob, ...], now_ms: int
    ) -> SessionHead:
        placed = await self._placed(blobs)
        job: Callable[[Connection], SessionHead] = lambda db: history.set_state(  # noqa: E731
            db, session_id, state, placed, now_ms
        )
        return await self._write(job, WriteScope(session_id))

    async def open_session(self, head: SessionHead) -> SessionHead:
        found = await self.head(head.session_id)
        if found is not None:
            return found
        name = head.session_id
        return await self._write(lambda db: rows.open_session(db, head), WriteScope(name), brief_of=name)

    async def delete_session(self, session_id: str) -> bool:
        from standfast.store.sql import prune  # few processes delete data

        return await self._write(lambda db: prune.delete_session(db, session_id, self._owner_is_dead))

    async def put_snapshot(self, snapshot_id: str, session_id: str, data: bytes, now_ms: int) -> None:
        row = records.snapshot_row(snapshot_id, session_id, now_ms, data)
        await self._write(lambda db: records.put_snapshot(db, row))

    # Turns

    cancel = _writes(lifecycle.cancel)
    cancelled = _reads(lifecycle.cancelled, brief=True)
    turn = _reads(rows.turn, brief=True)
    turns = _reads(rows.turns)
    open_turn = _reads(rows.open_turn, brief=True)
    open_turn_journal = _reads(rows.open_turn_journal)
    turn_journal = _reads(rows.turn_journal)
    outlines = _reads(operations.outlines)
    survey = _reads(operations.survey)
    usage_by_day = _reads(operations.usage_by_day)
    drop_journals = _writes(rows.drop_journals)

    async def begin(self, turn: port.NewTurn, claimant: port.Claimant) -> port.Begun | port.Repeated:
        if turn.blobs:
            turn = _replace(turn, blobs=await self._placed(turn.blobs))
        job: Callable[[Connection], port.Begun | port.Repeated] = lambda db: lifecycle.begin(  # noqa: E731
            db, turn, claimant, self._owner_is_dead
        )
        session_id = turn.session_id
        mine = lifecycle.SavedEntries(places={})
        self._running.setdefault(session_id, mine)
        begun: port.Begun | port.Repeated | None = None
        try:
            begun = await self._write(
                job,
                WriteScope(session_id, lifecycle.begin_reads(turn)),
                brief_of=session_id if _size(turn.blobs) < BRIEF_BYTES else None,
            )
            return begun
        finally:
            if isinstance(begun, port.Begun):
                mine.fence = begun.lease.fence
                self._running[session_id] = mine
            elif self._running.get(session_id) is mine:
                del self._running[session_id]

    async def renew(self, leases: tuple[port.Lease, ...], now_ms: int, lease_ms: int) -> port.Renewed:
        if not lease_ms:
            for lease in leases:
                self._running.pop(lease.session_id, None)
        return await self._write(lambda db: lifecycle.renew(db, leases, now_ms, lease_ms))

    async def take_over(self, turn_id: str, claimant: port.Claimant) -> port.Takeover:
        job: Callable[[Connection], port.Takeover] = lambda db: lifecycle.take_over(  # noqa: E731
            db, turn_id, claimant, self._owner_is_dead
        )
        taken = await self._write(job, brief_of="")
        saved = lifecycle.SavedEntries(taken.lease.fence, taken.journal)
        self._running[taken.lease.session_id] = saved
        return taken

    async def save(self, lease: port.Lease, save: port.Save) -> port.Saved:
        if save.blobs:
            save = _replace(save, blobs=await self._placed(save.blobs))
        session_id = lease.session_id
        scope = WriteScope(session_id, ((lifecycle.TO_SAVE, (save.turn_id,)),))
        brief_of = session_id if is_brief(save) else None
        known = self._saved_under(lease)
        place, places = (None, None) if known is None else (known.place, known.take_places(save))
        try:
            saved, next_place, added = await self._write(
                lambda db: self._save(db, lease, save, place, places), scope, brief_of=brief_of
            )
        except BaseException:  # the outcome is unknown to a caller that stops waiting
            if known is not None:
                known.entries = None
            raise
        if known is not None:
            known.add(save.entries if saved.checkpoint is None else (*save.entries, saved.checkpoint))
            known.place = next_place
            if places is not None:
                places.update(added)
            known.return_places(save, added if places is None else places)
        return saved

    def _saved_under(self, lease: port.Lease) -> lifecycle.SavedEntries | None:
        """Return what the turn under *lease* has saved, if this store granted the lease."""
        known = self._running.get(lease.session_id)
        return known if known is not None and known.fence == lease.fence else None

    def _save(
        self,
        db: Any,
        lease: port.Lease,
        save: port.Save,
        known: lifecycle.SavePlace | None,
        places: rows.Places | None,
    ) -> tuple[port.Saved, lifecycle.SavePlace | None, rows.Places]:
        """Save; return also where the next save goes, and the places of the new rows.

        The next save goes there if the database can tell that it is *known* then.
        """
        return lifecycle.save(db, lease, save), None, {}

    async def park(self, lease: port.Lease, save: port.Save, summary: TurnSummary) -> None:
        if save.blobs:
            save = _replace(save, blobs=await self._placed(save.blobs))
        scope = WriteScope(lease.session_id, ((lifecycle.TO_SAVE, (save.turn_id,)),))
        brief_of = lease.session_id if is_brief(save) else None
        known = self._saved_under(lease)
        places = None if known is None else known.take_places(save)
        job: Callable[[Connection], None] = lambda db: lifecycle.park(  # noqa: E731
            db, lease, save, summary, places
        )
        await self._write(job, scope, brief_of=brief_of)
        self._running.pop(lease.session_id, None)

    async def commit(self, lease: port.Lease, commit: port.TurnCommit) -> SessionHead | port.CommitRefused:
        if commit.blobs:
            commit = _replace(commit, blobs=await self._placed(commit.blobs))
        entries = rows.encode(commit.entries)
        alone = not commit.enqueue or all(item.session_id == lease.session_id for item in commit.enqueue)
        saved = self._saved_under(lease)
        done = await self._write(
            lambda db: lifecycle.commit(db, lease, commit, entries, saved),
            WriteScope(lease.session_id, lifecycle.commit_reads(commit.turn_id)) if alone else None,
            brief_of=lease.session_id if len(entries) + _size(commit.blobs) < BRIEF_BYTES else None,
        )
        if isinstance(done, SessionHead):
            self._running.pop(lease.session_id, None)
        return done

    async def see_clock(self, boot: str, offset_ms: int) -> port.SeenClock:
        known = await self._read(lambda db: waits.find_clock(db, boot), brief=True)
        if known is not None and not (seen := rules.seen_clock(known, offset_ms)).shift_ms:
            return seen
        return await self._write(lambda db: waits.see_clock(db, boot, offset_ms))

    async def unfinished(self, now_ms: int, *, lease_now_ms: int | None = None) -> list[TurnRecord]:
        if self._finds_none("SELECT 1 FROM turns WHERE state <> 'ended' LIMIT 1"):
            return []
        lease_ms = now_ms if lease_now_ms is None else lease_now_ms
        is_dead = self._owner_is_dead
        return await self._read(lambda db: lifecycle.unfinished(db, now_ms, lease_ms, is_dead))

    async def turn_counts(self, now_ms: int, *, lease_now_ms: int | None = None) -> port.TurnCounts:
        lease_ms = now_ms if lease_now_ms is None else lease_now_ms
        is_dead = self._owner_is_dead
        return await self._read(lambda db: lifecycle.count(db, now_ms, lease_ms, is_dead))

    # Inputs and waits

    withdraw_input = _writes(queue.withdraw)
    inputs = _reads(queue.waiting, brief=True)
    with_queued = _reads_if_any("SELECT 1 FROM inputs WHERE kind = 'queue' LIMIT 1", queue.with_queued)
    complete = _writes(waits.complete)
    approvals = _reads(waits.find_approvals)
    approval = _reads(waits.find_approval, brief=True)

    async def decide(
        self, approval_id: str, decision: Decision, *, now_ms: int, edited_digest: str | None
    ) -> Approval:
        return await self._write(
            lambda db: waits.decide(db, approval_id, decision, now_ms=now_ms, edited_digest=edited_digest),
            brief_of="",
        )

    async def put_input(self, item: port.QueuedInput, blobs: tuple[port.Blob, ...] = ()) -> None:
        scope = WriteScope(item.session_id, queue.put_reads(item))
        placed = await self._placed(blobs)
        await self._write(lambda db: queue.put(db, item, placed), scope)

    async def ended_waits(self, turn_id: str, now_ms: int) -> tuple[tuple[str, WaitOutcome], ...]:
        found, unwritten = await self._read(lambda db: waits.ended(db, turn_id, now_ms), brief=True)
        if not unwritten:
            return found
        return await self._write(lambda db: waits.expire(db, turn_id, now_ms))

    # Tasks, triggers and records of plugins

    add_task = _writes_session(records.add_task)
    change_task = _writes_session(records.change_task)
    task = _reads(records.find_task)
    tasks = _reads_if_any("SELECT 1 FROM tasks LIMIT 1", records.find_tasks)
    move_tasks = _writes(records.move_tasks)
    remove_task = _writes_session(records.remove_task)
    put_trigger = _writes(queue.put_trigger)
    trigger = _reads(queue.find_trigger)
    triggers = _reads_if_any("SELECT 1 FROM triggers LIMIT 1", queue.find_triggers)
    remove_trigger = _writes(queue.remove_trigger)
    occur = _writes(queue.occur)
    put_plugin_record = _writes(records.put_plugin_record)
    plugin_record = _reads(records.plugin_record)
    plugin_records = _reads(records.plugin_records)
