"""Tool sources, and the table inside a registry that maps tool ids and names to sources.

A table is immutable: every operation returns a new one or raises. Values derived from a table (the sorted
names, the manifests, the state) are computed once and cached in it.

An entry with a binding is *bound*: a live source offers it. An entry without one is an *orphan*: known from a
removed source, from a stored state, or because an overlay replaces it. Orphans keep their settings.

Rules
-----
1. Among bound entries, ids and names are unique. Orphans reserve no name.
2. Settings (override, membership) belong to the id, and apply again when a source is listed again. An overlay
   replaces an entry together with its settings.
3. The values that a source returns are checked before they are used; errors name the source.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Final, Protocol, TypeVar, runtime_checkable

import msgspec

from standfast.errors import BadToolSource, InvalidArgument, StandfastError, ToolConflict, ToolNameTaken
from standfast.model.capability import SideEffect, ToolAvailability, ToolManifest, ToolState, ToolStateEntry
from standfast.tools.registered_tool import RegisteredTool

T = TypeVar("T")

ASKED: Final[ContextVar[list[tuple[str, str]] | None]] = ContextVar("standfast_asked_source", default=None)
"""A list with the name and method of the source that is being called, so that a timeout can name it."""


class ToolProvider(Protocol):
    """A source of tools, which lists them cheaply and resolves one when it is needed."""

    def manifests(self) -> Sequence[ToolManifest]:
        """Return every tool of this source, without its schemas."""
        ...

    def resolve(self, name: str) -> RegisteredTool | None:
        """Return a tool's contract with its handler; `None` if there is no such tool."""
        ...


@runtime_checkable
class ToolSource(ToolProvider, Protocol):
    """A source whose tools can change while it is connected, such as an MCP server. Pass it in `tools=`.

    `revision` differs from 0 once the tools are known, and with every change after that.
    """

    @property
    def source(self) -> str:
        """The name under which a registry connects it."""

    @property
    def revision(self) -> int: ...

    async def close(self) -> None:
        """Release the source's resources. It can be used again."""


class StaticTools:
    """A source of resolved tools, such as those of an agent or a plugin."""

    def __init__(
        self,
        tools: Iterable[RegisteredTool],
        prefix: str = "",
        *,
        availability: ToolAvailability = ToolAvailability.SHOWCASED,
    ) -> None:
        self._prefix, self._availability = prefix, availability
        self._tools: dict[str, RegisteredTool] = {}
        for tool in tools:
            if not isinstance(tool, RegisteredTool):
                raise InvalidArgument(
                    f"{type(tool).__name__} is not a tool", hint="convert it with as_registered()"
                )
            if (other := self._tools.get(tool.name)) is not None:
                raise ToolNameTaken(tool.name, other.owner, tool.owner)
            self._tools[tool.name] = tool

    def manifests(self) -> Sequence[ToolManifest]:
        return [
            ToolManifest(
                id=f"{self._prefix}{tool.name}",
                name=tool.name,
                description=tool.capability.description,
                side_effect=tool.capability.side_effect,
                availability=self._availability,
            )
            for tool in self._tools.values()
        ]

    def resolve(self, name: str) -> RegisteredTool | None:
        return self._tools.get(name)


class Binding(msgspec.Struct, frozen=True, eq=False):
    """One tool in one listing of its source. `claimant` names the source in messages.

    Two listings of the same tool are two bindings: a tool resolved for one is not used for the other.
    """

    manifest: ToolManifest
    provider: ToolProvider
    claimant: str

    def resolve(self) -> RegisteredTool:
        """Return the tool; raise if its source no longer has it or it differs from its manifest."""
        name, effect = self.manifest.name, self.manifest.side_effect
        tool = _answer(self.claimant, f"resolve({name!r})", lambda: self.provider.resolve(name))
        if tool is None:
            raise BadToolSource(self.claimant, f"lists the tool {name!r} but cannot resolve it")
        if not isinstance(tool, RegisteredTool) or tool.name != name:
            raise BadToolSource(self.claimant, f"resolves {name!r} to {_described(tool)}")
        if (real := tool.capability.side_effect) != effect:
            shown = f"{str(effect)!r}, but it has {str(real)!r}"
            raise BadToolSource(self.claimant, f"lists {name!r} with side effect {shown}")
        return tool


