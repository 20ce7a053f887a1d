"""What a session's model has besides its history: plugins, tools and the system prompt.

Theory of operation
-------------------
Plugins bring tools into a registry of the session. Over it lies an overlay that the host may set, and of both
a catalog is made: what the model sees. Catalog and preamble are kept until something they are made of
changes; the key says what that is. The rendered prompt is kept the same way. All of it can be dropped at any
time: it is made again of the agent, of what the host has set, and of the state that the store has.

Rules
-----
1. A change composes first and takes effect only if that succeeds.
2. Setting what is set already changes nothing, not even a revision.
3. The catalog is built while nothing is locked; building it may resolve tools, which changes its own key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from standfast.durable.effects import Kept
from standfast.errors import UnknownTool
from standfast.model.plugin_state import (
    PluginSessionSnapshot,
    PluginSnapshotEntry,
    ProtocolTurnOptions,
    SessionState,
    encode_state,
)
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot, layered, rendered
from standfast.model.session_policy import SessionPolicy
from standfast.model.tool_access import SessionToolAccess
from standfast.model.tool_state import ToolState
from standfast.plugins.contexts import ToolCatalogContext
from standfast.plugins.execution_memory import ExecutionMemory
from standfast.plugins.protocol import (
    CodeFunctions,
    ProtocolBuildInput,
    TurnDriverPreamble,
    check_turn_options,
)
from standfast.plugins.session import PluginSession
from standfast.ports.session_store import Blob, StateRecord
from standfast.tools.catalog import ToolCatalog, ToolCatalogContribution
from standfast.tools.provider import StaticTools, ToolProvider
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolRegistry

T = TypeVar("T")

MAX_CATALOGS: Final = 8
MAX_PROMPTS: Final = 16

CatalogKey = tuple[bool, int, int, int]
"""Base tools or not, revision of the overlay, generation of the registry, revision of the plugins."""


class Overlay(msgspec.Struct, frozen=True):
    """What the host has laid over the session's own tools and prompt."""

    providers: tuple[ToolProvider, ...] = ()
    contributions: tuple[PromptContribution, ...] = ()
    include_base_tools: bool = True

    def is_same(self, other: Overlay) -> bool:
        """Equal words and flag, and the very same providers in the same order."""
        return (
            self.include_base_tools == other.include_base_tools
            and self.contributions == other.contributions
            and len(self.providers) == len(other.providers)
            and all(mine is theirs for mine, theirs in zip(self.providers, other.providers, strict=True))
        )


NO_OVERLAY: Final = Overlay()
_AS_IT_IS: Final = ToolCatalogContribution()
_ALL_TOOLS: Final = SessionToolAccess()


class CatalogArtifact(msgspec.Struct, frozen=True):
    """A catalog, and what the protocol makes of it."""

    catalog: ToolCatalog
    preamble: TurnDriverPreamble


