"""Prompt templates of an agent: texts with named placeholders, which MCP clients list and fill in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from standfast.errors import InvalidArgument

_PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class PromptTemplate(msgspec.Struct, frozen=True):
    """A text with placeholders such as `{order}`; other braces are literal text."""

    name: str
    text: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the placeholders, in order of appearance."""
        return tuple(dict.fromkeys(_PLACE.findall(self.text)))

    def fill(self, given: Mapping[str, str]) -> str:
        """Return the filled-in text; raise `InvalidArgument` unless *given* has exactly the placeholders."""
        known = self.arguments
        wrong = [name for name in given if name not in known] or [name for name in known if name not in given]
        if wrong:
            raise InvalidArgument(
                f"prompt {self.name!r} takes {', '.join(known) or 'no arguments'}; check {wrong[0][:80]!r}"
            )
        return _PLACE.sub(lambda place: str(given[place[1]]), self.text)


def prompt_templates(given: Mapping[str, str] | None) -> dict[str, PromptTemplate]:
    """Return the templates of an agent by name; raise `InvalidArgument` if one is invalid."""
    if given is not None and not isinstance(given, Mapping):
        raise InvalidArgument("prompts is not a mapping", hint='use prompts={"refund": "Refund {order}."}')
    found = {}
    for name, text in (given or {}).items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"{str(name)[:80]!r} cannot be the name of a prompt",
                hint="use 1 to 64 ASCII letters, digits, '_' or '-'",
            )
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgument(f"prompt {name!r} has no text")
        found[name] = PromptTemplate(name, text)
    return found