def bindings_of(claimant: str, provider: ToolProvider) -> list[Binding]:
    """Return a binding for each manifest that *provider* lists; raise `BadToolSource` for a wrong one."""
    listed = _answer(claimant, "manifests()", lambda: list(provider.manifests()))
    for manifest in listed:
        if not isinstance(manifest, ToolManifest):
            raise BadToolSource(claimant, f"lists {_described(manifest)}, which is not a manifest")
        fits = (  # a struct created in Python accepts any value
            isinstance(manifest.id, str)
            and isinstance(manifest.description, str)
            and isinstance(manifest.side_effect, SideEffect)
            and isinstance(manifest.availability, ToolAvailability)
        )
        if not fits:
            raise BadToolSource(claimant, f"lists {manifest.name!r} with fields of the wrong type")
    return [Binding(manifest, provider, claimant) for manifest in listed]


def _answer(claimant: str, method: str, ask: Callable[[], T]) -> T:
    asked = ASKED.get()
    if asked is not None:
        asked.append((claimant, method))
    try:
        answer = ask()
    except (Exception, SystemExit) as error:
        described = type(error).__name__
        with contextlib.suppress(Exception):  # its own __str__ raises
            described = str(error) if isinstance(error, StandfastError) else f"{described}: {error}"[:500]
        raise BadToolSource(claimant, f"failed in {method}: {described}") from error
    if asked is not None:
        asked.clear()
    return answer


def _described(answer: object) -> str:
    return f"tool {answer.name!r}" if isinstance(answer, RegisteredTool) else f"a {type(answer).__name__}"


class ToolEntry(msgspec.Struct, frozen=True):
    """One tool that the registry knows: its stored settings, and the source that offers it now."""

    kept: ToolStateEntry
    binding: Binding | None = None

    @property
    def availability(self) -> ToolAvailability:
        """The override, or the source's own availability; off for an orphan."""
        if self.binding is None:
            return ToolAvailability.OFF
        return self.kept.availability or self.binding.manifest.availability

    @property
    def visible(self) -> bool:
        return self.kept.member and self.availability != ToolAvailability.OFF

    @property
    def manifest(self) -> ToolManifest | None:
        """The manifest with the effective availability."""
        if self.binding is None or self.kept.availability is None:
            return self.binding.manifest if self.binding else None
        return msgspec.structs.replace(self.binding.manifest, availability=self.kept.availability)


