"""Options of plugins, by plugin id; opaque to everything but that plugin."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json, check_bounds, to_json

T = TypeVar("T")


class PluginOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of plugins, applied whenever a session is opened, as a root or as a child."""

    plugins: dict[str, Json] = msgspec.field(default_factory=dict)

    @classmethod
    def empty(cls) -> PluginOptions:
        return cls()

    @classmethod
    def typed(cls, plugin_id: str, value: object) -> PluginOptions:
        """Return options for one plugin."""
        return cls().with_typed(plugin_id, value)

    def with_typed(self, plugin_id: str, value: object) -> PluginOptions:
        """Return these options with *value* as those of one plugin."""
        try:
            check_bounds(value)
            clean, _ = to_json(msgspec.to_builtins(value))
        except (TypeError, InvalidArgument) as error:
            raise InvalidArgument(f"the options of plugin {plugin_id!r} are not JSON: {error}") from None
        return PluginOptions(plugins={**self.plugins, plugin_id: clean})

    def decode(self, plugin_id: str, kind: type[T] | Any = Any) -> T | None:
        """Return one plugin's options converted to *kind*, None if there are none."""
        if plugin_id not in self.plugins:
            return None
        try:
            value: T = msgspec.convert(self.plugins[plugin_id], kind)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"the options of plugin {plugin_id!r} are invalid: {error}") from None
        return value


NO_OPTIONS = PluginOptions()
