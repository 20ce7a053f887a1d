"""The shelf of one plugin, in the store of the runtime."""

from __future__ import annotations

from holdfast.ports.clock import Clock
from holdfast.ports.session_store import SessionStore


class StoreShelf:
    """The `Shelf` of one plugin."""

    __slots__ = ("_clock", "_plugin_id", "_store")

    def __init__(self, store: SessionStore, clock: Clock, plugin_id: str) -> None:
        self._store = store
        self._clock = clock
        self._plugin_id = plugin_id

    async def put(self, scope: str, key: str, body: bytes | None) -> None:
        await self._store.shelf_put(self._plugin_id, scope, key, body, self._clock.now_ms())

    async def get(self, scope: str, key: str) -> bytes | None:
        return await self._store.shelf_get(self._plugin_id, scope, key)

    async def list(self, scope: str) -> list[tuple[str, bytes]]:
        return await self._store.shelf_list(self._plugin_id, scope)
