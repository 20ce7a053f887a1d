"""The functions of the host, as far as running or checking guest code needs to know them."""

from __future__ import annotations

from typing import Protocol

from standfast.model.capability import Capability


class Callables(Protocol):
    """What guest code may call, for running it."""

    def __contains__(self, name: object, /) -> bool: ...

    def capability(self, name: str) -> Capability: ...

    def suggest(self, name: str) -> str | None: ...

    def is_async(self, name: str) -> bool:
        """Whether a call of it is awaited where the code does not tell."""


class Declared(Protocol):
    """What guest code may call, for checking it."""

    def __contains__(self, name: object, /) -> bool: ...

    def suggest(self, name: str) -> str | None: ...

    def stubs(self) -> str:
        """One `def` per function."""
