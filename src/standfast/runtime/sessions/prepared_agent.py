"""An agent ready to work: its model open, its tools dispatched, its plugins ready to be built."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from standfast.model.limits import AGENT_TIMEOUT_MS
from standfast.model.session import SessionPolicy
from standfast.plugins.contexts import SessionHosts
from standfast.plugins.host import PluginHost
from standfast.plugins.running import HookRunner
from standfast.plugins.runtime_services import RuntimeServices
from standfast.ports.clock import Clock
from standfast.ports.model_provider import ModelProvider
from standfast.ports.session_store import SessionStore
from standfast.runtime.agent_definition import AgentDefinition
from standfast.tools.dispatch import Dispatcher
from standfast.tools.home_loop import at_home, homed


class PreparedAgent(msgspec.Struct, frozen=True):
    """What the sessions of one agent share."""

    agent: AgentDefinition[Any, Any]
    model: ModelProvider
    dispatcher: Dispatcher
    host: PluginHost
    policy: SessionPolicy

    async def close(self) -> None:
        self.dispatcher.close()
        await self.host.runner.spares.close()


def prepare_agent(
    agent: AgentDefinition[Any, Any], services: RuntimeServices, hosts_of: Callable[[str], SessionHosts]
) -> PreparedAgent:
    """Open the agent's model and make its dispatcher and plugin host."""
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
        shelf_of=lambda plugin_id: StoreShelf(services.store, services.clock, plugin_id, services.home),
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


class StoreShelf:
    """The `Shelf` of one plugin in the runtime's store, on whichever loop the plugin runs."""

    __slots__ = ("_clock", "_home", "_plugin_id", "_store")

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        plugin_id: str,
        home: asyncio.AbstractEventLoop | None = None,
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
