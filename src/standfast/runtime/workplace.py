"""What the sessions of one runtime share: store, clock, leases, threads, providers, dispatchers."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from standfast.durable.leases import LeaseKeeper
from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.directive import SessionRequest
from standfast.model.language import EngineName
from standfast.model.limits import AGENT_TIMEOUT_MS
from standfast.model.prompt import PromptLayer
from standfast.model.session_policy import SessionPolicy
from standfast.model.usage import Usage
from standfast.plugins.contexts import NoHosts, SessionHosts
from standfast.plugins.host import PluginHost
from standfast.plugins.protocol import Bench
from standfast.plugins.running import DEFAULT_TIMEOUT_S, HookRunner
from standfast.ports.clock import Clock
from standfast.ports.code_engine import CodeEngine
from standfast.ports.model_provider import ModelProvider
from standfast.ports.session_store import Claimant, SessionStore
from standfast.ports.trace import PhaseProbe, TraceSink
from standfast.runtime.agent import Agent
from standfast.runtime.dependencies import DepsFactory
from standfast.runtime.shelf import StoreShelf
from standfast.runtime.user_functions import UserFunctions
from standfast.tools.dispatch import Dispatcher
from standfast.tools.home_loop import homed
from standfast.tools.loop_threads import LoopThreads
from standfast.tools.stalls import StallWatch
from standfast.tools.threads import DaemonThreads

if TYPE_CHECKING:
    from standfast.providers.prices import Prices
    from standfast.runtime.host.async_handles import AsyncHandles
    from standfast.runtime.live_session import LiveSession
    from standfast.trace.tracer import Tracer

log: Final = logging.getLogger("standfast")

_NO_LAYER: Final = PromptLayer()


class RuntimeConfig(msgspec.Struct, frozen=True):
    """Times in milliseconds.

    So many sessions are kept in memory as they were last used, as long as they have no more messages in all.
    """

    epoch: str
    lease_ms: int = 30_000
    approval_ttl_ms: int = 24 * 3600 * 1000
    busy_timeout_ms: int = 60_000
    poll_ms: int = 1_000
    cached_sessions: int = 256
    cached_messages: int = 50_000


async def _no_triggers(source: str, key: str, payload: Json) -> int:
    return 0


class Staff(msgspec.Struct, frozen=True):
    """An agent ready to work: its model open, its tools dispatched, its plugins ready to be built."""

    agent: Agent[Any, Any]
    model: ModelProvider
    bench: Bench
    host: PluginHost
    policy: SessionPolicy


@dataclass(slots=True)
class Workplace:
    """Made by `Runtime`; used by its sessions."""

    store: SessionStore
    clock: Clock
    config: RuntimeConfig
    leases: LeaseKeeper
    resolve: Callable[[str], ModelProvider]
    prices: Prices
    limited: Callable[[ModelProvider], ModelProvider] = lambda model: model
    owns_models: bool = True
    is_open: bool = True
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    trace: TraceSink | Sequence[TraceSink] | None = None
    probe: PhaseProbe | None = None
    hook_timeout_s: float = DEFAULT_TIMEOUT_S
    system: PromptLayer = _NO_LAYER
    deps: DepsFactory[Any] | None = None
    agent_named: Callable[[str], Agent[Any, Any] | None] = lambda name: None
    """The agent of a name that is known in this process."""
    describe: Callable[[str, Agent[Any, Any]], Awaitable[None]] | None = None
    """Records that an agent works on a session."""
    create_session: Callable[[SessionRequest, str, Staff, LiveSession], Awaitable[None]] | None = None
    hosts_of: Callable[[str], SessionHosts] = lambda session_id: NoHosts()
    occur: Callable[[str, str, Json], Awaitable[int]] = _no_triggers
    threads: DaemonThreads = field(default_factory=lambda: DaemonThreads("standfast-turns"))
    loops: LoopThreads = field(default_factory=lambda: LoopThreads("standfast-loop"))
    """Where coroutines of tools and plugins run."""
    stalls: StallWatch = field(default_factory=StallWatch)
    home: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    """The runtime's own loop."""
    _rules: LazyRules | None = None
    _engines: LazyEngines = field(default_factory=lambda: LazyEngines())
    _providers: dict[str, ModelProvider] = field(default_factory=dict)
    _staff: dict[int, Staff] = field(default_factory=dict)
    handles: AsyncHandles | None = field(default=None, init=False)
    """The async handles that are watched here."""
    tracer: Tracer | None = field(default=None, init=False)
    """Takes what goes into the trace; None if nobody keeps one."""

    def __post_init__(self) -> None:
        if self.trace is not None:
            from standfast.trace.tracer import Tracer  # only who keeps a trace needs it

            self.tracer = Tracer(self.trace, self.clock)

    @property
    def functions(self) -> UserFunctions:
        """Where instructions and deps factories run."""
        return UserFunctions(self.threads, self.loops, self.stalls)

    def staff(self, agent: Agent[Any, Any]) -> Staff:
        """The agent with its model and its dispatcher; made once for each agent."""
        found = self._staff.get(id(agent))
        if found is None:
            found = self._staff[id(agent)] = self._hire(agent)
        return found

    def claimant(self, owner: str) -> Claimant:
        return Claimant(
            owner=owner,
            now_ms=self.clock.now_ms(),
            lease_ms=self.config.lease_ms,
            lease_now_ms=self.leases.now_ms(),
        )

    def require_home(self) -> None:
        """Refuse a caller that runs on another event loop than the runtime: a tool, or a hook."""
        here = asyncio._get_running_loop()
        if here is not None and here is not self.home:
            raise InvalidArgument(
                "the runtime is used on another event loop than the one that it was opened on",
                hint='in a tool or hook, use `ctx.host`, or declare the tool with @tool(loop="runtime") and '
                'the plugin with `loop = "runtime"`',
            )

    async def close(self) -> None:
        """Close what was made here. Models that were passed in are their owner's."""
        for staff in self._staff.values():
            staff.bench.dispatcher.close()
            await staff.host.runner.spares.close()
        if self._rules is not None:
            self._rules.close()
        self._engines.close()
        await self.threads.run(lambda: self.loops.close(wait_s=0.5))
        self.threads.close()
        providers, self._providers = self._providers if self.owns_models else {}, {}
        errors = []
        for provider in providers.values():
            try:
                await provider.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def forget_code(self, session_id: str) -> None:
        """End what engines keep warm for a session that is no more: its name may be another's tomorrow."""
        if self._engines.opened:
            await self.threads.run(lambda: self._engines.forget(session_id))

    def _hire(self, agent: Agent[Any, Any]) -> Staff:
        given = agent.model
        model = self.provider(given) if isinstance(given, str) else self.limited(given)
        if self._rules is None:
            self._rules = LazyRules()
        dispatcher = Dispatcher(
            agent.registry,
            threads=self.threads,
            clock=self.clock,
            evaluate_rule=self._rules,
            default_timeout_ms=AGENT_TIMEOUT_MS,
            loops=self.loops,
            stalls=self.stalls,
        )
        host = self._plugin_host(agent)
        dispatcher.home = self.home
        dispatcher.traced = self.tracer is not None
        bench = Bench(dispatcher, self.threads, self.clock, self.config.approval_ttl_ms, self._engines.named)
        return Staff(agent, model, bench, host, agent.policy())

    def _plugin_host(self, agent: Agent[Any, Any]) -> PluginHost:
        return PluginHost(
            [agent.protocol, *agent.plugins],
            agent.registry,
            shelf_of=lambda plugin_id: StoreShelf(self.store, self.clock, plugin_id, self.home),
            report=self.report,
            runner=HookRunner(
                self.hook_timeout_s, self.probe, watch=self.tracer, loops=self.loops, stalls=self.stalls
            ),
            read_attachment=homed(self.home, self.store.blob),
            hosts_of=self.hosts_of,
        )

    def provider(self, name: str) -> ModelProvider:
        """The model of this name, opened once."""
        found = self._providers.get(name)
        if found is None:
            found = self._providers[name] = self.limited(self.resolve(name))
        return found

    def cost_of(self, model_id: str) -> Callable[[str, str, Usage], int | None]:
        """Tells what replies cost. What that needs is loaded while the model thinks about its first reply."""
        if self.prices.must_load(model_id):
            self.threads.start(self.prices.load)
        return self.prices.cost

    def report(self, plugin_id: str, hook: str, problem: str) -> None:
        """Tell whoever operates this of something that was not fatal."""
        log.warning("plugin %s, %s: %s", plugin_id, hook, problem)
        self.record("", "", plugin_id, "plugin_failed", {"hook": hook, "error": problem})

    def record(self, session_id: str, turn_id: str, plugin_id: str, name: str, body: Json) -> None:
        """Put something into the trace, if anybody keeps one."""
        if self.tracer is not None:
            self.tracer.event(session_id, turn_id, plugin_id, name, body)


