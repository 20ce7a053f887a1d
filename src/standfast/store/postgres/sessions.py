"""Sessions in a PostgreSQL database, shared by any number of processes on any number of machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from standfast.errors import StoreUnavailable
from standfast.model.session import SessionHead
from standfast.ports import session_store as port
from standfast.store.object_blobs import ObjectBlobs
from standfast.store.postgres import offers
from standfast.store.postgres.connection import parse_url
from standfast.store.postgres.database import MAX_READERS, RETRY_S, PostgresDatabase
from standfast.store.postgres.guarded import GuardedBegin, GuardedCommit, GuardedSave
from standfast.store.postgres.notices import NoticeThread
from standfast.store.sql import inputs as queue
from standfast.store.sql import prune, rows
from standfast.store.sql import turns as lifecycle
from standfast.store.sql.connection import Row
from standfast.store.sql.group_writer import Haste, WriteScope
from standfast.store.sql.sessions import BRIEF_BYTES, SqlSessionStore, is_brief

T = TypeVar("T")

_MAX_INPUT_ROWS: Final = 10_000

_SOON_MS: Final = 1_500
"""A lease that ends this soon was not renewed in time, so the store looks for its turn when it expires."""


class PostgresSessionStore(SqlSessionStore):
    """A `SessionStore` in the database at *url*, whose tables are created if needed.

    Leases use the database's clock; tests that set the time pass `database_clock=False`. Transient errors are
    retried for *retry_s*. *blobs*, or else `blobs=` in the URL, is the location of large blobs.
    """

    database: PostgresDatabase

    def __init__(
        self,
        url: str,
        *,
        owner_is_dead: Callable[[str], bool] = lambda owner: False,
        database_clock: bool = True,
        retry_s: float = RETRY_S,
        blobs: ObjectBlobs | None = None,
    ) -> None:
        self._database_clock = database_clock
        if blobs is None and (place := parse_url(url).blobs) is not None:
            blobs = ObjectBlobs(place, retry_s=retry_s)
        database = PostgresDatabase(url, database_clock=database_clock, retry_s=retry_s)
        super().__init__(database, owner_is_dead, MAX_READERS, blobs)
        self._listener = NoticeThread(self.database.address)
        self._input_rows: dict[str, Row] = {}
        self._unanswered: dict[str, GuardedSave | GuardedCommit] = {}
        """For each turn, a write that was sent and whose outcome could not be determined."""
        self._alarm: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        await self._threads.run(self._listener.close)
        await super().close()

    async def offer(
        self, now_ms: int, offer_ms: int, agents: tuple[str, ...], limit: int, without: tuple[str, ...] = ()
    ) -> list[port.SessionWork]:
        wanted = offers.ClaimFilter(agents, limit, without)
        offered = await self._write(
            lambda db: offers.offer(db, now_ms, offer_ms, wanted, self._owner_is_dead)
        )
        if offered.lease_ends_ms is not None and offered.lease_ends_ms <= _SOON_MS and self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(
                offered.lease_ends_ms / 1000, self._announce_end_of_lease
            )
        return offered.work

    def _haste(self, loop: asyncio.AbstractEventLoop, session_id: str) -> Haste:
        """Return "alone" if no other turn runs, so that the write is sent without waiting for others."""
        return "brief" if len(self._running) > (session_id in self._running) else "alone"

    def _announce_end_of_lease(self) -> None:
        self._alarm = None
        self._listener.tell(port.WORK)

    async def begin(self, turn: port.NewTurn, claimant: port.Claimant) -> port.Begun | port.Repeated:
        if turn.blobs:
            return await super().begin(turn, claimant)
        known = None if turn.consumes is None else self._input_rows.get(turn.consumes)
        write = GuardedBegin(turn, claimant, self._owner_is_dead, known)
        begun = await self._write(
            write.run,
            WriteScope(turn.session_id, lifecycle.begin_reads(turn), write),
            brief_of=turn.session_id,
        )
        if isinstance(begun, port.Begun):
            self._running[turn.session_id] = lifecycle.SavedEntries(begun.lease.fence)
        return begun

    async def save(self, lease: port.Lease, save: port.Save) -> port.Saved:
        if save.blobs or save.waits or save.approvals:
            return await super().save(lease, save)
        write = self._unanswered.pop(save.turn_id, None)
        if not isinstance(write, GuardedSave) or not write.repeats(lease, save):
            write = GuardedSave(lease, save)
        return await self._write_guarded(write, write.run, brief=is_brief(save))

    async def commit(self, lease: port.Lease, commit: port.TurnCommit) -> SessionHead | port.CommitRefused:
        if commit.blobs or commit.enqueue or commit.state is not None or not commit.entries:
            return await super().commit(lease, commit)
        write, entries = self._unanswered.pop(commit.turn_id, None), rows.encode(commit.entries)
        if not isinstance(write, GuardedCommit) or not write.repeats(lease, commit):
            write = GuardedCommit(lease, commit, entries)
        journal_bytes = 0 if commit.journal is None else self.database.guarded.saved_bytes(lease.session_id)
        brief = len(entries) + journal_bytes <= BRIEF_BYTES  # a journal that is kept is compressed
        done = await self._write_guarded(write, write.run, brief=brief)
        if isinstance(done, SessionHead):
            self._running.pop(lease.session_id, None)
        return done

    async def _write_guarded(
        self, write: GuardedSave | GuardedCommit, run: Callable[[Any], T], *, brief: bool
    ) -> T:
        """Send a write of a turn. If its outcome stays unknown, keep the write for the caller's retry."""
        try:
            scope = WriteScope(write.session_id, write.reads(), write)
            return await self._write(run, scope, brief_of=write.session_id if brief else None)
        except StoreUnavailable:
            if write.uncertain:
                self._unanswered[write.turn_id] = write
            raise

    async def renew(self, leases: tuple[port.Lease, ...], now_ms: int, lease_ms: int) -> port.Renewed:
        renewed = await super().renew(leases, now_ms, lease_ms)
        for lease in leases:
            self.database.guarded.forget(lease.session_id)
        return renewed

    async def inputs(self, session_id: str) -> list[port.QueuedInput]:
        """Return the inputs queued for a session; cache their rows for the turns that consume them."""
        found = await self._read(lambda db: queue.waiting_rows(db, session_id))
        while len(self._input_rows) > _MAX_INPUT_ROWS:
            self._input_rows.pop(next(iter(self._input_rows)))
        self._input_rows.update((row[1], row) for row in found)
        return [queue.input_of(row) for row in found]

    def listen(self, hear: Callable[[str], None]) -> Callable[[], None]:
        return self._listener.listen(hear)

    async def announce(self, text: str) -> None:
        self.database.require_open()
        self.database.announcer.announce((text,))

    async def see_clock(self, boot: str, offset_ms: int) -> port.SeenClock:
        """Return the clock unchanged: leases do not use it, and no machine shifts the timers of others."""
        if self._database_clock:
            return port.SeenClock(lease_offset_ms=offset_ms)
        return await super().see_clock(boot, offset_ms)

    async def prune(self, request: port.PruneRequest) -> port.Pruned:
        """Prune in many short transactions, so that turns continue meanwhile. The server reuses the space."""
        done = port.Pruned()
        for session_id in await self._read(lambda db: prune.old_sessions(db, request)):
            step = await self._write(lambda db, it=session_id: prune.prune_session(db, request, it))  # type: ignore[misc]
            done = prune.plus(done, step)
        done = prune.plus(done, await self._write(lambda db: prune.prune_records(db, request)))
        for family in await self._read(lambda db: prune.old_families(db, request)):
            step = await self._write(lambda db, it=family: prune.prune_family(db, request, it))  # type: ignore[misc]
            done = prune.plus(done, step)
        blobs, objects = await self._write(prune.prune_blobs)
        await self._sweep_objects(objects)
        return prune.plus(done, blobs)
