"""What plugins, tools and code remember, as it was stored with a session or journaled by its open turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from standfast.errors import RecordCorrupt
from standfast.model import plugin_state
from standfast.model.capability import ToolState
from standfast.model.session import SessionHead
from standfast.ports.session_store import JournalEntry, SessionStore

_EMPTY: Final = plugin_state.SessionState()


async def read_state(store: SessionStore, head: SessionHead) -> plugin_state.SessionState:
    """Return the state that *head* names."""
    found = await read_named_state(store, head.session_id, head.state)
    if found is None:
        raise RecordCorrupt(f"state {head.state} of session {head.session_id} (it is gone)")
    return found


async def read_named_state(
    store: SessionStore, session_id: str, name: str | None
) -> plugin_state.SessionState | None:
    """Return the state *name* of a session, an empty one without a name; None if it was pruned."""
    if name is None:
        return _EMPTY
    body = await store.state(name)
    if body is None:
        return None
    try:
        return plugin_state.decode_state(body)
    except msgspec.DecodeError as error:
        raise RecordCorrupt(f"state {name} of session {session_id} ({error})") from None


class JournaledStates(msgspec.Struct):
    """What plugins and tools were in the middle of a turn."""

    plugins: dict[str, plugin_state.PluginSnapshotEntry] = msgspec.field(default_factory=dict)
    tools: ToolState | None = None
    execution: plugin_state.PluginSnapshotEntry | None = None


def journaled_states(head: SessionHead, journal: Sequence[JournalEntry]) -> JournaledStates:
    found = JournaledStates()
    for entry in journal:
        if entry.kind != "state":
            continue
        try:
            if entry.key == "tools":
                found.tools = msgspec.json.decode(entry.body, type=ToolState)
            elif entry.key == "execution":
                found.execution = plugin_state.decode_entry(entry.body)
            else:
                found.plugins[entry.key.removeprefix("plugin.")] = plugin_state.decode_entry(entry.body)
        except msgspec.DecodeError as error:
            raise RecordCorrupt(f"{entry.key} of a turn of session {head.session_id} ({error})") from None
    return found


async def fetch_blobs(
    store: SessionStore, entries: Sequence[plugin_state.PluginSnapshotEntry], *, only: str | None = None
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
