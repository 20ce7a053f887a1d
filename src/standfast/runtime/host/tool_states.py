"""Which tools a session has, and how near they are to its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from standfast.model.tool_state import ToolAvailability, ToolState
from standfast.runtime.host.part import HostPart
from standfast.runtime.session_plugins import SessionTools


class ToolService(HostPart):
    """The `ToolCatalogHost` and the `ToolStateHost` of a session."""

    __slots__ = ()

    async def tool_catalog(self, session_id: str) -> list[dict[str, Any]]:
        """Return the tools as the model is told of them, the caller's to change."""
        return await (await self._tools("tool_catalog", session_id)).catalog()

    async def tool_state(self, session_id: str) -> ToolState:
        return await (await self._tools("tool_state", session_id)).state()

    async def apply_tool_state(self, session_id: str, snapshot: ToolState) -> int:
        """Take a state over; `GenerationMismatch` if it is not of the current generation."""
        return await (await self._tools("apply_tool_state", session_id)).apply_state(snapshot)

    async def set_tools_availability(
        self, session_id: str, tool_names: Sequence[str], availability: ToolAvailability | None
    ) -> int:
        """All of them or none; `UnknownTool` names the first that is not there."""
        tools = await self._tools("set_tools_availability", session_id)
        return await tools.set_availability(list(tool_names), availability)

    async def set_tool_availability(
        self, session_id: str, tool_name: str, availability: ToolAvailability | None
    ) -> int:
        tools = await self._tools("set_tool_availability", session_id)
        return await tools.set_availability(tool_name, availability)

    async def _tools(self, method: str, session_id: str) -> SessionTools:
        live = await self._live(method, session_id)
        return SessionTools(live, self._runtime.store, self._runtime.now_ms)
