"""What can wake a session from outside, as plugins announce it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import PluginConflict


class TriggerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of occurrence that a plugin knows how to tell a session about."""

    name: str
    description: str = ""
    payload_schema: dict[str, Any] = {}


class TriggerEventCatalog(msgspec.Struct):
    """The trigger events of a session, under unique names, with their owners."""

    events: dict[str, TriggerEvent] = msgspec.field(default_factory=dict)
    owners: dict[str, str] = msgspec.field(default_factory=dict)

    def add(self, plugin_id: str, event: TriggerEvent) -> None:
        if event.name in self.events:
            raise PluginConflict(f"trigger {event.name!r}", self.owners[event.name], plugin_id)
        self.events[event.name] = event
        self.owners[event.name] = plugin_id
