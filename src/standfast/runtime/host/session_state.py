"""A session's snapshot, nodes and tools, as plugins and tools may read and change them.

Rule: a snapshot has what is durable. Of a running turn it has the stored plugin states, but no messages: no
call in a snapshot lacks its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from standfast.errors import StaleBranch
from standfast.graph.history import messages_of
from standfast.model.capability import ToolAvailability, ToolState
from standfast.model.host_requests import (
    Appended,
    AppendSessionNodesRequest,
    AppendSessionNodesResult,
    BranchIsStale,
    SessionSnapshot,
)
from standfast.model.plugin_state import PluginSessionSnapshot, decode_state, encode_state
from standfast.model.session import SessionHead, node_id, split_node_id
from standfast.ports.session_store import SessionStore
from standfast.runtime.host.service import HostService
from standfast.runtime.sessions.materialize import durable_state
from standfast.runtime.sessions.session_plugins import SessionTools, append_nodes


class GraphService(HostService):
    """The `SessionGraphHost` of a session."""

    __slots__ = ()

    async def append_session_nodes(
        self, session_id: str, request: AppendSessionNodesRequest
    ) -> AppendSessionNodesResult:
        """Add nodes under the leaf, all of them; or tell where the session has gone instead."""
        await self._head("append_session_nodes", session_id)
        live = self._directory.live(session_id)
        try:
            head = await append_nodes(live, self.services, request.nodes, request.requires_ancestor_node_id)
        except StaleBranch as stale:
            return BranchIsStale(current_leaf_node_id=stale.current_leaf_node_id)
        if not request.nodes:
            return Appended(node_ids=(), leaf_node_id=head.leaf or "")
        assert head.leaf is not None
        segment = split_node_id(head.leaf)[0]
        ids = tuple(node_id(segment, place) for place in range(len(request.nodes)))
        return Appended(node_ids=ids, leaf_node_id=head.leaf)


class ToolService(HostService):
    """The `ToolCatalogHost` and the `ToolStateHost` of a session."""

    __slots__ = ()

    async def tool_catalog(self, session_id: str) -> list[dict[str, Any]]:
        """Return the tools as the model sees them; the caller may change the list."""
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
        return SessionTools(live, self.services)


class SnapshotService(HostService):
    """The `SessionSnapshotHost` of a session."""

    __slots__ = ()

    async def snapshot_current(self) -> SessionSnapshot:
        head = await self._head("snapshot_current", self.session_id)
        return await snapshot_of(self._directory.store, head)

    async def snapshot_session(self, session_id: str) -> SessionSnapshot:
        head = await self._head("snapshot_session", session_id)
        return await snapshot_of(self._directory.store, head)


async def snapshot_of(store: SessionStore, head: SessionHead) -> SessionSnapshot:
    """A session at rest, or as it was before the turn that runs."""
    messages = [] if head.leaf is None else messages_of(await store.frame(head.leaf))
    copied = decode_state(encode_state(await durable_state(store, head)))  # the caller may change it
    plugins = PluginSessionSnapshot(plugins=dict(copied.plugins.plugins))
    state = msgspec.structs.replace(copied, plugins=plugins)
    return SessionSnapshot(head=head, messages=tuple(messages), state=state)