class ToolTable(msgspec.Struct, frozen=True, dict=True):
    """Entries by id, the ids of bound entries by name, and the sources in the order they were added.

    `found` are names of tools that the model has found by searching, from any source.
    """

    entries: dict[str, ToolEntry] = msgspec.field(default_factory=dict)
    bound: dict[str, str] = msgspec.field(default_factory=dict)
    sources: tuple[str, ...] = ()
    found: tuple[str, ...] = ()

    @cached_property
    def visible(self) -> dict[str, ToolEntry]:
        """The entries that a session may see, sorted by name."""
        names = sorted(name for name, tool_id in self.bound.items() if self.entries[tool_id].visible)
        return {name: self.entries[self.bound[name]] for name in names}

    @cached_property
    def asks_sources(self) -> bool:
        """Whether a tool has to be resolved by a source that may block."""
        bindings = [entry.binding for entry in self.visible.values()]
        return any(one is not None and not isinstance(one.provider, StaticTools) for one in bindings)

    @cached_property
    def manifests(self) -> tuple[ToolManifest, ...]:
        """The manifests of the visible entries."""
        found = (entry.manifest for entry in self.visible.values())
        return tuple(manifest for manifest in found if manifest is not None)

    @cached_property
    def orphans(self) -> dict[str, ToolStateEntry]:
        return {tool_id: entry.kept for tool_id, entry in self.entries.items() if entry.binding is None}

    @cached_property
    def state(self) -> dict[str, ToolStateEntry]:
        return {tool_id: entry.kept for tool_id, entry in self.entries.items()}

    def find(self, name: str) -> ToolEntry | None:
        """Return the bound entry of this name, visible or not."""
        tool_id = self.bound.get(name)
        return None if tool_id is None else self.entries[tool_id]

    def holds(self, binding: Binding) -> bool:
        entry = self.entries.get(binding.manifest.id)
        return entry is not None and entry.binding is binding

    def orphans_among(self, bindings: Iterable[Binding]) -> int:
        """Return how many of these would bind an orphan again."""
        known = (self.entries.get(binding.manifest.id) for binding in bindings)
        return sum(1 for entry in known if entry is not None and entry.binding is None)

    def extend(self, source: str, bindings: Sequence[Binding]) -> ToolTable:
        """Bind these to a source, in addition to its other tools."""
        entries, bound = dict(self.entries), dict(self.bound)
        for binding in bindings:
            manifest, name = binding.manifest, binding.manifest.name
            known = entries.get(manifest.id)
            if known is None and name not in bound:
                entries[manifest.id] = ToolEntry(ToolStateEntry(name=name, source=source), binding)
                bound[name] = manifest.id
                continue
            for kind, value, holder in (
                ("id", manifest.id, known),
                ("name", name, entries[bound[name]] if name in bound else None),
            ):
                if holder is not None and (other := holder.binding) is not None:
                    pair = (other.manifest, manifest)
                    tools = [each.name if kind == "id" else each.id for each in pair]
                    raise ToolConflict(
                        kind, value, owner=other.claimant, other=binding.claimant, tools=(tools[0], tools[1])
                    )
            kept = ToolStateEntry(name=name, source=source)
            if known is not None:
                kept = msgspec.structs.replace(known.kept, name=name, source=source)
            entries[manifest.id] = ToolEntry(kept, binding)
            bound[name] = manifest.id
        sources = self.sources if source in self.sources else (*self.sources, source)
        return ToolTable(entries, bound, sources, self.found)

    def rebind(self, source: str, bindings: Sequence[Binding]) -> ToolTable:
        """Bind exactly these to a source: tools that it no longer offers become orphans."""
        known = self._released(self._ids_of(source)) if source in self.sources else self
        return known.extend(source, bindings)

    def remove(self, source: str) -> ToolTable:
        """Remove a source; its tools become orphans."""
        left = tuple(other for other in self.sources if other != source)
        return msgspec.structs.replace(self._released(self._ids_of(source)), sources=left)

    def overlay(self, source: str, bindings: Sequence[Binding]) -> ToolTable:
        """Bind these as an overlay, without the settings of the entries that they replace.

        An entry with the same name becomes an orphan; one with the same id is dropped.
        """
        ids = {binding.manifest.id for binding in bindings}
        names = {binding.manifest.name for binding in bindings}
        covered = [tool_id for name, tool_id in self.bound.items() if name in names or tool_id in ids]
        below = self._released(covered)
        left = {tool_id: entry for tool_id, entry in below.entries.items() if tool_id not in ids}
        return msgspec.structs.replace(below, entries=left).rebind(source, bindings)

    def with_state(self, given: ToolState) -> ToolTable:
        """Apply the settings of a state; a bound tool keeps its own name and source.

        A bound tool that the state does not list has no settings; an orphan that it does not list is dropped.
        """
        state, entries = given.tools, {}
        for tool_id, entry in self.entries.items():
            if entry.binding is not None:
                kept = ToolStateEntry(name=entry.kept.name, source=entry.kept.source)
                if tool_id in state:
                    kept = msgspec.structs.replace(state[tool_id], name=kept.name, source=kept.source)
                entries[tool_id] = ToolEntry(kept, entry.binding)
        orphans = {tool_id: ToolEntry(kept) for tool_id, kept in state.items() if tool_id not in entries}
        return msgspec.structs.replace(self, entries={**entries, **orphans}, found=given.found)

    def _ids_of(self, source: str) -> list[str]:
        return [tool_id for tool_id in self.bound.values() if self.entries[tool_id].kept.source == source]

    def _released(self, ids: Iterable[str]) -> ToolTable:
        released = {tool_id: ToolEntry(self.entries[tool_id].kept) for tool_id in ids}
        bound = {name: tool_id for name, tool_id in self.bound.items() if tool_id not in released}
        return msgspec.structs.replace(self, entries={**self.entries, **released}, bound=bound)
