"""Installed plugins, found by their entry points.

A package declares one like this::

    [project.entry-points."standfast.plugins"]
    greeter = "greeter_plugin:Greeter"

An agent uses it by name: `Agent(plugins=["greeter"])`. It is not imported before that.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.errors import InvalidPlugin, PluginConflict, PluginFailed, StandfastError
from standfast.plugins.plugin import PluginFactory, as_factory
from standfast.tools.tracebacks import described

GROUP: Final = "standfast.plugins"


class FoundPlugin(msgspec.Struct, frozen=True):
    """An installed plugin that is not loaded yet."""

    name: str
    target: str
    package: str
    package_version: str
    _entry: Any

    def load(self) -> PluginFactory:
        """Import the plugin; raise `PluginFailed`, which names it, if that fails."""
        try:
            return as_factory(self._entry.load())
        except (StandfastError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise PluginFailed(self.name, "import", described(error), hint=f"it is {self.target}") from error


def installed_plugins() -> list[FoundPlugin]:
    """Return the plugins of installed packages, sorted by name. Two may have the same name."""
    from importlib import metadata  # slow to import, and most agents name no installed plugin

    found = []
    for entry in metadata.entry_points(group=GROUP):
        package = entry.dist.name if entry.dist is not None else "?"
        version = entry.dist.version if entry.dist is not None else "?"
        found.append(FoundPlugin(entry.name, entry.value, package, version, entry))
    return sorted(found, key=lambda one: (one.name, one.package))


def require_plugin(name: str) -> FoundPlugin:
    """Return the plugin of this name; raise `PluginConflict` if two packages declare it."""
    installed = installed_plugins()
    named = [one for one in installed if one.name == name]
    if not named:
        import difflib

        close = difflib.get_close_matches(name, [one.name for one in installed], n=1)
        hint = f"did you mean {close[0]}?" if close else "`standfast plugins list` shows the installed ones"
        raise InvalidPlugin(f"plugin {name!r} is not installed", hint=hint)
    for other in named[1:]:
        if other.target != named[0].target:
            hint = "uninstall one of the two packages"
            raise PluginConflict(f"the name {name!r}", named[0].package, other.package, hint=hint)
    return named[0]


def find_plugin(name: str) -> PluginFactory:
    """Import and return the installed plugin of this name."""
    return require_plugin(name).load()


def resolve_plugin(given: object) -> PluginFactory:
    """Return the factory of a plugin that is given by name, or in a form that `as_factory` accepts."""
    return find_plugin(given) if isinstance(given, str) else as_factory(given)
