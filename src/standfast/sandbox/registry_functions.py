"""The tools of a registry, as far as running or checking guest code needs to know them."""

from __future__ import annotations

from collections.abc import Iterable

from standfast.model.capability import Capability
from standfast.tools.registry import ToolRegistry
from standfast.tools.stubs import stub_text


class RegistryFunctions:
    """What guest code may call; the registry may change meanwhile. Also the port's `CellFunctions`."""

    __slots__ = ("_registry",)

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    def __contains__(self, name: object, /) -> bool:
        return name in self._registry

    def names(self) -> Iterable[str]:
        return self._registry.names()

    def capability(self, name: str) -> Capability:
        return self._registry.require(name).capability

    def suggest(self, name: str) -> str | None:
        return self._registry.suggest(name)

    def is_async(self, name: str) -> bool:
        tool = self._registry.get(name)
        return tool is not None and tool.async_mode

    def stubs(self) -> str:
        return stub_text(self._registry)
