"""The tool registry: sources of tools, composed under unique ids and names.

Theory of operation
-------------------
A source (`upsert`) is a provider under a name. The registry lists it once, cheaply; a tool's contract and
handler are asked for when the tool is first needed. `generation` counts changes, so whoever derives something
from the tools can tell whether it is stale, and whoever changes them from an old reading is refused.

The tools are in a `ToolTable` that never changes; a change makes another and swaps it in under the lock.

Rules
-----
1. A change happens as a whole or not at all.
2. The generation rises by one with every upsert, removal and applied state, with every tool that is resolved
   for the first time, and with every orphan that is bound again. Restoring adopts the state's own, a fork
   keeps the same: what is cached by generation alone must be dropped when a state is restored.
3. Providers are called outside the lock: a slow one delays its own caller and nobody else.

Not here: what a session's model may use of all this (`catalog`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from standfast.errors import GenerationMismatch, InvalidArgument, ToolNameTaken, ToolOrphaned, UnknownTool
from standfast.model.capability import Capability, ToolAvailability, ToolManifest, ToolState, ToolStateEntry
from standfast.tools.provider import Binding, StaticTools, ToolProvider, bindings_of, resolve_binding
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.tool_table import ToolTable

REGISTERED: Final = "registered"
"""The source of tools that are registered one by one."""

CONTEXT: Final = "context"
"""The source of the tools that a session's context lays over the others."""