class LazyRules:
    """Approval rules, evaluated by an engine that is started when the first rule needs it."""

    def __init__(self) -> None:
        self._workers: Any = None
        self._evaluate: Any = None

    def __call__(self, rule: str, args: list[Json], kwargs: dict[str, Json], session_id: str) -> bool:
        if self._evaluate is None:
            from standfast.sandbox.monty.rules import RuleEvaluator
            from standfast.sandbox.monty.workers import Workers

            self._workers = Workers(1)
            self._evaluate = RuleEvaluator(self._workers)
        return bool(self._evaluate(rule, args, kwargs, session_id))

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


class LazyEngines:
    """The engines that run cells, each started when the first cell needs it."""

    def __init__(self) -> None:
        self._opened: dict[EngineName, CodeEngine] = {}

    def named(self, name: EngineName) -> CodeEngine:
        """The engine of this name; `CodeExecutionUnavailable` if it cannot be had."""
        found = self._opened.get(name)
        if found is None:
            found = self._opened[name] = self._open(name)
        return found

    def _open(self, name: EngineName) -> CodeEngine:
        match name:
            case EngineName.MONTY:
                from standfast.sandbox.monty.cell_engine import MontyCells

                return MontyCells()
            case EngineName.CPYTHON:
                from standfast.sandbox.cpython.cell_engine import CPythonCells

                return CPythonCells()
            case EngineName.AUTO:
                from standfast.sandbox.auto_python import AutoPython
                from standfast.sandbox.monty.cell_engine import MontyCells

                monty = self.named(EngineName.MONTY)
                assert isinstance(monty, MontyCells)
                return AutoPython(monty, self.named(EngineName.CPYTHON))
            case EngineName.QUICKJS:
                from standfast.sandbox.quickjs.cell_engine import QuickJsCells

                return QuickJsCells()
            case _:
                assert_never(name)

    @property
    def opened(self) -> bool:
        return bool(self._opened)

    def forget(self, session_id: str) -> None:
        """Let go of what is kept warm for a session. Blocking."""
        for engine in list(self._opened.values()):
            engine.forget(session_id)

    def close(self) -> None:
        opened, self._opened = self._opened, {}
        for engine in opened.values():
            engine.close()


def runtime_not_open() -> InvalidArgument:
    return InvalidArgument(
        "this runtime is not open", hint='use `async with Runtime("standfast.db") as runtime:`'
    )


def new_turn_id() -> str:
    return f"t_{secrets.token_hex(10)}"


def is_turn_id(value: str) -> bool:
    """Whether this is the name of a turn, and not of nodes that the host has appended."""
    return value.startswith("t_")


def new_input_id() -> str:
    return f"in_{secrets.token_hex(8)}"
