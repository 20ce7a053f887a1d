"""Sessions in one SQLite file that several processes may use at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from standfast.ports import session_store as port
from standfast.store import local_work
from standfast.store.object_blobs import ObjectBlobs
from standfast.store.sql.sessions import SqlSessionStore
from standfast.store.sqlite.database import MAX_READERS, Database
from standfast.store.sqlite.sandbox_migration import COMPONENTS


class SqliteSessionStore(SqlSessionStore):
    """A `SessionStore` in the file *path*, made if need be, for this user only."""

    database: Database

    def __init__(
        self,
        path: str | Path,
        *,
        owner_is_dead: Callable[[str], bool] = lambda owner: False,
        blobs: ObjectBlobs | None = None,
    ) -> None:
        super().__init__(Database(path, COMPONENTS), owner_is_dead, MAX_READERS, blobs)

    async def offer(
        self, now_ms: int, offer_ms: int, agents: tuple[str, ...], limit: int, without: tuple[str, ...] = ()
    ) -> list[port.Work]:
        return await local_work.offer(self, now_ms, agents, limit, without)

    def listen(self, hear: Callable[[str], None]) -> Callable[[], None]:
        """Nothing is announced here: other processes of this machine poll."""
        return lambda: None

    async def announce(self, text: str) -> None:
        """Do nothing: no other process listens."""

    async def prune(self, request: port.PruneRequest) -> port.Pruned:
        from standfast.store.sql import prune  # few processes prune

        before = self.database.bytes_on_disk()
        pruned, objects = await self._write(lambda db: prune.prune(db, request))
        await self._sweep_objects(objects)
        await self._threads.run(self.database.compact)
        freed = max(0, before - self.database.bytes_on_disk())
        return msgspec.structs.replace(pruned, bytes_freed=freed)
