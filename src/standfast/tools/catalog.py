"""What a session's model may use of the tools that there are.

Theory of operation
-------------------
A catalog starts from the registry's manifests and is narrowed in a fixed order: each plugin's contribution,
then the session's own overlay, then the session's authority. It knows no contracts; those are asked of the
registry when they are needed.

Rules
-----
1. Authority comes last and only narrows: it never brings back what a contributor hid or switched off.
2. What is hidden stays hidden. An availability may be set again by whoever comes later, up to the authority.
   What is searchable in the end, and was found by the model, is callable.
3. A contribution that names a tool that is not there says nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, Final

import msgspec

from standfast.model.capability import (
    Capability,
    SessionToolAccess,
    ToolAvailability,
    ToolManifest,
    checked_availability,
)
from standfast.tools.registered_tool import RegisteredTool


class CatalogTool(msgspec.Struct, frozen=True):
    """One tool of a catalog, under the availability that it has there.

    One that was `found` is callable because the model has found it, and would be searchable otherwise.
    """

    manifest: ToolManifest
    availability: ToolAvailability
    found: bool = False

    @property
    def name(self) -> str:
        return self.manifest.name

    def project(self) -> dict[str, Any]:
        """The tool as JSON."""
        return {
            "id": self.manifest.id,
            "name": self.manifest.name,
            "description": self.manifest.description,
            "side_effect": str(self.manifest.side_effect),
            "availability": str(self.availability),
        }


class ToolCatalogContribution(msgspec.Struct, frozen=True):
    """What a plugin or a session says about tools, by name: how available they are, and which are hidden."""

    availability: Mapping[str, ToolAvailability] = msgspec.field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    @property
    def out_of_reach(self) -> tuple[str, ...]:
        """The names of what this takes away from the model altogether."""
        off = {name for name, level in self.availability.items() if level == ToolAvailability.OFF}
        return tuple(sorted(self.hidden | off))


NO_CATALOG_OVERLAY: Final = ToolCatalogContribution()


class ToolCatalog(msgspec.Struct, frozen=True, dict=True):
    """The tools of one session, none of them off. What is derived from them is made once, on demand."""

    tools: tuple[CatalogTool, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    def find(self, name: str) -> CatalogTool | None:
        """The tool of this name, if the session has it."""
        return self._by_name.get(name)

    def showcased(self) -> tuple[CatalogTool, ...]:
        """What the model is shown in full."""
        return self._showcased

    def callable(self) -> tuple[CatalogTool, ...]:
        """What the model may call: what is showcased, and what it may call without having been shown it."""
        return self._callable

    def searchable(self) -> tuple[CatalogTool, ...]:
        """What the model may find: every tool of the catalog."""
        return self.tools

    def may_call(self, name: str) -> bool:
        """Whether the session's model may call this tool."""
        return name in self._callable_names

    def found(self) -> tuple[CatalogTool, ...]:
        """What the model may call because it has found it."""
        return tuple(tool for tool in self.tools if tool.found)

    def has_more(self) -> bool:
        """Whether there are tools that the model has to find, or has found."""
        return any(tool.found or tool.availability == ToolAvailability.SEARCHABLE for tool in self.tools)

    def capabilities(self, resolve: Callable[[str], RegisteredTool]) -> list[Capability]:
        """The contracts of what is showcased, as *resolve* (a registry's `require`) gives them."""
        return [resolve(tool.name).capability for tool in self.showcased()]

    def project(self) -> list[dict[str, Any]]:
        """Return the catalog as JSON: a copy of what was projected once, the caller's to change."""
        return [tool.copy() for tool in self._projection]

    @cached_property
    def _by_name(self) -> dict[str, CatalogTool]:
        return {tool.name: tool for tool in self.tools}

    @cached_property
    def _showcased(self) -> tuple[CatalogTool, ...]:
        return tuple(tool for tool in self.tools if tool.availability == ToolAvailability.SHOWCASED)

    @cached_property
    def _callable(self) -> tuple[CatalogTool, ...]:
        return tuple(tool for tool in self.tools if tool.availability >= ToolAvailability.CALLABLE)

    @cached_property
    def _callable_names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self._callable)

    @cached_property
    def _projection(self) -> list[dict[str, Any]]:
        return [tool.project() for tool in self.tools]


def resolve_catalog(
    manifests: Iterable[ToolManifest],
    contributions: Sequence[ToolCatalogContribution],
    overlay: ToolCatalogContribution,
    access: SessionToolAccess,
    found: Set[str] = frozenset(),
) -> ToolCatalog:
    """The catalog of one session: plugin contributors in order, then its overlay, its authority last.

    *found* are the names of the tools that the model has found by searching.
    """
    listed = {manifest.name: manifest for manifest in manifests}
    levels = {name: manifest.availability for name, manifest in listed.items()}
    for contribution in (*contributions, overlay):
        _contribute(levels, contribution)
    on = [name for name, level in levels.items() if level != ToolAvailability.OFF]
    return ToolCatalog(
        tuple(_catalog_tool(listed[name], levels[name], name in found) for name in access.select(on))
    )


def _catalog_tool(manifest: ToolManifest, level: ToolAvailability, found: bool) -> CatalogTool:
    if found and level == ToolAvailability.SEARCHABLE:
        return CatalogTool(manifest, ToolAvailability.CALLABLE, found=True)
    return CatalogTool(manifest, level)


def _contribute(levels: dict[str, ToolAvailability], contribution: ToolCatalogContribution) -> None:
    for name, availability in contribution.availability.items():
        if name in levels:
            levels[name] = checked_availability(availability)
    for name in contribution.hidden:
        levels.pop(name, None)
