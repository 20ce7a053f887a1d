"""A session's plugins, tools and system prompt.

Theory of operation
-------------------
Plugins add tools to the session's registry. The host may set an overlay on top of it. The catalog, which
lists the tools that the model sees, is built from both. Catalog and preamble are cached under a key made of
everything they depend on; the rendered prompt is cached the same way, for all sessions of the agent. All of
it can be dropped at any time and rebuilt from the agent, the host's settings and the stored state.

Rules
-----
1. A change is composed completely before it takes effect, so a change that fails has no effect.
2. Setting the value that is already set changes nothing, not even a revision.
3. The catalog is built without holding a lock; building it may resolve tools, which changes its own key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from standfast.durable.effects import KeptState
from standfast.errors import UnknownTool
from standfast.model.capability import SessionToolAccess, ToolState
from standfast.model.plugin_state import (
    PluginSessionSnapshot,
    PluginSnapshotEntry,
    ProtocolTurnOptions,
    SessionState,
)
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot, layered, rendered
from standfast.model.session import SessionPolicy
from standfast.plugins.contexts import ToolCatalogContext
from standfast.plugins.plugin_states import revision_of
from standfast.plugins.protocol import ProtocolBuildInput, ProtocolRuntimeContext
from standfast.plugins.session import PluginSession
from standfast.plugins.stored_states import ExecutionMemory, state_record
from standfast.plugins.turn_protocol import CodeFunctions, TurnDriverPreamble
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import (
    StaticTools,
    ToolCatalog,
    ToolCatalogContribution,
    ToolProvider,
    ToolRegistry,
)

T = TypeVar("T")

MAX_CATALOGS: Final = 8
MAX_PROMPTS: Final = 64

NamedLayers = tuple[tuple[str, PromptLayer], ...]
"""The layers of a prompt, each with the name of its author."""
CatalogKey = tuple[bool, int, int, int]
"""Whether base tools are included, overlay revision, registry generation, plugins' fingerprint."""


class Overlay(msgspec.Struct, frozen=True):
    """The tools and prompt contributions that the host has set on top of the session's own."""

    providers: tuple[ToolProvider, ...] = ()
    contributions: tuple[PromptContribution, ...] = ()
    include_base_tools: bool = True

    def is_same(self, other: Overlay) -> bool:
        """Return whether contributions and flag are equal and the providers are the same objects."""
        return (
            self.include_base_tools == other.include_base_tools
            and self.contributions == other.contributions
            and len(self.providers) == len(other.providers)
            and all(mine is theirs for mine, theirs in zip(self.providers, other.providers, strict=True))
        )


NO_OVERLAY: Final = Overlay()
_NO_CONTRIBUTION: Final = ToolCatalogContribution()
_ALL_TOOLS: Final = SessionToolAccess()


class CatalogArtifact(msgspec.Struct, frozen=True):
    """A catalog and the protocol's preamble for it."""

    catalog: ToolCatalog
    preamble: TurnDriverPreamble


class ComposedPrompt(msgspec.Struct, frozen=True):
    """The prompt of a session under one policy and overlay, without what plugins and single turns add.

    `layers` are lowest first, each with the name of its author; `contributions` are those of all layers.
    """

    policy: SessionPolicy
    overlay: Overlay
    base: tuple[PromptLayer, ...]
    layers: NamedLayers
    contributions: tuple[PromptContribution, ...]


