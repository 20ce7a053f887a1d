"""The functions of the host, as far as running or checking guest code needs to know them."""

from __future__ import annotations

from typing import Protocol

from holdfast.tools.registry import ToolRegistry
from holdfast.tools.stubs import stub_text


class Callables(Protocol):
    """What guest code may call, for running it."""

    def __contains__(self, name: object, /) -> bool: ...

    def suggest(self, name: str) -> str | None: ...

    def is_async(self, name: str) -> bool:
        """Whether a call of it is awaited where the code does not tell."""


class Declared(Protocol):
    """What guest code may call, for checking it."""

    def __contains__(self, name: object, /) -> bool: ...

    def suggest(self, name: str) -> str | None: ...

    def stubs(self) -> str:
        """One `def` per function."""


class RegistryFunctions:
    """The tools of a registry, which may change meanwhile."""

    __slots__ = ("_registry",)

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    def __contains__(self, name: object, /) -> bool:
        return name in self._registry

    def suggest(self, name: str) -> str | None:
        return self._registry.suggest(name)

    def is_async(self, name: str) -> bool:
        tool = self._registry.get(name)
        return tool is not None and tool.async_mode

    def stubs(self) -> str:
        return stub_text(self._registry)
