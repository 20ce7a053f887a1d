"""Tool sources, and the registry that combines them under unique ids and names.

Theory of operation
-------------------
A source (`upsert`) is a provider under a name. The registry lists it once, cheaply; a tool's contract and
handler are requested when the tool is first needed. `generation` counts changes, so that stale derived values
are detected and a change based on an old state is refused. The tools are in a `ToolTable`, which is
immutable: a change creates a new one and replaces the old one under the lock. Values derived from a table
(the sorted names, the manifests, the state) are computed once and cached in it.

An entry of the table with a binding is *bound*: a live source offers it. An entry without one is an *orphan*:
known from a removed source, from a stored state, or because an overlay replaces it. Orphans keep their
settings.

A session's catalog starts from the registry's manifests and is narrowed in a fixed order: each plugin's
contribution, then the session's overlay, then the session's authority. It holds no contracts.

Rules
-----
1. A change is applied completely or not at all.
2. The generation increases by one with every upsert, removal and applied state, with every tool that is
   resolved for the first time, and with every orphan that is bound again. Restoring adopts the generation of
   the state, and a fork keeps it, so values cached by generation alone must be dropped when a state is
   restored.
3. Providers are called outside the lock, so a slow provider delays only its own caller.
4. Authority comes last and only narrows a catalog: it never restores a tool that a contributor hid or
   switched off. A hidden tool stays hidden; an availability may be set again by a later contributor.
5. A searchable tool that the model has found is callable. A contribution to an unknown tool is ignored.
6. Among bound entries, ids and names are unique. Orphans reserve no name.
7. Settings (override, membership) belong to the id, and apply again when a source is listed again. An overlay
   replaces an entry together with its settings.
8. The values that a source returns are checked before they are used; errors name the source.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from standfast.errors import (
    BadToolSource,
    GenerationMismatch,
    InvalidArgument,
    StandfastError,
    ToolConflict,
    ToolNameTaken,
    ToolOrphaned,
    UnknownTool,
)
from standfast.model.capability import (
    Capability,
    SessionToolAccess,
    SideEffect,
    ToolAvailability,
    ToolManifest,
    ToolState,
    ToolStateEntry,
    checked_availability,
)
from standfast.tools.registered_tool import RegisteredTool

T = TypeVar("T")

_SEARCHABLE: Final = ToolAvailability.SEARCHABLE  # reading an attribute of an enum takes long
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


class CatalogTool(msgspec.Struct, frozen=True):
    """One tool of a catalog. A searchable tool that the model has `found` is callable."""

    manifest: ToolManifest
    availability: ToolAvailability
    found: bool = False

    @property
    def name(self) -> str:
        return self.manifest.name

    def project(self) -> dict[str, Any]:
        """Return the tool as JSON."""
        return {
            "id": self.manifest.id,
            "name": self.manifest.name,
            "description": self.manifest.description,
            "side_effect": str(self.manifest.side_effect),
            "availability": str(self.availability),
        }


class ToolCatalogContribution(msgspec.Struct, frozen=True):
    """The availability of tools, and the names of hidden ones, as a plugin or a session sets them."""

    availability: Mapping[str, ToolAvailability] = msgspec.field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    @property
    def out_of_reach(self) -> tuple[str, ...]:
        """The names of the tools that this contribution removes from the model's reach."""
        off = {name for name, level in self.availability.items() if level == ToolAvailability.OFF}
        return tuple(sorted(self.hidden | off))


NO_CATALOG_OVERLAY: Final = ToolCatalogContribution()