class ToolRegistry:
    """The tools that a sandbox, an agent or a session may call. Safe to use from any thread.

    `names`, `in`, `len`, iteration, `capabilities`, `digests` and `manifests` speak of the tools that are
    there for a caller: bound to a source, in the catalog, and not off. A registry is a `ToolProvider`, too.
    """

    def __init__(self, tools: Iterable[RegisteredTool] = ()) -> None:
        self._lock = threading.RLock()
        self._table = ToolTable()
        self._generation = 0
        self._resolved: dict[Binding, RegisteredTool] = {}
        if given := list(tools):
            self.upsert(REGISTERED, StaticTools(given))

    @property
    def generation(self) -> int:
        """How often the tools have changed; 0 of a registry that never had any."""
        return self._generation

    # Sources

    def register(self, tool: RegisteredTool) -> None:
        """Add one tool; a name that is taken is refused with both owners named."""
        bindings = bindings_of(REGISTERED, StaticTools([tool]))
        with self._lock:
            self._refuse_taken(tool)
            self._commit(self._table.extend(REGISTERED, bindings), bindings)

    def upsert(self, source: str, provider: ToolProvider) -> int:
        """Add a source, or list it anew: what it has no more becomes an orphan. Returns the generation."""
        if not isinstance(source, str) or not source:
            raise InvalidArgument("a tool source needs a name")
        bindings = bindings_of(source, provider)
        with self._lock:
            return self._commit(self._table.rebind(source, bindings), bindings)

    def remove(self, source: str) -> int:
        """Take a source away; returns the generation. Its tools are orphans until they are listed again."""
        with self._lock:
            if source not in self._table.sources:
                known = ", ".join(self._table.sources)
                raise InvalidArgument(
                    f"there is no tool source {source!r}", hint=f"there are {known}" if known else None
                )
            return self._commit(self._table.remove(source))

    def sources(self) -> list[str]:
        """The names of the sources, in the order they came."""
        return list(self._table.sources)

    # Tools

    def get(self, name: str) -> RegisteredTool | None:
        """The tool of this name, made whole by its source if need be; `None` if it is not there."""
        entry = self._table.find(name)
        if entry is None or entry.binding is None or not entry.visible:
            return None
        return self._tool_of(entry.binding)

    def asks_source(self, name: str | None = None) -> bool:
        """Whether `get(name)`, or for some name `get`, asks a source that may block."""
        if not self._table.asks_sources or name is None:
            return self._table.asks_sources
        entry = self._table.visible.get(name)
        binding = None if entry is None else entry.binding
        return binding is not None and binding not in self._resolved

    def resolve(self, name: str) -> RegisteredTool | None:
        """The same, as providers call it."""
        return self.get(name)

    def require(self, name: str) -> RegisteredTool:
        """The tool of this name, or an error that says why there is none."""
        if (tool := self.get(name)) is None:
            raise self._why_not(name)
        return tool

    def suggest(self, name: str) -> str | None:
        """A sentence that names the closest capabilities, if any is close."""
        import difflib  # only mistakes need it

        close = difflib.get_close_matches(name, self._table.visible, n=3, cutoff=0.6)
        return f"did you mean {' or '.join(close)}?" if close else None

    def manifests(self) -> tuple[ToolManifest, ...]:
        """What can be called, by name, each under the availability that holds. Resolves nothing."""
        return self._table.manifests

    def names(self) -> list[str]:
        return list(self._table.visible)

    def capabilities(self) -> list[Capability]:
        """Every contract. Resolves what has not been."""
        return [tool.capability for tool in self]

    def digests(self) -> dict[str, str]:
        """Name → contract digest of every capability. Resolves what has not been."""
        return {tool.name: tool.digest for tool in self}

    def orphans(self) -> dict[str, ToolStateEntry]:
        """The tools by id that are known, and that no source offers now."""
        return dict(self._table.orphans)

    def __contains__(self, name: object) -> bool:
        entry = self._table.find(name) if isinstance(name, str) else None
        return entry is not None and entry.visible

    def __iter__(self) -> Iterator[RegisteredTool]:
        bindings = [entry.binding for entry in self._table.visible.values()]
        return iter([self._tool_of(binding) for binding in bindings if binding is not None])

    def __len__(self) -> int:
        return len(self._table.visible)

    # State

    @property
    def settings(self) -> object:
        """The same object as long as nothing has changed but which tools are resolved."""
        return self._table

    @property
    def found(self) -> frozenset[str]:
        """The names of the tools that the model has found by searching."""
        return frozenset(self._table.found)

    def export_state(self) -> ToolState:
        """What is known about every tool, orphans among them."""
        with self._lock:
            table = self._table
            return ToolState(generation=self._generation, tools=dict(table.state), found=table.found)

    def apply_state(self, state: ToolState) -> int:
        """Take over a changed state of this very generation; returns the new one."""
        with self._lock:
            if state.generation != self._generation:
                raise GenerationMismatch(expected=state.generation, actual=self._generation)
            if unknown := sorted(set(state.tools) - set(self._table.entries)):
                raise UnknownTool(
                    f"there is no tool with the id {unknown[0][:80]!r}", hint="nothing was changed"
                )
            return self._commit(self._table.with_state(state))

    def restore_state(self, state: ToolState) -> None:
        """Go on from a stored state and its generation. What no source offers now becomes an orphan."""
        with self._lock:
            self._table = self._table.with_state(state)
            self._generation = state.generation

    def set_availability(self, names: Sequence[str], availability: ToolAvailability | None) -> int:
        """Override the availability of these tools, all or none; `None` clears it. Returns the generation."""
        with self._lock:
            return self.apply_state(self.export_state().with_availability(names, availability))

    def set_members(self, names: Sequence[str], member: bool) -> int:
        """Put these tools into the catalog or take them out, all or none. Returns the generation."""
        with self._lock:
            return self.apply_state(self.export_state().with_members(names, member))

    # Copies

    def fork(self) -> ToolRegistry:
        """The same tools at the same generation; from now on neither sees the other's changes."""
        twin = ToolRegistry()
        with self._lock:
            twin._table, twin._generation = self._table, self._generation
            twin._resolved = dict(self._resolved)
        return twin

    def compose_session_catalog(
        self, include_base_tools: bool, providers: Sequence[ToolProvider]
    ) -> ToolRegistry:
        """A registry for one session: these tools or none, under those of the context's *providers*.

        A context's tool covers one with its id or name, also one that is off here or out of the catalog.
        """
        bindings = [
            binding
            for number, provider in enumerate(providers, start=1)
            for binding in bindings_of(f"{CONTEXT} provider {number}", provider)
        ]
        composed = self.fork() if include_base_tools else ToolRegistry()
        if include_base_tools:
            composed._generation = max(1, composed._generation)
        else:
            composed._table = ToolTable(found=self._table.found)
        if providers:
            composed._commit(composed._table.overlay(CONTEXT, bindings), bindings)
        return composed

    # Inside

    def _commit(self, table: ToolTable, bindings: Sequence[Binding] = ()) -> int:
        """Swap a table in. The caller holds the lock."""
        self._generation += 1 + self._table.orphans_among(bindings)
        self._table = table
        self._resolved = {held: tool for held, tool in self._resolved.items() if table.holds(held)}
        return self._generation

    def _tool_of(self, binding: Binding) -> RegisteredTool:
        """The tool behind a binding. Of two threads that resolve it at once, both get the first one's."""
        if (known := self._resolved.get(binding)) is not None:
            return known
        tool = resolve_binding(binding)
        if isinstance(binding.provider, StaticTools):
            return tool
        with self._lock:
            if binding not in self._resolved and self._table.holds(binding):
                self._resolved[binding] = tool
                self._generation += 1
            return self._resolved.get(binding, tool)

    def _refuse_taken(self, tool: RegisteredTool) -> None:
        """Tools that were registered one by one name their owners; all others name their sources."""
        entry = self._table.find(tool.name)
        if entry is None or entry.binding is None or entry.kept.source != REGISTERED:
            return
        raise ToolNameTaken(tool.name, self._tool_of(entry.binding).owner, tool.owner)

    def _why_not(self, name: str) -> UnknownTool:
        entry = self._table.find(name)
        if entry is not None and not entry.kept.member:
            return UnknownTool(
                f"the tool {name!r} is not in the catalog", hint="it was taken out; put it back"
            )
        if entry is not None:
            return UnknownTool(f"the tool {name!r} is off", hint="give it another availability")
        for kept in self._table.orphans.values():
            if kept.name == name:
                return ToolOrphaned(name, kept.source)
        return UnknownTool(f"there is no tool {name!r}", hint=self.suggest(name))
