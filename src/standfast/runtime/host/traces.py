"""What plugins and tools put into the trace."""

from __future__ import annotations

from standfast.errors import StandfastError
from standfast.model.canonical import Json, to_json
from standfast.runtime.host.service import HostService
from standfast.runtime.turn import RUNNING_TURN

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
