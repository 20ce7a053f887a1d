"""The services of a runtime: store, clock, leases, threads, loops, engines, models, trace.

They are in this layer because the turns of every protocol use them. Services that a higher layer implements
are declared here as a `Protocol`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from standfast.durable.journal import LeaseKeeper
from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.limits import Usage
from standfast.model.prompt import PromptLayer
from standfast.model.task import TaskRecord
from standfast.plugins.runtime_settings import RuntimeSettings
from standfast.ports.clock import Clock
from standfast.ports.code_engine import CodeEngine
from standfast.ports.session_store import SessionStore
from standfast.ports.trace import HookWatch, PhaseProbe
from standfast.tools.loop_threads import LoopThreads
from standfast.tools.stalls import StallWatch
from standfast.tools.threads import DaemonThreads

if TYPE_CHECKING:
    from standfast.model.events import Event
    from standfast.ports.model_provider import ModelProvider

log: Final = logging.getLogger("standfast")

Cost = Callable[[str, str, Usage], int | None]
"""Computes a reply's cost in 1e-9 dollars, or None, from the requested model, the serving model and usage."""


class EngineSource(Protocol):
    """Opens engines when they are first needed."""

    def named(self, name: str) -> CodeEngine:
        """Return the engine of this name; raise `CodeExecutionUnavailable` if it is not installed."""

    def build(self, name: str) -> str:
        """Return the engine of this name with its build, without starting it."""

    @property
    def opened(self) -> bool:
        """Whether any engine was started."""

    def forget(self, session_id: str) -> None:
        """Release the resources kept warm for a session. Blocks."""

    def close(self) -> None: ...


class RuleEvaluator(Protocol):
    """Evaluates approval rules in a sandbox."""

    def __call__(self, rule: str, args: list[Json], kwargs: dict[str, Json], session_id: str) -> bool: ...

    def close(self) -> None: ...


class ModelSource(Protocol):
    """Opens each model by name, once, subject to the rate limits that all sessions share."""

    def named(self, name: str, session_id: str = "") -> ModelProvider: ...

    def limited(self, model: ModelProvider) -> ModelProvider: ...

    async def close(self) -> None: ...


class PriceList(Protocol):
    """The prices of models."""

    def must_load(self, model_id: str) -> bool: ...

    def load(self) -> None: ...

    def knows(self, model_id: str) -> bool: ...

    def cost(self, model_id: str, served_model: str, usage: Usage) -> int | None: ...


class TraceRecorder(HookWatch, Protocol):
    """Writes records into the trace."""

    def event(self, session_id: str, turn_id: str, plugin_id: str, name: str, body: Json) -> None: ...

    def task(self, task: TaskRecord) -> None: ...


class RuntimeServices(msgspec.Struct, frozen=True, kw_only=True):
    """The services of one open runtime, closed together with it. `home` is the runtime's event loop."""

    store: SessionStore
    clock: Clock
    settings: RuntimeSettings
    leases: LeaseKeeper
    models: ModelSource
    prices: PriceList
    engines: EngineSource
    rules: RuleEvaluator
    tracer: TraceRecorder | None = None
    probe: PhaseProbe | None = None
    system: PromptLayer = msgspec.field(default_factory=PromptLayer)
    """The part of the system prompt that all agents share."""
    deps: Any = None
    """The default factory of deps, for turns whose agent has no factory of its own."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    threads: DaemonThreads = msgspec.field(default_factory=lambda: DaemonThreads("standfast-turns"))
    loops: LoopThreads = msgspec.field(default_factory=lambda: LoopThreads("standfast-loop"))
    """Where coroutines of tools and plugins run."""
    watchers: list[Callable[[str, Event], None]] = msgspec.field(default_factory=list)
    """Called with the session and the event for each live event of this process."""
    stalls: StallWatch = msgspec.field(default_factory=StallWatch)
    home: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)

    @property
    def keeps_journals(self) -> bool:
        return self.settings.keep_journals_ms > 0

    def require_home(self) -> None:
        """Raise `InvalidArgument` if the caller, a tool or a hook, runs on another loop than the runtime."""
        here = asyncio._get_running_loop()
        if here is not None and here is not self.home:
            raise InvalidArgument(
                "the runtime is used on a different event loop than the one it was opened on",
                hint='in a tool or hook, use `ctx.host`, or declare the tool with @tool(loop="runtime") and '
                'the plugin with `loop = "runtime"`',
            )

    def cost_of(self, model_id: str) -> Cost:
        """Return the function that computes the cost of a model's replies; it loads the price list lazily."""
        if self.prices.must_load(model_id):
            self.threads.start(self.prices.load)
        return self.prices.cost

    def report(self, plugin_id: str, hook: str, problem: str) -> None:
        """Log a non-fatal problem, and record it in the trace."""
        log.warning("plugin %s, %s: %s", plugin_id, hook, problem)
        self.record("", "", plugin_id, "plugin_failed", {"hook": hook, "error": problem})

    def record(self, session_id: str, turn_id: str, plugin_id: str, name: str, body: Json) -> None:
        """Add an event to the trace, if tracing is on."""
        if self.tracer is not None:
            self.tracer.event(session_id, turn_id, plugin_id, name, body)

    async def close(self) -> None:
        """Close engines, threads and the models opened by name. Models that were passed in stay open."""
        self.rules.close()
        self.engines.close()
        if self.loops.busy:
            await self.threads.run(lambda: self.loops.close(wait_s=0.5))
        self.loops.close()
        self.threads.close()
        await self.models.close()


def runtime_not_open() -> InvalidArgument:
    return InvalidArgument(
        "this runtime is not open", hint='use `async with Runtime("standfast.db") as runtime:`'
    )
