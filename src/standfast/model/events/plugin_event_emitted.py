from __future__ import annotations

import msgspec

from standfast.model.canonical import Json


class PluginEventEmitted(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="plugin_event_emitted"):
    """A plugin had something to tell. It is a node of the history once the turn is committed."""

    turn_id: str
    plugin_id: str
    kind: str
    body: Json = None
