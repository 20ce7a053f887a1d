"""Nodes that plugins and tools add to the history of a session."""

from __future__ import annotations

from standfast.errors import StaleBranch
from standfast.model.host_requests import (
    Appended,
    AppendSessionNodesRequest,
    AppendSessionNodesResult,
    BranchIsStale,
)
from standfast.model.node import node_id, split_node_id
from standfast.runtime.agent_session import Session
from standfast.runtime.host.part import HostPart


class GraphService(HostPart):
    """The `SessionGraphHost` of a session."""

    __slots__ = ()

    async def append_session_nodes(
        self, session_id: str, request: AppendSessionNodesRequest
    ) -> AppendSessionNodesResult:
        """Add nodes under the leaf, all of them; or tell where the session has gone instead."""
        await self._head("append_session_nodes", session_id)
        session = Session[object](self._runtime, self._runtime.live(session_id))
        try:
            head = await session.append(request.nodes, requires=request.requires_ancestor_node_id)
        except StaleBranch as stale:
            return BranchIsStale(current_leaf_node_id=stale.current_leaf_node_id)
        if not request.nodes:
            return Appended(node_ids=(), leaf_node_id=head.leaf or "")
        assert head.leaf is not None
        segment = split_node_id(head.leaf)[0]
        ids = tuple(node_id(segment, place) for place in range(len(request.nodes)))
        return Appended(node_ids=ids, leaf_node_id=head.leaf)
