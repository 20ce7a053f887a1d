"""Stored states: of plugins and tools with a session or in a journal, and the variables of its code."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from standfast.errors import PluginStateLost, RecordCorrupt
from standfast.model.capability import ToolState
from standfast.model.plugin_state import (
    PluginSnapshotEntry,
    PluginSnapshotMeta,
    SessionState,
    decode_entry,
    decode_state,
    encode_state,
)
from standfast.model.session import SessionHead
from standfast.plugins.snapshot import SnapshotReader, SnapshotWriter
from standfast.plugins.turn_protocol import KeepsVariables
from standfast.ports.session_store import Blob, JournalEntry, SessionStore, StateRecord

StoredEntry = tuple[PluginSnapshotEntry, tuple[Blob, ...]]
"""A state to write, and those of its blobs that are not stored yet."""


def blobs_of(state: SessionState) -> tuple[str, ...]:
    """Return the digests of the blobs that a state names."""
    entries = [*state.plugins.plugins.values(), *([state.execution] if state.execution else [])]
    return tuple(digest for entry in entries for digest in entry.artifacts.values())


def state_record(state: SessionState) -> StateRecord:
    """Return a session's state as a record for the store."""
    return StateRecord(body=encode_state(state), blobs=blobs_of(state))


# Reading the states stored with a session, or journaled by its unfinished turn.

_EMPTY: Final = SessionState()


async def read_state(store: SessionStore, head: SessionHead) -> SessionState:
    """Return the state that *head* names."""
    found = await read_named_state(store, head.session_id, head.state)
    if found is None:
        raise RecordCorrupt(f"state {head.state} of session {head.session_id} (it is missing)")
    return found


async def read_named_state(store: SessionStore, session_id: str, name: str | None) -> SessionState | None:
    """Return the state *name* of a session, or an empty state if *name* is None; None if it was pruned."""
    if name is None:
        return _EMPTY
    body = await store.state(name)
    if body is None:
        return None
    try:
        return decode_state(body)
    except msgspec.DecodeError as error:
        raise RecordCorrupt(f"state {name} of session {session_id} ({error})") from None


class JournaledStates(msgspec.Struct):
    """The states of plugins and tools that an unfinished turn has journaled."""

    plugins: dict[str, PluginSnapshotEntry] = msgspec.field(default_factory=dict)
    tools: ToolState | None = None
    execution: PluginSnapshotEntry | None = None


def journaled_states(head: SessionHead, journal: Sequence[JournalEntry]) -> JournaledStates:
    found = JournaledStates()
    for entry in journal:
        if entry.kind != "state":
            continue
        try:
            if entry.key == "tools":
                found.tools = msgspec.json.decode(entry.body, type=ToolState)
            elif entry.key == "execution":
                found.execution = decode_entry(entry.body)
            else:
                found.plugins[entry.key.removeprefix("plugin.")] = decode_entry(entry.body)
        except msgspec.DecodeError as error:
            raise RecordCorrupt(f"{entry.key} of a turn of session {head.session_id} ({error})") from None
    return found


async def fetch_blobs(
    store: SessionStore, entries: Sequence[PluginSnapshotEntry], *, only: str | None = None
) -> dict[str, bytes]:
    """Read the blobs of plugin states, by digest."""
    fetched: dict[str, bytes] = {}
    for entry in entries:
        for name, digest in entry.artifacts.items():
            if only is not None and name != only:
                continue
            data = await store.blob(digest)
            if data is None:
                raise RecordCorrupt(f"{name} of plugin {entry.meta.plugin_id} (blob {digest} is gone)")
            fetched[digest] = data
    return fetched


# The variables of a session's code. They are kept apart from the plugin's state, because the tool catalog is
# rebuilt whenever a plugin's state changes, and variables do not affect it.

STATE: Final = "execution"
"""The artifact that contains the state. Other artifacts are listed only so that their blobs are kept."""
_INLINE_BYTES: Final = 4_096
"""The largest state that is stored inline in the record."""
_PACKED_BYTES: Final = 64 << 10
"""The smallest state that is compressed."""


class ExecutionMemory:
    """The state of a session's code executor, if it has one."""

    __slots__ = ("_executor", "_owner", "entry")

    def __init__(self, executor: KeepsVariables | None, owner: str) -> None:
        self._executor = executor
        self._owner = owner
        self.entry: PluginSnapshotEntry | None = None
        """The state as it was last written."""

    def changed(self) -> StoredEntry | None:
        """Return the state if it is not written yet, and mark it as written."""
        executor = self._executor
        if executor is None or not executor.execution_state_dirty():
            return None
        revision = 1 if self.entry is None else self.entry.meta.revision + 1
        data, writer = executor.snapshot_execution_state(), SnapshotWriter()
        state: dict[str, Any] = {}
        if len(data) <= _INLINE_BYTES:
            state["data"] = data  # JSON has it as base64
        elif len(data) < _PACKED_BYTES:
            writer.write_blob(STATE, data)
        else:
            state["packed"] = True
            writer.write_blob(STATE, zlib.compress(data, 1))
        meta = PluginSnapshotMeta(plugin_id=self._owner, plugin_version="1", revision=revision, state=state)
        named = {**executor.referenced_blobs(), **writer.artifacts}
        self.entry = PluginSnapshotEntry(meta=meta, artifacts=named)
        return self.entry, tuple(writer.blobs)

    def restore(self, entry: PluginSnapshotEntry | None, fetched: Mapping[str, bytes]) -> None:
        """Restore the executor's stored state. Without an executor, keep the state for a later one."""
        self.entry = entry
        if self._executor is not None and entry is not None:
            self._executor.restore_execution_state(read_execution(entry, fetched))

    def is_stored(self, entry: PluginSnapshotEntry | None) -> bool:
        """Return whether *entry* is the current state."""
        executor = self._executor
        return self.entry is entry and (executor is None or not executor.execution_state_dirty())


def read_execution(entry: PluginSnapshotEntry, fetched: Mapping[str, bytes]) -> bytes:
    """Return the stored state of a code executor, as bytes from its `snapshot_execution_state`."""
    state: Any = entry.meta.state
    try:
        assert isinstance(state, dict)
        if isinstance(inline := state.get("data"), bytes):
            return inline  # the entry was not read from the store
        if isinstance(inline, str):
            return base64.b64decode(inline, validate=True)
        data = SnapshotReader(entry.artifacts, fetched).read_blob(STATE)
        assert data is not None
        return zlib.decompress(data) if state.get("packed") else data
    except (AssertionError, ValueError, zlib.error) as error:
        raise PluginStateLost(
            entry.meta.plugin_id, "restore", f"the stored variables of its code cannot be read: {error}"
        ) from error
