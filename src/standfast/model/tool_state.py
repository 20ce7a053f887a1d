"""What a session has decided about its tools, as a value that is stored with it.

Rule: a change makes a new state or fails as a whole; no state is ever half changed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from standfast.errors import InvalidArgument, UnknownTool
from standfast.model.limits import U64


class ToolAvailability(enum.StrEnum):
    """How near a tool is to the model: off < searchable < callable < showcased."""

    OFF = "off"
    SEARCHABLE = "searchable"
    CALLABLE = "callable"
    SHOWCASED = "showcased"

    @property
    def rank(self) -> int:
        return _RANKS[self]

    def __lt__(self, other: str) -> bool:
        return self.rank < ToolAvailability(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= ToolAvailability(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > ToolAvailability(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= ToolAvailability(other).rank


_RANKS: Final = {availability: rank for rank, availability in enumerate(ToolAvailability)}


def checked_availability(value: str) -> ToolAvailability:
    """The availability of this name; a wrong word is refused, for it must not count as "on"."""
    try:
        return ToolAvailability(value)
    except ValueError:
        known = ", ".join(ToolAvailability)
        raise InvalidArgument(f"{value!r} is no availability", hint=f"use one of {known}") from None


class ToolStateEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One tool: where it came from, whether it is in the catalog, and what overrides its own availability."""

    name: str
    source: str
    availability: ToolAvailability | None = None
    member: bool = True


class ToolState(msgspec.Struct, frozen=True, kw_only=True):
    """Every tool that a registry knows, by id, at one generation.

    `found` names the tools that the model has found by searching: those that are searchable are callable.
    """

    generation: U64 = 0
    tools: dict[str, ToolStateEntry] = {}
    found: tuple[str, ...] = ()

    def with_availability(self, names: Sequence[str], availability: ToolAvailability | None) -> ToolState:
        """Override the availability of these tools; `None` clears the override. They are found no more."""
        override = None if availability is None else checked_availability(availability)
        changed = self._changed(names, lambda entry: msgspec.structs.replace(entry, availability=override))
        return msgspec.structs.replace(changed, found=tuple(sorted(set(self.found) - set(names))))

    def with_found(self, names: Sequence[str]) -> ToolState:
        """Note that the model has found these tools."""
        return msgspec.structs.replace(self, found=tuple(sorted({*self.found, *names})))

    def with_members(self, names: Sequence[str], member: bool) -> ToolState:
        """Put these tools into the catalog or take them out. Those taken out stay known."""
        return self._changed(names, lambda entry: msgspec.structs.replace(entry, member=member))

    def _changed(self, names: Sequence[str], change: Callable[[ToolStateEntry], ToolStateEntry]) -> ToolState:
        wanted = set(names)
        found = {tool_id: entry for tool_id, entry in self.tools.items() if entry.name in wanted}
        if unknown := sorted(wanted - {entry.name for entry in found.values()}):
            listed = ", ".join(repr(name[:80]) for name in unknown[:3])
            raise UnknownTool(f"there is no tool {listed}", hint="nothing was changed")
        changed = {tool_id: change(entry) for tool_id, entry in found.items()}
        return msgspec.structs.replace(self, tools={**self.tools, **changed})