class ToolCatalog(msgspec.Struct, frozen=True, dict=True):
    """The tools of one session, none of them off. Derived values are computed once, on demand."""

    tools: tuple[CatalogTool, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    @cached_property
    def _by_name(self) -> dict[str, CatalogTool]:
        return {tool.name: tool for tool in self.tools}

    @cached_property
    def _showcased(self) -> tuple[CatalogTool, ...]:
        return tuple(tool for tool in self.tools if tool.availability == ToolAvailability.SHOWCASED)

    @cached_property
    def _projection(self) -> list[dict[str, Any]]:
        return [tool.project() for tool in self.tools]

    def find(self, name: str) -> CatalogTool | None:
        """Return the tool of this name, if the session has it."""
        return self._by_name.get(name)

    def showcased(self) -> tuple[CatalogTool, ...]:
        """Return the tools that the model is shown in full."""
        return self._showcased

    def callable(self) -> tuple[CatalogTool, ...]:
        """Return the tools that the model may call, whether or not it was shown them."""
        return tuple(tool for tool in self.tools if tool.availability != ToolAvailability.SEARCHABLE)

    def searchable(self) -> tuple[CatalogTool, ...]:
        """Return the tools that the model may find: every tool of the catalog."""
        return self.tools

    def may_call(self, name: str) -> bool:
        """Return whether the session's model may call this tool."""
        tool = self._by_name.get(name)
        return tool is not None and tool.availability != _SEARCHABLE

    def found(self) -> tuple[CatalogTool, ...]:
        """Return the tools that the model may call because it has found them."""
        return tuple(tool for tool in self.tools if tool.found)

    def has_more(self) -> bool:
        """Return whether there are tools that the model has to find, or has found."""
        return any(tool.found or tool.availability == ToolAvailability.SEARCHABLE for tool in self.tools)

    def capabilities(self, resolve: Callable[[str], RegisteredTool]) -> list[Capability]:
        """Return the contracts of the showcased tools, resolved by *resolve* (a registry's `require`)."""
        return [resolve(tool.name).capability for tool in self.showcased()]

    def project(self) -> list[dict[str, Any]]:
        """Return the catalog as a new list of JSON objects."""
        return [tool.copy() for tool in self._projection]


def resolve_catalog(
    manifests: Iterable[ToolManifest],
    contributions: Sequence[ToolCatalogContribution],
    overlay: ToolCatalogContribution,
    access: SessionToolAccess,
    found: Set[str] = frozenset(),
) -> ToolCatalog:
    """Build a session's catalog by applying contributions in order, then overlay, then authority."""
    listed = {manifest.name: manifest for manifest in manifests}
    levels = {name: manifest.availability for name, manifest in listed.items()}
    for contribution in (*contributions, overlay):
        for name, availability in contribution.availability.items():
            if name in levels:
                levels[name] = checked_availability(availability)
        for name in contribution.hidden:
            levels.pop(name, None)
    tools = []
    for name in access.select([name for name, level in levels.items() if level != ToolAvailability.OFF]):
        is_found = name in found and levels[name] == ToolAvailability.SEARCHABLE
        level = ToolAvailability.CALLABLE if is_found else levels[name]
        tools.append(CatalogTool(listed[name], level, is_found))
    return ToolCatalog(tuple(tools))


REGISTERED: Final = "registered"
"""The source of tools that are registered one by one."""

CONTEXT: Final = "context"
"""The source of the tools in the overlay of a session's context."""


class ToolRegistry:
    """The tools that a sandbox, an agent or a session may call. Safe to use from any thread.

    `names`, `in`, `len`, iteration, `capabilities`, `digests` and `manifests` cover the visible tools: bound
    to a source, in the catalog, and not off. A registry is a `ToolProvider`, too.
    """

    def __init__(self, tools: Iterable[RegisteredTool] = ()) -> None:
        self._lock = threading.RLock()
        self.table = ToolTable()
        """The same object as long as nothing has changed but which tools are resolved."""
        self.generation = 0
        """How often the tools have changed; 0 for a registry that has never had any."""
        self._resolved: dict[Binding, RegisteredTool] = {}
        self.connected: dict[str, tuple[ToolSource, int]] = {}
        """The connected sources by name, each with the revision that was listed."""
        if given := list(tools):
            self.upsert(REGISTERED, StaticTools(given))

    # Sources

    def register(self, tool: RegisteredTool) -> None:
        """Add one tool; if its name is taken, raise an error that names both owners."""
        bindings = bindings_of(REGISTERED, StaticTools([tool]))
        with self._lock:
            entry = self.table.find(tool.name)
            if entry is not None and entry.binding is not None and entry.kept.source == REGISTERED:
                raise ToolNameTaken(tool.name, self._tool_of(entry.binding).owner, tool.owner)
            self._commit(self.table.extend(REGISTERED, bindings), bindings)

    def upsert(self, source: str, provider: ToolProvider) -> int:
        """Add a source, or list it again: tools it no longer has become orphans. Return the generation."""
        if not isinstance(source, str) or not source:
            raise InvalidArgument("a tool source needs a name")
        bindings = bindings_of(source, provider)
        with self._lock:
            return self._commit(self.table.rebind(source, bindings), bindings)

    def connect(self, source: ToolSource) -> None:
        """Add a source and list it now; `refresh` lists it again whenever its revision has changed."""
        with self._lock:
            if source.source in self.connected or source.source in self.table.sources:
                raise InvalidArgument(
                    f"two tool sources are named {source.source!r}", hint="give one of them another name"
                )
            self.connected = {**self.connected, source.source: (source, -1)}

    def outdated(self) -> bool:
        """Return whether the tools of a connected source have changed since they were listed."""
        return bool(self.connected) and any(one.revision != listed for one, listed in self.connected.values())

    def refresh(self) -> None:
        """List the connected sources whose tools have changed. Calls the sources, which may block."""
        for name, (source, listed) in list(self.connected.items()):
            if source.revision == listed:
                continue
            bindings = bindings_of(name, source)
            with self._lock:
                self._commit(self.table.rebind(name, bindings), bindings)
                self.connected = {**self.connected, name: (source, source.revision)}

    def remove(self, source: str) -> int:
        """Remove a source; return the generation. Its tools are orphans until they are listed again."""
        with self._lock:
            if source not in self.table.sources:
                known = ", ".join(self.table.sources)
                raise InvalidArgument(
                    f"there is no tool source {source!r}", hint=f"there are {known}" if known else None
                )
            return self._commit(self.table.remove(source))

    def sources(self) -> list[str]:
        """The names of the sources, in the order in which they were added."""
        return list(self.table.sources)

    # Tools

    def get(self, name: str) -> RegisteredTool | None:
        """Return the tool of this name, resolved by its source if necessary; None if it does not exist."""
        entry = self.table.visible.get(name)
        if entry is None or entry.binding is None:
            return None
        return self._resolved.get(entry.binding) or self._tool_of(entry.binding)

    resolve = get  # the name in `ToolProvider`

    @property
    def is_static(self) -> bool:
        """Whether all tools are known without calling a source, now and later."""
        return not self.connected and not self.table.asks_sources

    def asks_source(self, name: str | None = None) -> bool:
        """Return whether `get(name)`, or `get` of some name if None, calls a source that may block."""
        if not self.table.asks_sources or name is None:
            return self.table.asks_sources
        entry = self.table.visible.get(name)
        binding = None if entry is None else entry.binding
        return binding is not None and binding not in self._resolved

    def require(self, name: str) -> RegisteredTool:
        """Return the tool of this name, or raise an error that says why there is none."""
        if (tool := self.get(name)) is not None:
            return tool
        entry = self.table.find(name)
        if entry is not None and not entry.kept.member:
            raise UnknownTool(f"the tool {name!r} is not in the catalog", hint="add it with set_members()")
        if entry is not None:
            raise UnknownTool(f"the tool {name!r} is off", hint="set another availability")
        for kept in self.table.orphans.values():
            if kept.name == name:
                raise ToolOrphaned(name, kept.source)
        raise UnknownTool(f"there is no tool {name!r}", hint=self.suggest(name))

    def suggest(self, name: str) -> str | None:
        """Return a hint that names capabilities with similar names; None if there are none."""
        import difflib  # needed only for unknown names

        close = difflib.get_close_matches(name, self.table.visible, n=3, cutoff=0.6)
        return f"did you mean {' or '.join(close)}?" if close else None

    def manifests(self) -> tuple[ToolManifest, ...]:
        """Return the manifests of visible tools, with their effective availability. Resolves nothing."""
        return self.table.manifests

    def names(self) -> list[str]:
        return list(self.table.visible)

    def capabilities(self) -> list[Capability]:
        """Return every contract. Resolves tools that are not resolved yet."""
        return [tool.capability for tool in self]

    def digests(self) -> dict[str, str]:
        """Return the contract digest of every capability, by name.

        Resolves tools that are not resolved yet.
        """
        return {tool.name: tool.digest for tool in self}

    def orphans(self) -> dict[str, ToolStateEntry]:
        """Return the known tools that no source offers now, by id."""
        return dict(self.table.orphans)

    def __contains__(self, name: object) -> bool:
        return name in self.table.visible

    def __iter__(self) -> Iterator[RegisteredTool]:
        bindings = [entry.binding for entry in self.table.visible.values()]
        return iter([self._tool_of(binding) for binding in bindings if binding is not None])

    def __len__(self) -> int:
        return len(self.table.visible)

    # State

    def export_state(self) -> ToolState:
        """Return the settings of every known tool, including orphans."""
        with self._lock:
            table = self.table
            return ToolState(generation=self.generation, tools=dict(table.state), found=table.found)

    def apply_state(self, state: ToolState) -> int:
        """Apply a state that is based on the current generation; return the new generation."""
        with self._lock:
            if state.generation != self.generation:
                raise GenerationMismatch(expected=state.generation, actual=self.generation)
            if unknown := sorted(set(state.tools) - set(self.table.entries)):
                raise UnknownTool(
                    f"there is no tool with the id {unknown[0][:80]!r}", hint="nothing was changed"
                )
            return self._commit(self.table.with_state(state))

    def restore_state(self, state: ToolState) -> None:
        """Adopt a stored state and its generation. A tool that no source offers now becomes an orphan."""
        with self._lock:
            self.table = self.table.with_state(state)
            self.generation = state.generation

    def set_availability(self, names: Sequence[str], availability: ToolAvailability | None) -> int:
        """Override the availability of these tools, all or none; `None` clears it. Returns the generation."""
        with self._lock:
            return self.apply_state(self.export_state().with_availability(names, availability))

    def set_members(self, names: Sequence[str], member: bool) -> int:
        """Add these tools to the catalog or remove them, all or none. Return the generation."""
        with self._lock:
            return self.apply_state(self.export_state().with_members(names, member))

    # Copies

    def fork(self) -> ToolRegistry:
        """Return an independent copy with the same tools and generation."""
        twin = ToolRegistry()
        with self._lock:
            twin.table, twin.generation = self.table, self.generation
            twin._resolved = dict(self._resolved)
            twin.connected = self.connected
        return twin

    def compose_session_catalog(
        self, include_base_tools: bool, providers: Sequence[ToolProvider]
    ) -> ToolRegistry:
        """Return a registry for one session: these tools or none, overlaid by those of *providers*.

        A provider's tool replaces one with the same id or name, even if that is off or not in the catalog.
        """
        bindings = [
            binding
            for number, provider in enumerate(providers, start=1)
            for binding in bindings_of(f"{CONTEXT} provider {number}", provider)
        ]
        composed = self.fork() if include_base_tools else ToolRegistry()
        if include_base_tools:
            composed.generation = max(1, composed.generation)
        else:
            composed.table = ToolTable(found=self.table.found)
        if providers:
            composed._commit(composed.table.overlay(CONTEXT, bindings), bindings)
        return composed

    # Inside

    def _commit(self, table: ToolTable, bindings: Sequence[Binding] = ()) -> int:
        """Replace the table. The caller holds the lock."""
        self.generation += 1 + self.table.orphans_among(bindings)
        self.table = table
        self._resolved = {held: tool for held, tool in self._resolved.items() if table.holds(held)}
        return self.generation

    def _tool_of(self, binding: Binding) -> RegisteredTool:
        """Return the tool of a binding. If two threads resolve it concurrently, both get the first result."""
        if (known := self._resolved.get(binding)) is not None:
            return known
        tool = binding.resolve()
        with self._lock:
            if binding not in self._resolved and self.table.holds(binding):
                self._resolved[binding] = tool
                self.generation += not isinstance(binding.provider, StaticTools)
            return self._resolved.get(binding, tool)
