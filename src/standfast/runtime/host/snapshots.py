"""Sessions as they stand: their heads, the messages of their frames, what plugins and tools remember.

Rule: a snapshot is of what is durable. A turn under way is in it with what its plugins have written down, and
without what it has said: no call in a snapshot is without its result.
"""

from __future__ import annotations

import msgspec

from standfast.graph import messages_of
from standfast.model.head import SessionHead
from standfast.model.host_requests import SessionSnapshot
from standfast.model.plugin_state import PluginSessionSnapshot, SessionState, decode_state, encode_state
from standfast.ports.session_store import SessionStore
from standfast.runtime.host.part import HostPart
from standfast.runtime.materialize import durable_state


class SnapshotService(HostPart):
    """The `SessionSnapshotHost` of a session."""

    __slots__ = ()

    async def snapshot_current(self) -> SessionSnapshot:
        head = await self._head("snapshot_current", self.session_id)
        return await snapshot_of(self._runtime.store, head)

    async def snapshot_session(self, session_id: str) -> SessionSnapshot:
        head = await self._head("snapshot_session", session_id)
        return await snapshot_of(self._runtime.store, head)


async def snapshot_of(store: SessionStore, head: SessionHead) -> SessionSnapshot:
    """A session at rest, or as it was before the turn that runs."""
    messages = [] if head.leaf is None else messages_of(await store.frame(head.leaf))
    state = _copied(await durable_state(store, head))
    return SessionSnapshot(head=head, messages=tuple(messages), state=state)


def _copied(state: SessionState) -> SessionState:
    """A state that shares nothing with ours: whoever has it may change what is in it."""
    read = decode_state(encode_state(state))
    plugins = PluginSessionSnapshot(plugins=dict(read.plugins.plugins))
    return msgspec.structs.replace(read, plugins=plugins)
