"""What plugins and tools may do with monitors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.model.monitor import MonitorSnapshot, MonitorSpec, MonitorUpdateBatch
from standfast.runtime.host.service import HostService

if TYPE_CHECKING:
    from standfast.runtime.monitors.monitors import Monitors


class MonitorService(HostService):
    """The `MonitorHost` of a session."""

    __slots__ = ()

    async def monitor_snapshot(self, session_id: str) -> MonitorSnapshot:
        return await (await self._monitors("monitor_snapshot", session_id)).snapshot(session_id)

    async def take_monitor_updates(self, session_id: str) -> MonitorUpdateBatch:
        """What monitors told, once."""
        return await (await self._monitors("take_monitor_updates", session_id)).take_updates(session_id)

    async def start_monitor(self, session_id: str, spec: MonitorSpec) -> MonitorSnapshot:
        return await (await self._monitors("start_monitor", session_id)).start(session_id, spec)

    async def stop_monitor(self, session_id: str, monitor_id: str) -> MonitorSnapshot:
        return await (await self._monitors("stop_monitor", session_id)).stop(session_id, monitor_id)

    async def _monitors(self, method: str, session_id: str) -> Monitors:
        await self._head(method, session_id)
        return self._background.monitors
