"""Trigger events: kinds of occurrences that can wake a session, announced by plugins."""

from __future__ import annotations

from typing import Any

import msgspec

from standfast.errors import InvalidArgument, PluginConflict
from standfast.model.canonical import Json


class TriggerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of occurrence. `name` is that of its source; payloads must fit `payload_schema`."""

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

    def check(self, source: str, payload: Json) -> None:
        """Raise `InvalidArgument` if a payload does not fit the schema announced for its source."""
        event = self.events.get(source)
        if event is None or not event.payload_schema:
            return
        import jsonschema_rs  # imported where a plugin brings a schema, and only there

        try:
            jsonschema_rs.validator_for(event.payload_schema).validate(payload)
        except jsonschema_rs.ValidationError as error:
            where = "".join(f"[{part!r}]" for part in error.instance_path)
            raise InvalidArgument(
                f"the payload of {source!r} does not fit: {error.message}{' at ' + where if where else ''}",
                hint=f"plugin {self.owners[source]!r} announces the schema of its payload",
            ) from None
