"""What plugins and tools put into the trace."""

from __future__ import annotations

from standfast.errors import StandfastError
from standfast.model.canonical import Json, to_json
from standfast.runtime.host.at_work import AT_WORK
from standfast.runtime.host.part import HostPart

_MAX_NAME = 128


class TraceService(HostPart):
    """The `TraceHost` of a session."""

    __slots__ = ()

    async def emit_trace_event(self, name: str, body: Json = None) -> None:
        """Put a record into the trace. It never fails: a body that is no JSON is left out."""
        place, here = self._runtime.place, AT_WORK.get()
        if place is None:
            return
        try:
            clean, _ = to_json(body)
        except StandfastError:
            clean = None
        turn_id = here.turn_id if here is not None and here.session_id == self.session_id else ""
        place.record(self.session_id, turn_id, "", str(name)[:_MAX_NAME], clean)
