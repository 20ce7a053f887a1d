"""Preparation of agents and sessions: their plugins, tools and prompts.

A session is built from its agent, the host's settings and the stored state. Rule: the result is the same in
every process, except for the settings that the host has made in this one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from standfast.errors import ProviderMismatch, StandfastError
from standfast.model import plugin_state
from standfast.model.limits import AGENT_TIMEOUT_MS
from standfast.model.session import SessionCharter, SessionHead, SessionPolicy, same_provider
from standfast.plugins.contexts import SessionConfigChanged, SessionHosts, SessionRestored, SubagentContext
from standfast.plugins.protocol import ProtocolSessionContext, ProtocolSessionMaterialization
from standfast.plugins.running import HookRunner, NoAnswer
from standfast.plugins.runtime_services import RuntimeServices
from standfast.plugins.session import FULL, PluginHost, PluginSession, SessionAuthority, SessionBuild
from standfast.plugins.session_context import NO_OVERLAY, Overlay, SessionContext
from standfast.plugins.stored_states import STATE, fetch_blobs, journaled_states, read_state
from standfast.ports.clock import Clock
from standfast.ports.model_provider import ModelProvider
from standfast.ports.session_store import JournalEntry, SessionStore
from standfast.runtime.agent_definition import AgentDefinition
from standfast.tools.dispatch import Dispatcher
from standfast.tools.loop_threads import at_home, homed
from standfast.tools.registry import NO_CATALOG_OVERLAY, ToolCatalogContribution, ToolProvider


class PreparedAgent(msgspec.Struct, frozen=True):
    """The objects that the sessions of one agent share."""

    agent: AgentDefinition[Any, Any]
    model: ModelProvider
    dispatcher: Dispatcher
    host: PluginHost
    policy: SessionPolicy

    async def close(self) -> None:
        self.dispatcher.close()
        for source, _ in self.agent.registry.connected.values():
            await source.close()
        await self.host.runner.spares.close()


def prepare_agent(
    agent: AgentDefinition[Any, Any], services: RuntimeServices, hosts_of: Callable[[str], SessionHosts]
) -> PreparedAgent:
    """Open the agent's model and create its dispatcher and plugin host."""
    given = agent.model
    model = services.models.named(given) if isinstance(given, str) else services.models.limited(given)
    dispatcher = Dispatcher(
        agent.registry,
        threads=services.threads,
        clock=services.clock,
        evaluate_rule=services.rules,
        default_timeout_ms=AGENT_TIMEOUT_MS,
        loops=services.loops,
        stalls=services.stalls,
    )
    dispatcher.home = services.home
    dispatcher.traced = services.tracer is not None
    host = PluginHost(
        [agent.protocol, *agent.plugins],
        agent.registry,
        storage_of=lambda plugin_id: DurablePluginStorage(
            services.store, services.clock, plugin_id, services.home
        ),
        report=services.report,
        runner=HookRunner(
            services.settings.hook_timeout_s,
            services.probe,
            watch=services.tracer,
            loops=services.loops,
            stalls=services.stalls,
        ),
        read_attachment=homed(services.home, services.store.blob),
        hosts_of=hosts_of,
    )
    return PreparedAgent(agent, model, dispatcher, host, agent.policy())


