"""Which tools a session has the authority to use."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class SessionToolAccess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A non-empty `tools` leaves exactly those, in that order; `hidden_tools` then removes by name.

    Rule: no names in `tools` means every tool, so "none at all" is said by naming tools and hiding them.
    """

    tools: tuple[str, ...] = ()
    hidden_tools: tuple[str, ...] = ()

    def within(self, parent: SessionToolAccess) -> SessionToolAccess:
        """This access, cut down to what *parent* allows; never wider than either."""
        hidden = _distinct((*parent.hidden_tools, *self.hidden_tools))
        if not self.tools or not parent.tools:
            return SessionToolAccess(tools=self.tools or parent.tools, hidden_tools=hidden)
        shared = tuple(name for name in self.tools if name in set(parent.tools))
        if shared:
            return SessionToolAccess(tools=shared, hidden_tools=hidden)
        return SessionToolAccess(tools=self.tools, hidden_tools=_distinct((*hidden, *self.tools)))

    def select(self, names: Iterable[str]) -> list[str]:
        """Of *names*, those that this access allows, in the order that it gives them."""
        present = list(names)
        if self.tools:
            there = set(present)
            present = [name for name in _distinct(self.tools) if name in there]
        hidden = set(self.hidden_tools)
        return [name for name in present if name not in hidden]


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