class SessionContext:
    """The catalog, prompt and stored state of one session. Used on the runtime's loop."""

    __slots__ = (
        "_asks_plugins", "_catalogs", "_executor", "_latest", "_layers", "_prompt", "_prompts", "_stored",
        "execution", "executor_id", "options", "overlay", "overlay_revision", "plugins", "policy", "state_id",
        "tool_registry",
    )  # fmt: skip

    def __init__(
        self,
        plugins: PluginSession,
        policy: SessionPolicy,
        layers: Sequence[PromptLayer],
        state_id: str | None,
    ) -> None:
        self.plugins = plugins
        self.policy = policy
        self.state_id = state_id
        self.overlay = NO_OVERLAY
        self.overlay_revision = 0
        self.tool_registry = plugins.tool_registry
        self.options = ProtocolRuntimeContext(getattr(plugins.protocol_session, "turn_options_version", 1))
        self._layers = tuple(layers)
        self._catalogs: dict[CatalogKey, CatalogArtifact] = {}
        self._latest: tuple[tuple[object, ...], CatalogArtifact] | None = None
        """The catalog that was last returned, with the values its key is made of."""
        self._prompt: ComposedPrompt | None = None
        self._prompts = plugins.host.prompts
        contributions = plugins.contributions
        self._executor = plugins.code_executor
        self.executor_id = contributions.owner_of("code_executor")
        """The id of the plugin that runs cells; empty if there is none."""
        self.execution = ExecutionMemory(self._executor, self.executor_id)
        given = plugins.given_tools
        self._stored = _StoredState(PluginSessionSnapshot(), given, given, (None, {}), None)
        driver = contributions.places[contributions.owner_of("protocol_driver")]
        asked = [driver, *(hook.place for hook in contributions.hooks["tool_catalog"])]
        self._asks_plugins = any(place.stalls is not None for place in asked)
        """Whether building the catalog calls functions of third-party plugins."""

    async def set_context_overlay(self, overlay: Overlay) -> bool:
        """Set the session's overlay; return False if an equal one is already set."""
        if self.overlay.is_same(overlay):
            return False
        self.tool_registry = await self._composed(overlay)
        self.overlay = overlay
        self.overlay_revision += 1
        self._forget_catalogs()
        return True

    def set_catalog_overlay(self, overlay: ToolCatalogContribution) -> bool:
        """Set the overlay that is applied after the plugins' changes; return False if it is already set."""
        if self.plugins.tool_catalog_overlay == overlay:
            return False
        self.plugins.tool_catalog_overlay = overlay
        self.overlay_revision += 1
        self._forget_catalogs()
        return True

    async def refresh_tool_catalog(self) -> None:
        """Apply the changes made to the session's own tools since the overlay was set."""
        if self.overlay is not NO_OVERLAY:
            self.tool_registry = await self._composed(self.overlay)
        self._forget_catalogs()

    async def _composed(self, overlay: Overlay) -> ToolRegistry:
        base, providers = overlay.include_base_tools, overlay.providers
        registry = self.plugins.tool_registry
        return await self.ask_sources(lambda: registry.compose_session_catalog(base, providers), *providers)

    async def ask_sources(self, work: Callable[[], T], *providers: ToolProvider) -> T:
        """Call *work*, which lists *providers*, on a thread where a blocking one delays no other session."""
        if all(isinstance(one, StaticTools) for one in providers):
            return work()
        return await self.plugins.host.aside(work, self.plugins.step, asks_sources=True)

    def _forget_catalogs(self) -> None:
        self._catalogs.clear()
        self._latest = None

    def invalidate_runtime_caches(self) -> None:
        """Drop the cached catalogs and prompts."""
        self._forget_catalogs()
        self._prompts.clear()

    def catalog_key(self) -> CatalogKey:
        return (
            self.overlay.include_base_tools,
            self.overlay_revision,
            self.tool_registry.generation,
            self.plugins.snapshot_revision_fingerprint(),
        )

    @property
    def is_static(self) -> bool:
        """Whether catalog and tools can be determined without calling a plugin or a tool source."""
        registry = self.tool_registry
        return not self._asks_plugins and registry is self.plugins.tool_registry and registry.is_static

    async def prepare(self, name: str | None = None) -> None:
        """Build the catalog and resolve the tool *name*, on another thread if that may block.

        Errors of plugins and tool sources propagate. Afterwards `artifact` and `find_tool` call neither.
        """
        if self.is_static:
            return
        plugins = self.plugins
        if plugins.tool_registry.outdated():
            await plugins.host.aside(plugins.tool_registry.refresh, plugins.step, asks_sources=True)
            await self.refresh_tool_catalog()
        registry = self.tool_registry
        if not self._asks_plugins and not registry.asks_source():
            return
        unresolved = name is not None and registry.asks_source(name)
        if not unresolved and self.catalog_key() in self._catalogs:
            return

        def ask() -> None:
            if unresolved and name is not None:
                registry.get(name)
            self.artifact()

        await plugins.host.aside(ask, plugins.step, asks_sources=registry.asks_source())

    def artifact(self) -> CatalogArtifact:
        """Return the current catalog and its preamble."""
        registry, latest = self.tool_registry, self._latest
        at = (registry, registry.generation, self.overlay_revision, *map(revision_of, self.plugins.plugins))
        if latest is not None and latest[0] == at:
            return latest[1]
        found = self._catalogs.get(self.catalog_key())
        if found is None:
            found = self._shared() or self._build()
            self._catalogs[self.catalog_key()] = found
            while len(self._catalogs) > MAX_CATALOGS:
                del self._catalogs[next(iter(self._catalogs))]
        self._latest = (at, found)
        return found

    def _shared(self) -> CatalogArtifact | None:
        """Return the catalog that sessions with the same tools share, if this is such a session."""
        plugins, host, settings = self.plugins, self.plugins.host, self.tool_registry.table
        if (
            not getattr(plugins.protocol_driver, "shares_preambles", False)
            or self.overlay is not NO_OVERLAY
            or settings is not host.tools.table
            or plugins.contributions.hooks["tool_catalog"]
            or plugins.tool_catalog_overlay != _NO_CONTRIBUTION
            or plugins.tool_access != _ALL_TOOLS
        ):
            return None
        if host.shared_artifact[0] is not settings:
            host.shared_artifact = (settings, self._build())
        shared: CatalogArtifact = host.shared_artifact[1]
        return shared

    def _build(self) -> CatalogArtifact:
        plugins, registry = self.plugins, self.tool_registry
        catalog = plugins.resolve_tool_catalog(
            ToolCatalogContext(
                session_id=plugins.session_id,
                tools=registry.manifests(),
                tool_access=plugins.tool_access,
                extensions=plugins.extensions,
                subagent=plugins.subagent_context,
                found=frozenset(registry.table.found),
            )
        )
        preamble = plugins.build_preamble(
            ProtocolBuildInput(
                tool_catalog=catalog,
                resolve=registry.require,
                extensions=plugins.extensions,
                triggers=plugins.triggers,
            )
        )
        return CatalogArtifact(catalog, preamble)

    def code_functions(self) -> CodeFunctions:
        """Return the functions that the model's code may call now. A tool search in mid-turn adds to them."""
        assert self._executor is not None
        return self._executor.functions(self.artifact().catalog, self.tool_registry.require)

    def tool_catalog(self) -> list[dict[str, Any]]:
        """Return the catalog as JSON."""
        return self.artifact().catalog.project()

    def find_tool(self, name: str) -> RegisteredTool:
        """Return a tool that the model may call; raise `UnknownTool` if it may not."""
        catalog, registry = self.artifact().catalog, self.tool_registry
        tool = registry.get(name) or registry.require(name)  # `require` raises the reason
        if catalog.may_call(name):
            return tool
        hint = "find it first: search_tools(query) makes the tools it finds callable"
        raise UnknownTool(
            f"tool {name!r} is not offered in this session", hint=None if catalog.find(name) is None else hint
        )

    def called_tool(self, name: str) -> RegisteredTool:
        """Return the tool of a call: a tool of the session, or a function that only its code can call."""
        own = None if self._executor is None else self.code_functions().own(name)
        return own or self.tool_registry.require(name)

    def composed_prompt(self) -> ComposedPrompt:
        """Return the session's prompt; sessions of an agent share it while they have no overlay."""
        own, host = self._prompt, self.plugins.host
        if own is not None and own.policy is self.policy and own.overlay is self.overlay:
            return own
        own = host.shared_prompt if self.overlay is NO_OVERLAY else None
        if own is None or own.policy is not self.policy or own.base != self._layers:
            words = self.policy.instructions
            said = (PromptContribution(content=words, slot=PromptSlot.INTRO),) if words else ()
            layers: NamedLayers = (
                *zip(("runtime", "agent"), self._layers, strict=True),
                ("instructions", PromptLayer(contributions=said)),
                ("host", PromptLayer(contributions=self.overlay.contributions)),
            )
            contributions = tuple(layered([layer for _, layer in layers]))
            own = ComposedPrompt(self.policy, self.overlay, self._layers, layers, contributions)
            if self.overlay is NO_OVERLAY:
                host.shared_prompt = own
        self._prompt = own
        return own

    def renderer(
        self, prompt: ComposedPrompt, turn: PromptLayer | None, preamble: Sequence[PromptContribution]
    ) -> Callable[[Sequence[PromptContribution]], str]:
        """Return a function that renders the prompt of one turn with the contributions of plugins."""
        own = prompt.contributions
        if turn is not None:
            own = tuple(layered([*(layer for _, layer in prompt.layers), turn]))

        def render(added: Sequence[PromptContribution]) -> str:
            contributions = (*own, *preamble, *added) if preamble or added else own
            found = self._prompts.get(contributions)
            if found is None:
                found = self._prompts[contributions] = rendered(contributions)
                while len(self._prompts) > MAX_PROMPTS:
                    del self._prompts[next(iter(self._prompts))]
            return found

        return render

    def adopt(self, state: SessionState, frame: str) -> None:
        """Adopt the stored state of the session in *frame*."""
        options = self.options
        options.session, options.frames = state.protocol_options, dict(state.frame_options)
        options.frame = frame
        self._note_stored(state.plugins, state.execution)

    def _note_stored(self, plugins: PluginSessionSnapshot, execution: PluginSnapshotEntry | None) -> None:
        tools, options = self.plugins.tool_registry.table, (self.options.session, self.options.frames)
        self._stored = _StoredState(self.plugins.filled_up(plugins), tools, tools, options, execution)

    def changed_tools(self) -> ToolState | None:
        """Return the tools' state if it is not journaled yet."""
        settings = self.plugins.tool_registry.table
        if settings is self._stored.journaled:
            return None
        self._stored.journaled = settings
        return self.plugins.tool_registry.export_state()

    async def kept(self, *, tolerant: bool) -> KeptState:
        """Return the state of plugins, tools and options, unless the store already has it."""
        if self.is_stored():
            return KeptState()
        await self.plugins.take_states()
        snapshot, blobs = self.plugins.snapshot(tolerant=tolerant)
        execution = self.execution.changed()
        record = state_record(self._state(snapshot))
        return KeptState(record, blobs if execution is None else (*blobs, *execution[1]))

    def state(self) -> SessionState:
        """Return the current state."""
        snapshot, _ = self.plugins.snapshot(tolerant=True)
        self.execution.changed()
        return self._state(snapshot)

    def _state(self, snapshot: PluginSessionSnapshot) -> SessionState:
        kept = {
            name: entry
            for name, entry in snapshot.plugins.items()
            if entry.meta.revision or entry.meta.state is not None or entry.artifacts
        }  # except plugins that have never had a state
        registry = self.plugins.tool_registry
        return SessionState(
            plugins=PluginSessionSnapshot(plugins=kept),
            tools=None if registry.table is self.plugins.given_tools else registry.export_state(),
            protocol_options=self.options.session,
            frame_options=self.options.frames,
            execution=self.execution.entry,
        )

    def stored(self, state_id: str | None) -> None:
        """Note that the current state is in the store, under this id."""
        self.state_id = state_id
        self._note_stored(self.plugins.written(), self.execution.entry)

    def is_stored(self) -> bool:
        """Return whether the store has the current state."""
        stored = self._stored
        return (
            self.plugins.tool_registry.table is stored.tools
            and self.plugins.snapshot_is_current(stored.plugins)
            and (self.options.session, self.options.frames) == stored.options
            and self.execution.is_stored(stored.execution)
        )


class _StoredState(msgspec.Struct):
    """The stored state, in a form that is cheap to compare with the current one."""

    plugins: PluginSessionSnapshot
    tools: object
    journaled: object
    options: tuple[ProtocolTurnOptions | None, dict[str, ProtocolTurnOptions]]
    execution: PluginSnapshotEntry | None


__all__ = ["NO_OVERLAY", "CatalogArtifact", "Overlay", "SessionContext"]
