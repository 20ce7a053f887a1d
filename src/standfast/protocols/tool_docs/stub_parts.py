"""The parts of stubs that all languages share: named types, each written once.

A stub is a function, after the types that it needs and that were not written before. A type gets its name
where it is first met and is described later, with the function's text; describing it may lead to others. So a
type that contains itself is written once.

Rules
-----
1. A name means one type in everything that one writer has written.
2. A stub that is not returned leaves no names behind.
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
        """The prefix of types without a name of their own."""

    def write(self, tool: RegisteredTool, *, max_chars: int | None = None) -> str:
        """Return the function, after the types that it needs and that are not written yet.

        A text longer than *max_chars* is replaced by one without parameters.
        """
        self._fresh, self._waiting, self.prefix = [], [], camel(tool.name)
        function = self.function(tool)
        types = [describe() for describe in self._waiting]  # describing one may add others
        text = "\n\n".join([*types, function])
        if max_chars is None or len(text) <= max_chars:
            return text
        for identity in self._fresh:
            self._taken.discard(self._names.pop(identity))
        return self.unsigned(tool)

    def name_of(self, identity: Hashable, wanted: str) -> tuple[str, bool]:
        """Return the name of a type and whether it is new. A taken name gets the tool's as a prefix."""
        if (known := self._names.get(identity)) is not None:
            return known, False
        plain = wanted if self.is_name(wanted) else f"{self.prefix}Object"
        number = 2
        name = plain if plain not in self._taken else f"{self.prefix}{plain}"
        while name in self._taken:
            name, number = f"{plain}{number}", number + 1
        self._names[identity] = name
        self._taken.add(name)
        self._fresh.append(identity)
        return name, True

    def add(self, describe: Callable[[], str]) -> None:
        """Put a type before the function that is being written."""
        self._waiting.append(describe)

    @abstractmethod
    def function(self, tool: RegisteredTool) -> str:
        """Return the function alone."""

    @abstractmethod
    def unsigned(self, tool: RegisteredTool) -> str:
        """Return the function without its signature, which is too long."""

    @abstractmethod
    def is_name(self, text: str) -> bool:
        """Return whether *text* can name a type in this language."""


class Definitions:
    """The definitions of a schema: two types are one only if the definitions they refer to are the same."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._references: dict[str, set[str]] = {}
        self._written: dict[str, tuple[str, str]] = {}

    def identity(self, schema: dict[str, Any], name: str = "") -> Hashable:
        """Return what identifies a type: its own name, its text, and every definition it refers to."""
        found: set[str] = set()
        waiting = _references(schema)
        while waiting:
            one = waiting.pop()
            if one not in found and one in self._definitions:
                found.add(one)
                if one not in self._references:
                    self._references[one] = _references(self._definitions[one])
                    self._written[one] = (one, repr(self._definitions[one]))
                waiting |= self._references[one] - found
        return (name, repr(schema), frozenset(self._written[one] for one in found))


def _references(schema: Any) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
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
