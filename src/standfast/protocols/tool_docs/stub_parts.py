"""What the stubs of every language have in common: types with names, written once.

Theory of operation
-------------------
A stub is a function, after the types that it needs and that were not written before. A type gets its name
where it is first met; it is described later, when the function's text is made, and describing it may lead to
others. So a type that contains itself is written, not followed for ever.

Rules
-----
1. A type's name means one type in everything that one writer has written, and each is written once.
2. A stub that is not given leaves no names behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.stub_words import camel

LINE_CHARS: Final = 100


class Writer(ABC):
    """Writes tools one after the other. No type gets a name of *taken*, such as another tool's."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._names: dict[Hashable, str] = {}
        self._fresh: list[Hashable] = []
        self._waiting: list[Callable[[], str]] = []
        self.prefix = ""
        """What names of types begin with that have no other."""

    def write(self, tool: RegisteredTool, *, max_chars: int | None = None) -> str:
        """The function, after the types that it needs and that are not written yet.

        A text of more than *max_chars* is not given: in its place there is one that names no parameters.
        """
        self._fresh, self._waiting, self.prefix = [], [], camel(tool.name)
        function = self._function(tool)
        types = [describe() for describe in self._waiting]  # describing one may add others
        text = "\n\n".join([*types, function])
        if max_chars is None or len(text) <= max_chars:
            return text
        for identity in self._fresh:
            self._taken.discard(self._names.pop(identity))
        return self._unsigned(tool)

    def name_of(self, identity: Hashable, wanted: str) -> tuple[str, bool]:
        """The name of a type, and whether it is new. A taken name gets the tool's in front."""
        if (known := self._names.get(identity)) is not None:
            return known, False
        plain = wanted if self._is_name(wanted) else f"{self.prefix}Object"
        number = 2
        name = plain if plain not in self._taken else f"{self.prefix}{plain}"
        while name in self._taken:
            name, number = f"{plain}{number}", number + 1
        self._names[identity] = name
        self._taken.add(name)
        self._fresh.append(identity)
        return name, True

    def add(self, describe: Callable[[], str]) -> None:
        """Put a type before the function that is being written. Its text is made when the function's is."""
        self._waiting.append(describe)

    @abstractmethod
    def _function(self, tool: RegisteredTool) -> str:
        """The function alone."""

    @abstractmethod
    def _unsigned(self, tool: RegisteredTool) -> str:
        """The function without its signature, which is too long to show."""

    @abstractmethod
    def _is_name(self, text: str) -> bool:
        """Whether the language takes *text* for the name of a type."""


class Definitions:
    """What the definitions of a schema refer to: two types are one only if these are the same too."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._references: dict[str, set[str]] = {}
        self._written: dict[str, tuple[str, str]] = {}

    def identity(self, schema: dict[str, Any], name: str = "") -> Hashable:
        """What tells a type from every other: its own name, its text, and every definition it refers to."""
        return (name, repr(schema), self._closure(schema))

    def _closure(self, schema: dict[str, Any]) -> frozenset[tuple[str, str]]:
        found: set[str] = set()
        waiting = _references(schema)
        while waiting:
            name = waiting.pop()
            if name not in found and name in self._definitions:
                found.add(name)
                if name not in self._references:
                    self._references[name] = _references(self._definitions[name])
                    self._written[name] = (name, repr(self._definitions[name]))
                waiting |= self._references[name] - found
        return frozenset(self._written[name] for name in found)


def _references(schema: Any) -> set[str]:
    """The names of the definitions that a schema refers to."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                found.add(part["$ref"].rsplit("/", 1)[-1])
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return found
