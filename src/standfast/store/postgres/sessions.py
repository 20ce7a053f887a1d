"""Sessions in a PostgreSQL database that any number of processes on any number of machines use at once."""

from __future__ import annotations

from collections.abc import Callable

from standfast.ports import session_store as port
from standfast.store.object_blobs import ObjectBlobs
from standfast.store.postgres import offers
from standfast.store.postgres.connection import parse_url
from standfast.store.postgres.database import MAX_READERS, RETRY_S, PostgresDatabase
from standfast.store.postgres.notices import Listener
from standfast.store.sql import prune
from standfast.store.sql.sessions import SqlSessionStore


class PostgresSessionStore(SqlSessionStore):
    """A `SessionStore` in the database at *url*, whose tables are made if need be.

    Leases go by the database's clock. Tests that set the time pass `database_clock=False`. Errors that may
    pass are retried for *retry_s*. *blobs*, or else `blobs=` in the URL, says where large blobs are.
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
        self._listener = Listener(self.database.address)

    async def close(self) -> None:
        await self._threads.run(self._listener.close)
        await super().close()

    async def offer(
        self, now_ms: int, offer_ms: int, agents: tuple[str, ...], limit: int, without: tuple[str, ...] = ()
    ) -> list[port.Work]:
        wanted = offers.Wanted(agents, limit, without)
        return await self._write(lambda db: offers.offer(db, now_ms, offer_ms, wanted, self._owner_is_dead))

    def listen(self, hear: Callable[[str], None]) -> Callable[[], None]:
        return self._listener.listen(hear)

    async def announce(self, text: str) -> None:
        self.database.require_open()
        self.database.announcer.announce((text,))

    async def see_clock(self, boot: str, offset_ms: int) -> port.SeenClock:
        """Return the clock as it is: no lease goes by it, and no machine moves the timers of others."""
        if self._database_clock:
            return port.SeenClock(lease_offset_ms=offset_ms)
        return await super().see_clock(boot, offset_ms)

    async def prune(self, request: port.PruneRequest) -> port.Pruned:
        """Prune in many short transactions, so that turns go on meanwhile. The server reuses the space."""
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
