"""Who holds which tool id and which tool name: the table inside a registry.

Theory of operation
-------------------
A table is never changed. Every operation returns a new one or raises, so whoever holds a table sees one
moment of the registry, and a change that fails leaves nothing behind. What is derived from a table (the
sorted names, the manifests, the state) is made once and kept with it.

An entry with a binding is *bound*: a live source offers it. An entry without one is an *orphan*: known from a
source that is gone, from a stored state, or because an overlay covers it. Orphans keep their settings.

Rules
-----
1. Among bound entries an id and a name occur once. Orphans claim no name.
2. Settings (override, membership) belong to the id: a source that is listed anew finds them again. An
   overlay does not: it wins over what it covers, settings included.

Not here: generations, locks, resolving.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from standfast.errors import ToolConflict
from standfast.model.capability import ToolAvailability, ToolManifest, ToolState, ToolStateEntry
from standfast.tools.provider import Binding, StaticTools


class Entry(msgspec.Struct, frozen=True):
    """One tool that the registry knows: what is stored about it, and who offers it now."""

    kept: ToolStateEntry
    binding: Binding | None = None

    @property
    def availability(self) -> ToolAvailability:
        """What holds: the override, else what the source says. Nothing offers an orphan."""
        if self.binding is None:
            return ToolAvailability.OFF
        return self.kept.availability or self.binding.manifest.availability

    @property
    def visible(self) -> bool:
        return self.kept.member and self.availability != ToolAvailability.OFF

    @property
    def manifest(self) -> ToolManifest | None:
        """The manifest under the availability that holds."""
        if self.binding is None or self.kept.availability is None:
            return self.binding.manifest if self.binding else None
        return msgspec.structs.replace(self.binding.manifest, availability=self.kept.availability)


class ToolTable(msgspec.Struct, frozen=True, dict=True):
    """Entries by id, the ids of the bound ones by name, the sources in the order they came.

    `found` are names of tools that the model has found by searching, whoever offers them.
    """

    entries: dict[str, Entry] = msgspec.field(default_factory=dict)
    bound: dict[str, str] = msgspec.field(default_factory=dict)
    sources: tuple[str, ...] = ()
    found: tuple[str, ...] = ()

    @cached_property
    def visible(self) -> dict[str, Entry]:
        """What a session may see, by name and in the order of names."""
        names = sorted(name for name, tool_id in self.bound.items() if self.entries[tool_id].visible)
        return {name: self.entries[self.bound[name]] for name in names}

    @cached_property
    def asks_sources(self) -> bool:
        """Whether a tool has to be asked of a source that may block: one that has it not at hand."""
        bindings = [entry.binding for entry in self.visible.values()]
        return any(one is not None and not isinstance(one.provider, StaticTools) for one in bindings)

    @cached_property
    def manifests(self) -> tuple[ToolManifest, ...]:
        """The manifests of what is visible."""
        found = (entry.manifest for entry in self.visible.values())
        return tuple(manifest for manifest in found if manifest is not None)

    @cached_property
    def orphans(self) -> dict[str, ToolStateEntry]:
        return {tool_id: entry.kept for tool_id, entry in self.entries.items() if entry.binding is None}

    @cached_property
    def state(self) -> dict[str, ToolStateEntry]:
        return {tool_id: entry.kept for tool_id, entry in self.entries.items()}

    def find(self, name: str) -> Entry | None:
        """The bound tool of this name, visible or not."""
        tool_id = self.bound.get(name)
        return None if tool_id is None else self.entries[tool_id]

    def holds(self, binding: Binding) -> bool:
        entry = self.entries.get(binding.manifest.id)
        return entry is not None and entry.binding is binding

    def orphans_among(self, bindings: Iterable[Binding]) -> int:
        """How many of these would bind an orphan again."""
        known = (self.entries.get(binding.manifest.id) for binding in bindings)
        return sum(1 for entry in known if entry is not None and entry.binding is None)

    def extend(self, source: str, bindings: Sequence[Binding]) -> ToolTable:
        """Bind these to a source, beside what it has."""
        entries, bound = dict(self.entries), dict(self.bound)
        for binding in bindings:
            manifest = binding.manifest
            _refuse_conflict(entries, bound, binding)
            entries[manifest.id] = _bind(source, binding, entries.get(manifest.id))
            bound[manifest.name] = manifest.id
        sources = self.sources if source in self.sources else (*self.sources, source)
        return ToolTable(entries, bound, sources, self.found)

    def rebind(self, source: str, bindings: Sequence[Binding]) -> ToolTable:
        """Bind these to a source, and nothing else: what it no longer offers becomes an orphan."""
        return self._released(self._ids_of(source)).extend(source, bindings)

    def remove(self, source: str) -> ToolTable:
        """Forget a source; its tools become orphans."""
        left = tuple(other for other in self.sources if other != source)
        return msgspec.structs.replace(self._released(self._ids_of(source)), sources=left)

    def overlay(self, source: str, bindings: Sequence[Binding]) -> ToolTable:
        """Bind these on top, without the settings of what they cover.

        A tool with the same name becomes an orphan; one with the same id gives its place up.
        """
        ids = {binding.manifest.id for binding in bindings}
        names = {binding.manifest.name for binding in bindings}
        covered = [tool_id for name, tool_id in self.bound.items() if name in names or tool_id in ids]
        below = self._released(covered)
        left = {tool_id: entry for tool_id, entry in below.entries.items() if tool_id not in ids}
        return msgspec.structs.replace(below, entries=left).rebind(source, bindings)

    def with_state(self, given: ToolState) -> ToolTable:
        """Take the settings of a state. Of what it does not list, a bound tool has none, an orphan goes."""
        state = given.tools
        entries = {
            tool_id: _settle(entry, state.get(tool_id))
            for tool_id, entry in self.entries.items()
            if entry.binding is not None
        }
        orphans = {tool_id: Entry(kept) for tool_id, kept in state.items() if tool_id not in entries}
        return msgspec.structs.replace(self, entries={**entries, **orphans}, found=given.found)

    def _ids_of(self, source: str) -> list[str]:
        return [tool_id for tool_id in self.bound.values() if self.entries[tool_id].kept.source == source]

    def _released(self, ids: Iterable[str]) -> ToolTable:
        released = {tool_id: Entry(self.entries[tool_id].kept) for tool_id in ids}
        bound = {name: tool_id for name, tool_id in self.bound.items() if tool_id not in released}
        return msgspec.structs.replace(self, entries={**self.entries, **released}, bound=bound)


def _refuse_conflict(entries: Mapping[str, Entry], bound: Mapping[str, str], binding: Binding) -> None:
    manifest = binding.manifest
    if (holder := entries.get(manifest.id)) is not None and holder.binding is not None:
        raise _conflict("id", manifest.id, holder.binding, binding)
    if (holder_id := bound.get(manifest.name)) is not None:
        holding = entries[holder_id].binding
        if holding is not None:
            raise _conflict("name", manifest.name, holding, binding)


def _conflict(kind: str, value: str, holding: Binding, wanting: Binding) -> ToolConflict:
    tools = [each.name if kind == "id" else each.id for each in (holding.manifest, wanting.manifest)]
    return ToolConflict(
        kind, value, owner=holding.claimant, other=wanting.claimant, tools=(tools[0], tools[1])
    )


def _bind(source: str, binding: Binding, known: Entry | None) -> Entry:
    name = binding.manifest.name
    if known is None:
        return Entry(ToolStateEntry(name=name, source=source), binding)
    return Entry(msgspec.structs.replace(known.kept, name=name, source=source), binding)


def _settle(entry: Entry, settings: ToolStateEntry | None) -> Entry:
    """The live entry under stored settings; its name and source are those of the live one."""
    name, source = entry.kept.name, entry.kept.source
    if settings is None:
        return Entry(ToolStateEntry(name=name, source=source), entry.binding)
    return Entry(msgspec.structs.replace(settings, name=name, source=source), entry.binding)
