"""The shelf of one plugin, in the store of the runtime."""

from __future__ import annotations

import asyncio

from standfast.ports.clock import Clock
from standfast.ports.session_store import SessionStore
from standfast.tools.home_loop import at_home


class StoreShelf:
    """The `Shelf` of one plugin, on whichever loop the plugin runs."""

    __slots__ = ("_clock", "_home", "_plugin_id", "_store")

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        plugin_id: str,
        home: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._home = home
        self._store = store
        self._clock = clock
        self._plugin_id = plugin_id

    async def put(self, scope: str, key: str, body: bytes | None) -> None:
        now = self._clock.now_ms()
        await at_home(self._home, self._store.shelf_put, self._plugin_id, scope, key, body, now)

    async def get(self, scope: str, key: str) -> bytes | None:
        return await at_home(self._home, self._store.shelf_get, self._plugin_id, scope, key)

    async def list(self, scope: str) -> list[tuple[str, bytes]]:
        return await at_home(self._home, self._store.shelf_list, self._plugin_id, scope)