class SessionContext:
    """Used on the runtime's loop."""

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
        self.options: ProtocolTurnOptions | None = None
        self.frame_options: dict[str, ProtocolTurnOptions] = {}
        self.frame = ""
        self._layers = tuple(layers)
        self._catalogs: OrderedDict[CatalogKey, CatalogArtifact] = OrderedDict()
        self._words: tuple[SessionPolicy | None, Overlay, tuple[PromptContribution, ...]]
        self._words = (None, NO_OVERLAY, ())
        self._prompts: OrderedDict[tuple[PromptContribution, ...], str] = OrderedDict()
        given = plugins.given_tools
        self._kept = _Kept(PluginSessionSnapshot(), given, given, (None, {}), None)
        self._executor = plugins.code_executor()
        self.executor_id = plugins.owner_of("code_executor")
        """The plugin that runs cells, if one does."""
        self._execution = ExecutionMemory(self._executor, self.executor_id)
        places, hooks = plugins.contributions.places, plugins.contributions.hooks["tool_catalog"]
        asked = [places[plugins.owner_of("protocol_driver")], *(hook.place for hook in hooks)]
        self._asks_plugins = any(place.stalls is not None for place in asked)
        """Whether making the catalog calls functions of plugins that are not of this package."""

    # The overlay

    async def set_context_overlay(self, overlay: Overlay) -> bool:
        """Lay *overlay* over the session; false if it lies there already."""
        if self.overlay.is_same(overlay):
            return False
        self.tool_registry = await self._composed(overlay)
        self.overlay = overlay
        self.overlay_revision += 1
        self._catalogs.clear()
        return True

    async def refresh_tool_catalog(self) -> None:
        """See what has changed in the session's own tools since the overlay was laid over them."""
        if self.overlay is not NO_OVERLAY:
            self.tool_registry = await self._composed(self.overlay)
        self._catalogs.clear()

    async def _composed(self, overlay: Overlay) -> ToolRegistry:
        base, providers = overlay.include_base_tools, overlay.providers
        registry = self.plugins.tool_registry
        return await self.ask_sources(lambda: registry.compose_session_catalog(base, providers), *providers)

    async def ask_sources(self, work: Callable[[], T], *providers: ToolProvider) -> T:
        """Do *work*, which lists *providers*, where one that blocks delays no other session."""
        if all(isinstance(one, StaticTools) for one in providers):
            return work()
        return await self.plugins.host.aside(work, self.plugins.step, asks_sources=True)

    def invalidate_runtime_caches(self) -> None:
        """Make catalog and prompt anew when they are next wanted."""
        self._catalogs.clear()
        self._prompts.clear()

    # The catalog

    def catalog_key(self) -> CatalogKey:
        return (
            self.overlay.include_base_tools,
            self.overlay_revision,
            self.tool_registry.generation,
            self.plugins.snapshot_revision_fingerprint(),
        )

    async def prepare(self, name: str | None = None) -> None:
        """Build the catalog and resolve the tool *name*, away from the runtime's loop if that may block.

        What plugins and sources of tools raise is raised here. `artifact` and `find_tool` then ask nobody.
        """
        registry, plugins = self.tool_registry, self.plugins
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
        """The catalog of now, and its preamble."""
        found = self._catalogs.get(self.catalog_key())
        if found is None:
            found = self._shared() if self._is_plain() else self._build()
            self._catalogs[self.catalog_key()] = found
            while len(self._catalogs) > MAX_CATALOGS:
                self._catalogs.popitem(last=False)
        return found

    def _is_plain(self) -> bool:
        """Whether every session of the agent with the same tools has the same catalog."""
        plugins = self.plugins
        return (
            getattr(plugins.protocol_driver(), "shares_preambles", False)
            and self.overlay is NO_OVERLAY
            and self.tool_registry.settings is plugins.host.tools.settings
            and not plugins.contributions.hooks["tool_catalog"]
            and plugins.tool_catalog_overlay == _AS_IT_IS
            and plugins.tool_access == _ALL_TOOLS
        )

    def _shared(self) -> CatalogArtifact:
        """The catalog that another session has made of the very same tools, or one for all of them."""
        host = self.plugins.host
        settings, artifact = host.shared_artifact
        if artifact is None or settings is not self.tool_registry.settings:
            artifact = self._build()
            host.shared_artifact = (self.tool_registry.settings, artifact)
        made: CatalogArtifact = artifact
        return made

    def code_functions(self) -> CodeFunctions:
        """What the code of the session's model may call now: a search in the middle of a turn adds to it."""
        assert self._executor is not None
        return self._executor.functions(self.artifact().catalog, self.tool_registry.require)

    def tool_catalog(self) -> list[dict[str, Any]]:
        """The catalog as JSON."""
        return self.artifact().catalog.project()

    def find_tool(self, name: str) -> RegisteredTool:
        """A tool that the model may call; `UnknownTool` says why it may not."""
        if self.artifact().catalog.may_call(name):
            return self.tool_registry.require(name)
        self.tool_registry.require(name)  # says it better, if there is no such tool at all
        listed = self.artifact().catalog.find(name) is not None
        raise UnknownTool(
            f"tool {name!r} is not offered in this session",
            hint="find it first: search_tools(query) makes what it finds callable" if listed else None,
        )

    def called_tool(self, name: str) -> RegisteredTool:
        """The tool of a call that was made: one of the session, or one that only its code has."""
        own = None if self._executor is None else self.code_functions().own(name)
        return own or self.tool_registry.require(name)

    def _build(self) -> CatalogArtifact:
        plugins, registry = self.plugins, self.tool_registry
        catalog = plugins.resolve_tool_catalog(
            ToolCatalogContext(
                session_id=plugins.session_id,
                tools=registry.manifests(),
                tool_access=plugins.tool_access,
                extensions=plugins.extensions,
                subagent=plugins.subagent_context,
                found=registry.found,
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

    # The prompt

    def renderer(self, turn: PromptLayer | None) -> Callable[[Sequence[PromptContribution]], str]:
        """Renders the prompt of one turn, with what plugins add to it."""
        own = self._own_words() if turn is None else tuple(layered([*self._own_layers(), turn]))
        preamble = self.artifact().preamble.prompt

        def render(added: Sequence[PromptContribution]) -> str:
            return self._rendered((*own, *preamble, *added) if preamble or added else own)

        return render

    def _own_words(self) -> tuple[PromptContribution, ...]:
        """What all layers but the turn's say; made anew when one of them is another."""
        policy, overlay, words = self._words
        if policy is not self.policy or overlay is not self.overlay:
            words = tuple(layered(self._own_layers()))
            self._words = (self.policy, self.overlay, words)
        return words

    def _own_layers(self) -> list[PromptLayer]:
        return [*self._layers, self._policy_layer(), PromptLayer(contributions=self.overlay.contributions)]

    def _policy_layer(self) -> PromptLayer:
        words = self.policy.instructions
        if not words:
            return PromptLayer()
        return PromptLayer(contributions=(PromptContribution(content=words, slot=PromptSlot.INTRO),))

    def _rendered(self, contributions: tuple[PromptContribution, ...]) -> str:
        found = self._prompts.get(contributions)
        if found is None:
            found = self._prompts[contributions] = rendered(contributions)
            while len(self._prompts) > MAX_PROMPTS:
                self._prompts.popitem(last=False)
        return found

    # The protocol's options

    def protocol_turn_options(self) -> ProtocolTurnOptions | None:
        return self.frame_options.get(self.frame, self.options)

    def check_protocol_turn_options(self) -> None:
        """Raise `ProtocolError` if the session has kept options that its protocol does not read."""
        kept = (*self.frame_options.values(), *(() if self.options is None else (self.options,)))
        for options in kept:
            self._check_options(options)

    def _check_options(self, options: ProtocolTurnOptions) -> None:
        check_turn_options(options, getattr(self.plugins.protocol_session(), "turn_options_version", 1))

    def set_protocol_turn_options(self, options: ProtocolTurnOptions) -> None:
        """For the session, and for its current frame."""
        self._check_options(options)
        self.options = options
        self.frame_options = {**self.frame_options, self.frame: options}

    def set_protocol_turn_options_all_frames(self, options: ProtocolTurnOptions) -> None:
        self._check_options(options)
        self.options = options
        self.frame_options = {}

    # What is kept

    def adopt(self, state: SessionState, frame: str) -> None:
        """Go on from what was kept."""
        self.options = state.protocol_options
        self.frame_options = dict(state.frame_options)
        self.frame = frame
        tools = self.plugins.tool_registry.settings
        self._kept = _Kept(
            plugins=self.plugins.filled_up(state.plugins),
            tools=tools,
            journaled=tools,
            options=(self.options, self.frame_options),
            execution=state.execution,
        )

    def restore_execution(self, entry: PluginSnapshotEntry | None, fetched: Mapping[str, bytes]) -> None:
        """Give the code executor what it remembers."""
        self._execution.restore(entry, fetched)

    def changed_execution(self) -> tuple[PluginSnapshotEntry, tuple[Blob, ...]] | None:
        """What the code executor remembers, if it is other than what was last asked for."""
        return None if self._executor is None else self._execution.changed()

    def changed_tools(self) -> ToolState | None:
        """The tools' state, if it is other than what was last written."""
        settings = self.plugins.tool_registry.settings
        if settings is self._kept.journaled:
            return None
        self._kept.journaled = settings
        return self.plugins.tool_registry.export_state()

    async def kept(self, tolerant: bool) -> Kept:
        """What the store does not have yet of plugins, tools and options."""
        if not self._has_changed():
            return Kept()
        await self.plugins.take_states()
        state, blobs = self._state(tolerant)
        entries = [*state.plugins.plugins.values(), *([state.execution] if state.execution else [])]
        digests = tuple(digest for entry in entries for digest in entry.artifacts.values())
        return Kept(StateRecord(body=encode_state(state), blobs=digests), blobs)

    def state(self) -> SessionState:
        """What there is to keep, as it stands."""
        return self._state(tolerant=True)[0]

    def _state(self, tolerant: bool) -> tuple[SessionState, tuple[Blob, ...]]:
        snapshot, blobs = self.plugins.snapshot(tolerant=tolerant)
        execution = self.changed_execution()
        if execution is not None:
            blobs = (*blobs, *execution[1])
        state = SessionState(
            plugins=_worth_keeping(snapshot),
            tools=self._tools_to_keep(),
            protocol_options=self.options,
            frame_options=self.frame_options,
            execution=self._execution.entry,
        )
        return state, blobs

    def stored(self, state_id: str | None) -> None:
        """What there was to keep is in the store, under this name."""
        self.state_id = state_id
        settings = self.plugins.tool_registry.settings
        self._kept = _Kept(
            self.plugins.filled_up(self.plugins.written()),
            settings,
            settings,
            (self.options, self.frame_options),
            self._execution.entry,
        )

    def is_stored(self) -> bool:
        """Whether the store has everything that there is to keep."""
        return not self._has_changed()

    def set_catalog_overlay(self, overlay: ToolCatalogContribution) -> bool:
        """Lay *overlay* over what plugins make of the catalog; false if it lies there already."""
        if self.plugins.tool_catalog_overlay == overlay:
            return False
        self.plugins.tool_catalog_overlay = overlay
        self.overlay_revision += 1
        self._catalogs.clear()
        return True

    def _has_changed(self) -> bool:
        kept = self._kept
        return (
            self.plugins.tool_registry.settings is not kept.tools
            or not self.plugins.snapshot_is_current(kept.plugins)
            or (self.options, self.frame_options) != kept.options
            or (self._executor is not None and self._executor.execution_state_dirty())
            or self._execution.entry is not kept.execution
        )

    def _tools_to_keep(self) -> ToolState | None:
        """The tools' state, if the session has decided anything about them, or has sources of its own."""
        registry = self.plugins.tool_registry
        return None if registry.settings is self.plugins.given_tools else registry.export_state()


class _Kept(msgspec.Struct):
    """What the store has, in a form that is cheap to compare with what there is."""

    plugins: PluginSessionSnapshot
    tools: object
    journaled: object
    options: tuple[ProtocolTurnOptions | None, dict[str, ProtocolTurnOptions]]
    execution: PluginSnapshotEntry | None


def _worth_keeping(snapshot: PluginSessionSnapshot) -> PluginSessionSnapshot:
    """Without the plugins that have never had anything to remember."""
    kept = {
        name: entry
        for name, entry in snapshot.plugins.items()
        if entry.meta.revision or entry.meta.state is not None or entry.artifacts
    }
    return PluginSessionSnapshot(plugins=kept)


def as_layer(given: PromptLayer | Sequence[PromptContribution | str] | str | None) -> PromptLayer:
    """A layer of the prompt in any of the forms that users have it in."""
    if isinstance(given, PromptLayer):
        return given
    given = (given,) if isinstance(given, str) else given or ()
    return PromptLayer(
        contributions=tuple(PromptContribution(content=one) if isinstance(one, str) else one for one in given)
    )


__all__ = ["NO_OVERLAY", "CatalogArtifact", "Overlay", "SessionContext", "as_layer"]
