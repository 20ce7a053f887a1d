"""The state of a session's plugins and tools, stored with each point of its history.

Rule: a plugin's state is opaque to everything else. The state of an absent plugin is kept unchanged.
"""

from __future__ import annotations

import msgspec

from standfast.model.canonical import Json
from standfast.model.capability import ToolState


class PluginSnapshotMeta(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin's state. `revision` increases whenever the state changes."""

    plugin_id: str
    plugin_version: str
    revision: int
    state: Json = None


class PluginSnapshotEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin's state with its larger pieces: name → digest of a blob."""

    meta: PluginSnapshotMeta
    artifacts: dict[str, str] = msgspec.field(default_factory=dict)


class PluginSessionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The states of all plugins of a session, by plugin id."""

    plugins: dict[str, PluginSnapshotEntry] = msgspec.field(default_factory=dict)


class ProtocolTurnOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A protocol's options for every turn. Only the protocol reads `payload`."""

    schema_version: int = 1
    payload: Json = None


class SessionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of plugins, tools and protocol options at a node; `execution` holds the variables of code."""

    plugins: PluginSessionSnapshot = PluginSessionSnapshot()
    tools: ToolState | None = None
    protocol_options: ProtocolTurnOptions | None = None
    frame_options: dict[str, ProtocolTurnOptions] = msgspec.field(default_factory=dict)
    execution: PluginSnapshotEntry | None = None


encode_state = msgspec.json.Encoder().encode
encode_entry = encode_state


# Not a `Decoder`: creating one takes longer than all decoding in most processes.


def decode_state(data: bytes) -> SessionState:
    return msgspec.json.decode(data, type=SessionState)


def decode_entry(data: bytes) -> PluginSnapshotEntry:
    return msgspec.json.decode(data, type=PluginSnapshotEntry)