class DurablePluginStorage:
    """The `Shelf` of one plugin in the runtime's store, on whichever loop the plugin runs."""

    __slots__ = ("_clock", "_home", "_plugin_id", "_store")

    def __init__(
        self, store: SessionStore, clock: Clock, plugin_id: str, home: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._home = home
        self._store = store
        self._clock = clock
        self._plugin_id = plugin_id

    async def put(self, scope: str, key: str, body: bytes | None) -> None:
        now = self._clock.now_ms()
        await at_home(self._home, self._store.put_plugin_record, self._plugin_id, scope, key, body, now)

    async def get(self, scope: str, key: str) -> bytes | None:
        return await at_home(self._home, self._store.plugin_record, self._plugin_id, scope, key)

    async def list(self, scope: str) -> list[tuple[str, bytes]]:
        return await at_home(self._home, self._store.plugin_records, self._plugin_id, scope)


class SessionSetup(msgspec.Struct, frozen=True):
    """The host's settings for a session in this process, limited by the session's `charter`."""

    overlay: Overlay = NO_OVERLAY
    sources: Mapping[str, ToolProvider] = msgspec.field(default_factory=dict)
    authority: SessionAuthority = FULL
    parent_session_id: str | None = None
    policy: SessionPolicy | None = None
    charter: SessionCharter | None = None
    catalog: ToolCatalogContribution = NO_CATALOG_OVERLAY

    def under(self, charter: SessionCharter | None) -> SessionSetup:
        """Return the setup for a session with this charter."""
        if charter is None or charter == self.charter:
            return self
        given, subagent, parent = self.authority, None, charter.parent_session_id
        if charter.subagent and parent is not None:
            subagent = SubagentContext(parent_session_id=parent, depth=charter.depth, task=charter.task)
        authority = SessionAuthority(
            given.tool_access.within(charter.tool_access),
            given.subagent or subagent,
            given.plugin_options if given.plugin_options.plugins else charter.plugin_options,
        )
        return msgspec.structs.replace(
            self,
            authority=authority,
            parent_session_id=parent,
            policy=self.policy or charter.policy,
            charter=charter,
        )

    def of_fork(self) -> SessionSetup:
        """Return the setup of a fork, which has no parent and the default authority."""
        return SessionSetup(
            overlay=self.overlay, sources=self.sources, policy=self.policy, catalog=self.catalog
        )

    def with_source(self, name: str, provider: ToolProvider | None) -> SessionSetup:
        sources = {key: value for key, value in self.sources.items() if key != name}
        if provider is not None:
            sources[name] = provider
        return msgspec.structs.replace(self, sources=sources)


AS_GIVEN = SessionSetup()


def charter_of_fork(charter: SessionCharter | None) -> SessionCharter | None:
    """Return the charter of a fork, which keeps the policy but has no parent and all rights."""
    return None if charter is None or charter.policy is None else SessionCharter(policy=charter.policy)


async def materialize(
    services: RuntimeServices,
    prepared: PreparedAgent,
    setup: SessionSetup,
    head: SessionHead,
    journal: Sequence[JournalEntry] = (),
    forked: PluginSession | None = None,
) -> SessionContext:
    """Build the session at *head*, or in the middle of the turn of *journal*, with *forked* plugins."""
    state = await read_state(services.store, head)
    states = journaled_states(head, journal)
    execution = states.execution or state.execution
    fetched = await fetch_blobs(services.store, [*state.plugins.plugins.values(), *states.plugins.values()])
    if execution is not None:
        fetched |= await fetch_blobs(services.store, [execution], only=STATE)
    plugins = forked or await prepared.host.open_session(
        SessionBuild(
            session_id=head.session_id,
            parent_session_id=setup.parent_session_id,
            snapshot=state.plugins,
            fetched=fetched,
            tool_state=state.tools,
            overlay=setup.catalog,
            authority=setup.authority,
        )
    )
    policy = setup.policy or prepared.policy
    if not policy.model:
        policy = msgspec.structs.replace(policy, model=prepared.policy.model)
    require_same_provider(head, policy.model)
    context = SessionContext(plugins, policy, (services.system, prepared.agent.system), head.state)
    context.adopt(state, head.frame)
    context.execution.restore(execution, fetched)
    registry = plugins.tool_registry
    if states.plugins:
        await plugins.host.aside(lambda: plugins.restore_changed(states.plugins, fetched), plugins.step)
    if states.tools is not None:
        registry.restore_state(states.tools)
    for name, provider in setup.sources.items():
        await context.ask_sources(functools.partial(registry.upsert, name, provider), provider)
    await context.set_context_overlay(setup.overlay)
    await _introduce(context, setup, state, head)
    try:
        await context.prepare()
    except StandfastError as error:  # raised again when the catalog is used
        if isinstance(error.__context__, NoAnswer):  # except for a plugin that blocks
            raise
    return context


async def _introduce(
    context: SessionContext, setup: SessionSetup, state: plugin_state.SessionState, head: SessionHead
) -> None:
    """Notify the protocol and the plugins that the session was opened."""
    plugins = context.plugins
    here = ProtocolSessionContext(head.session_id)
    await plugins.ask_protocol("initialize_session", here)
    if head.leaf is not None or head.state is not None:
        await plugins.ask_protocol("restore_session", here, state)
    plugins.configure_protocol(
        context.options,
        ProtocolSessionMaterialization(
            plugin_options=setup.authority.plugin_options, is_root_session=setup.parent_session_id is None
        ),
    )
    context.options.check()
    opened = SessionConfigChanged(session_id=head.session_id, before=None, after=context.policy)
    context.policy = await plugins.mutate_session_config(opened, context.policy)
    if head.leaf is not None and plugins.has_runtime_event_hooks("session_restored"):
        await plugins.emit_runtime_event(SessionRestored(session_id=head.session_id, leaf=head.leaf))


async def durable_state(store: SessionStore, head: SessionHead) -> plugin_state.SessionState:
    """Return the stored state of plugins and tools, even in mid-turn, and of code after the last turn."""
    state = await read_state(store, head)
    turn = await store.open_turn_journal(head.session_id)
    if turn is None:
        return state
    found = journaled_states(head, turn.journal)
    plugins = {**state.plugins.plugins, **found.plugins}
    return msgspec.structs.replace(
        state, plugins=plugin_state.PluginSessionSnapshot(plugins=plugins), tools=found.tools or state.tools
    )


def chartered_model(head: SessionHead) -> str:
    """Return the model that the session was created with; empty if it uses its agent's."""
    policy = None if head.charter is None else head.charter.policy
    return "" if policy is None else policy.model


def require_same_provider(head: SessionHead, model_id: str, *, used: bool = False) -> None:
    """Raise `ProviderMismatch` if the session has used another provider than that of *model_id*.

    A session without a history of its own may change the provider, unless it counts as *used*.
    """
    persisted = chartered_model(head) or head.model
    fresh = head.depth == 0 or (head.forked_from is not None and head.revision == 0)
    if persisted and not same_provider(persisted, model_id) and (used or not fresh):
        raise ProviderMismatch(head.session_id, expected=persisted, actual=model_id)
