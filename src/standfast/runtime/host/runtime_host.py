"""Everything that may be asked of the runtime for one session: the one implementation of all services.

The services are in the modules beside this one, each over the runtime and its store. What a hook or a tool is
given is a view of this that has the methods of its role (`views`); a host program is given the whole of it by
`Runtime.host`.
"""

from __future__ import annotations

from standfast.runtime.host.completions import CompletionService
from standfast.runtime.host.monitor_service import MonitorService
from standfast.runtime.host.session_state import GraphService, SnapshotService, ToolService
from standfast.runtime.host.sessions import LifecycleService
from standfast.runtime.host.task_service import TaskService
from standfast.runtime.host.traces import TraceService
from standfast.runtime.host.turns import TurnService


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
