"""What the code of a session has left behind, written down as plugins' states are.

It is not part of its plugin's own state: that the variables have changed changes nothing about the tools, and
the catalog is made anew when a plugin's state changes.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from standfast.errors import PluginStateLost
from standfast.model.plugin_state import PluginSnapshotEntry, PluginSnapshotMeta
from standfast.plugins.protocol import CodeExecutorPlugin
from standfast.plugins.snapshot import ArtifactReader, SnapshotWriter
from standfast.ports.session_store import Blob

STATE: Final = "execution"
"""The artifact that is the state itself. Others are only named, so that they are kept."""
_INLINE_BYTES: Final = 4_096
"""A state up to this size stands in the record itself."""
_PACKED_BYTES: Final = 64 << 10
"""A state from this size on is compressed."""


class ExecutionMemory:
    """The state of a session's code executor, if it has one."""

    def __init__(self, executor: CodeExecutorPlugin | None, owner: str) -> None:
        self._executor = executor
        self._owner = owner
        self.entry: PluginSnapshotEntry | None = None
        """The state as it was last written down."""

    def changed(self) -> tuple[PluginSnapshotEntry, tuple[Blob, ...]] | None:
        """The state, if it was not written down yet, and with that is."""
        if self._executor is None or not self._executor.execution_state_dirty():
            return None
        revision = 1 if self.entry is None else self.entry.meta.revision + 1
        entry, blobs = _written(self._owner, revision, self._executor.snapshot_execution_state())
        named = {**self._executor.referenced_blobs(), **entry.artifacts}
        self.entry = msgspec.structs.replace(entry, artifacts=named)
        return self.entry, blobs

    def restore(self, entry: PluginSnapshotEntry | None, fetched: Mapping[str, bytes]) -> None:
        """Give the executor what was written down. Without an executor it is kept for another."""
        self.entry = entry
        if self._executor is not None and entry is not None:
            self._executor.restore_execution_state(read_execution(entry, fetched))


def _written(owner: str, revision: int, data: bytes) -> tuple[PluginSnapshotEntry, tuple[Blob, ...]]:
    writer = SnapshotWriter()
    state: dict[str, str | bool] = {}
    if len(data) <= _INLINE_BYTES:
        state["data"] = base64.b64encode(data).decode()
    elif len(data) < _PACKED_BYTES:
        writer.write_blob(STATE, data)
    else:
        state["packed"] = True
        writer.write_blob(STATE, zlib.compress(data, 1))
    meta = PluginSnapshotMeta(plugin_id=owner, plugin_version="1", revision=revision, state=dict(state))
    return PluginSnapshotEntry(meta=meta, artifacts=writer.artifacts), tuple(writer.blobs)


def read_execution(entry: PluginSnapshotEntry, fetched: Mapping[str, bytes]) -> bytes:
    """What was written down, as the executor gave it."""
    state = entry.meta.state
    try:
        assert isinstance(state, dict)
        if isinstance(inline := state.get("data"), str):
            return base64.b64decode(inline, validate=True)
        data = ArtifactReader(entry.artifacts, fetched).read_blob(STATE)
        assert data is not None
        return zlib.decompress(data) if state.get("packed") else data
    except (AssertionError, ValueError, zlib.error) as error:
        raise PluginStateLost(
            entry.meta.plugin_id, "restore", f"what its code has left behind cannot be read: {error}"
        ) from error
