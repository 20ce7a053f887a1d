"""Everything that may be asked of the runtime for one session: the one implementation of all services.

The services are in the modules beside this one, each over the runtime and its store. What a hook or a tool is
given is a view of this that has the methods of its role (`views`); a host program is given the whole of it by
`Runtime.host`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.errors import StandfastError
from standfast.model.canonical import Json, to_json
from standfast.model.monitor import MonitorSnapshot, MonitorSpec, MonitorUpdateBatch
from standfast.runtime.host.completions import CompletionService
from standfast.runtime.host.service import HostService
from standfast.runtime.host.session_state import GraphService, SnapshotService, ToolService
from standfast.runtime.host.sessions import LifecycleService
from standfast.runtime.host.task_service import TaskService
from standfast.runtime.host.turns import TurnService
from standfast.runtime.turn import RUNNING_TURN

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


_MAX_NAME = 128


class TraceService(HostService):
    """The `TraceHost` of a session."""

    __slots__ = ()

    async def emit_trace_event(self, name: str, body: Json = None) -> None:
        """Put a record into the trace. It never fails: a body that is no JSON is left out."""
        here = RUNNING_TURN.get()
        if not self.is_open:
            return
        try:
            clean, _ = to_json(body)
        except StandfastError:
            clean = None
        turn_id = here.turn_id if here is not None and here.session_id == self.session_id else ""
        self.services.record(self.session_id, turn_id, "", str(name)[:_MAX_NAME], clean)


class RuntimeHost(
    SnapshotService,
    ToolService,
    LifecycleService,
    TurnService,
    TaskService,
    MonitorService,
    GraphService,
    CompletionService,
    TraceService,
):
    """The `RuntimeSessionHost` of a session."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<RuntimeHost of {self.session_id}>"
