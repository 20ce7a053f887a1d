"""Sessions in one SQLite file that several processes may use at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from standfast.model.session import SessionHead
from standfast.ports import session_store as port
from standfast.store.local_work import LocalWork
from standfast.store.object_blobs import ObjectBlobs
from standfast.store.sql import rows
from standfast.store.sql import turns as lifecycle
from standfast.store.sql.connection import Connection
from standfast.store.sql.group_writer import Haste, WriteScope
from standfast.store.sql.sessions import SqlSessionStore
from standfast.store.sql.turns import SavePlace
from standfast.store.sqlite.connection import SqliteConnection
from standfast.store.sqlite.database import MAX_READERS, Database
from standfast.store.sqlite.sandbox_migration import COMPONENTS
from standfast.tools.threads import BlockingLoop

T = TypeVar("T")


class SqliteSessionStore(SqlSessionStore, LocalWork):
    """A `SessionStore` in the file *path*, which is created if needed, for this user only."""

    database: Database

    def __init__(
        self,
        path: str | Path,
        *,
        owner_is_dead: Callable[[str], bool] = lambda owner: False,
        blobs: ObjectBlobs | None = None,
    ) -> None:
        super().__init__(Database(path, COMPONENTS), owner_is_dead, MAX_READERS, blobs)
        self._wrote = ""
        """The only session that has begun a turn, or written outside of one, in this cycle of the loop."""

    async def _write(
        self, job: Callable[[Connection], T], scope: WriteScope | None = None, *, brief_of: str | None = None
    ) -> T:
        loop = asyncio.get_running_loop()
        if isinstance(loop, BlockingLoop):
            return self.database.write(job)  # the caller's thread has nothing else to do
        haste: Haste = "" if brief_of is None else self._haste(loop, brief_of)
        if haste == "alone" and (writer := self.database.begin_at_once()) is not None:
            return writer.run_at_once(job)
        return await self.database.write_soon(job, scope, haste)

    def _haste(self, loop: asyncio.AbstractEventLoop, session_id: str) -> Haste:
        """Return "alone" if no other turn is running or wrote in this cycle of *loop*; otherwise "brief"."""
        turn = self._running.get(session_id)
        if len(self._running) > (turn is not None) or self._wrote not in ("", session_id):
            return "brief"
        if (turn is None or not turn.entries) and not self._wrote and session_id:  # others may begin in it
            self._wrote = session_id
            loop.call_soon(self._end_round)
        return "alone"

    def _end_round(self) -> None:
        self._wrote = ""

    async def head(self, session_id: str) -> SessionHead | None:
        """Return a session's head, immediately if a connection is open (one statement, no transaction)."""
        if not self.database.can_read_at_once():
            return await super().head(session_id)
        return self.database.read(lambda db: rows.head(db, session_id))

    def _save(
        self,
        db: SqliteConnection,
        lease: port.Lease,
        save: port.Save,
        known: SavePlace | None,
        places: rows.Places | None,
    ) -> tuple[port.Saved, SavePlace | None, rows.Places]:
        version, turn_id = db.data_version(), save.turn_id
        if known is not None and known.mark == (version, db.total_changes(), lease, turn_id):
            place = known  # nothing was written since, so the lease still holds, too
        else:
            place = lifecycle.find_place(db, lease, turn_id)
        saved, added = lifecycle.save_at(db, place, save, places)
        if place.injected or save.blobs:
            return saved, None, added
        last = place.last_entry + len(save.entries) + (saved.checkpoint is not None)
        mark = (version + 1, db.total_changes(), lease, turn_id)  # as it is after the commit
        return saved, SavePlace(place.session_key, last, place.cancelled, False, mark), added

    async def prune(self, request: port.PruneRequest) -> port.Pruned:
        from standfast.store.sql import prune  # few processes prune

        before = self.database.bytes_on_disk()
        pruned, objects = await self._write(lambda db: prune.prune(db, request))
        await self._sweep_objects(objects)
        await self._threads.run(self.database.compact)
        freed = max(0, before - self.database.bytes_on_disk())
        return msgspec.structs.replace(pruned, bytes_freed=freed)
