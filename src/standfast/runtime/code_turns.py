"""The turn of a session without a model, and the services that the turns of one sandbox share.

Theory of operation
-------------------
The turn has the same machine, driver, host and journal as an agent's, but no model and no plugins:
`SandboxMemory` is in their place. The caller needs no event loop: `run_blocking` drives the turn on the
calling thread, and the cell computes there as well.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from standfast.durable.driver import Driven, TurnDriver
from standfast.durable.effects import ChangedState, KeptState
from standfast.durable.journal import LeaseKeeper, replay
from standfast.machine.commands import Command, RunTool
from standfast.machine.inputs import Input, TurnStarted
from standfast.machine.turn_machine import TurnMachine
from standfast.model.canonical import digest_bytes
from standfast.model.capability import Capability
from standfast.model.code import RUN_CODE, USUAL_ENGINE, Language
from standfast.model.message import Message
from standfast.model.outcome import Ended, Waiting
from standfast.model.plugin_state import SessionState
from standfast.model.session import SANDBOX_AGENT, SessionHead
from standfast.plugins.runtime_settings import RuntimeSettings
from standfast.plugins.stored_states import ExecutionMemory, state_record
from standfast.plugins.turn_protocol import TurnDriverPreamble
from standfast.ports.code_engine import SLEEP
from standfast.ports.session_store import Begun, Blob, SessionStore, Takeover
from standfast.ports.trace import UNDER
from standfast.protocols.standard.host import StandardHost
from standfast.runtime.code_executor import SandboxExecutor
from standfast.sandbox.engine_kinds import CodeEngines, SandboxConfig, kind_of
from standfast.sandbox.monty.workers import MontyRules, MontyWorkers
from standfast.sandbox.run_errors import cancelled_error
from standfast.tools.context import NO_TURN, Attachments, Triggers
from standfast.tools.dispatch import Dispatcher
from standfast.tools.no_host import NO_HOST
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolRegistry
from standfast.tools.threads import BlockingLoop, DaemonThreads, run_blocking

if TYPE_CHECKING:
    from standfast.trace.tracer import Tracer
    from standfast.trace.turn_spans import TurnSpans

T = TypeVar("T")

_LEASE_MS: Final = 30_000
_DROP_EVERY_MS: Final = 3_600_000


_PREAMBLE: Final = TurnDriverPreamble(host=StandardHost)
_OWN: Final = (SLEEP, RUN_CODE)
_NOTHING_KEPT: Final = KeptState()


@functools.cache
def _own_tool(name: str) -> RegisteredTool:
    """Return the tool `run_code` or `sleep`. Imported lazily, because few runs need them as tools."""
    if name == RUN_CODE:
        from standfast.protocols.code.cell_tool import run_code

        return run_code.registered
    from standfast.runtime.sleep_tool import sleep

    return sleep.registered


class InlineThreads(DaemonThreads):
    """Runs every job on the calling thread, which would otherwise only wait for it."""

    async def run(self, job: Callable[[], T]) -> T:
        return job()


class RunThreads(DaemonThreads):
    """The threads of runs and their calls. A run's only call in progress runs on the helper of its loop."""

    def start(self, job: Callable[[], Callable[[], object] | None]) -> None:
        loop = asyncio._get_running_loop()
        if not isinstance(loop, BlockingLoop) or not loop.call_next(job, self):
            super().start(job)


class SandboxFunctions:
    """The `CodeFunctions` of a sandbox: the tools of its registry, and `sleep` unless a tool is named so."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self.names = registry.names
        self.suggest = registry.suggest

    def __contains__(self, name: object, /) -> bool:
        return name in self._registry

    def own(self, name: str) -> RegisteredTool | None:
        is_own = name in _OWN and name not in self._registry
        return _own_tool(name) if is_own else None

    def capability(self, name: str) -> Capability:
        tool = self._registry.get(name) or self.own(name) or self._registry.require(name)
        return tool.capability

    def is_async(self, name: str) -> bool:
        tool = self._registry.get(name)
        return tool is not None and tool.async_mode

    def stubs(self) -> str:
        from standfast.tools.stubs import stub_text  # needed only by checks

        return stub_text(self._registry)


class _TraceObserver:
    """A `TurnObserver` that records the spans of a turn, for a sandbox with a trace."""

    def __init__(self, spans: TurnSpans) -> None:
        self.fed = spans.fed

    def running(self, command: RunTool) -> None: ...


class RunLeases(LeaseKeeper):
    """The leases of runs. A separate thread renews them, since the runs' own threads are busy computing."""

    _thread: threading.Thread | None = None

    def start_renewing(self) -> None:
        if self._thread is None and self._store.durable:
            self._closed = threading.Event()
            self._thread = threading.Thread(target=self._renew, name="standfast-leases", daemon=True)
            self._thread.start()

    def stop_renewing(self) -> None:
        if self._thread is not None:
            self._closed.set()

    def _renew(self) -> None:
        rounds = 0
        while not self._closed.wait(1.0):
            if self._holders:
                rounds += 1
                run_blocking(self.renew_all() if rounds % (self.lease_ms // 3000) == 0 else self.look())


class SandboxServices:
    """The services that the sessions of one sandbox share.

    It has the role that `RuntimeServices` and `SessionContext` have for an agent's turn. All tools are known
    from the beginning; there are no tool sources.
    """

    executor_id = "sandbox"

    def __init__(self, registry: ToolRegistry, store: SessionStore, config: SandboxConfig) -> None:
        self.registry = registry
        self.store = store
        self.config = config
        self.clock = config.clock
        self.settings = RuntimeSettings(
            os.urandom(4).hex(),
            approval_ttl_ms=config.approval_ttl_ms,
            keep_journals_ms=config.keep_journals_ms,
        )
        self.keeps_journals = config.keep_journals_ms > 0
        self._dropped_ms: int | None = None
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self.threads = InlineThreads()
        self.jobs = RunThreads("standfast-sandbox")
        self.workers = MontyWorkers(config.workers)
        self.dispatcher = Dispatcher(
            registry, threads=self.jobs, clock=config.clock, evaluate_rule=MontyRules(self.workers)
        )
        self.engines = CodeEngines(self.workers, config.workers, config.packages)
        self.engine_names = {kind_of(config.engine).language: config.engine} if config.engine else {}
        """The engine that was passed to the sandbox, by its language."""
        self.leases = RunLeases(store, config.clock, _LEASE_MS, self.settings.epoch)
        self.functions = SandboxFunctions(registry)
        self.find_tool = registry.require
        self.tracer: Tracer | None = None
        if config.trace is not None:
            from standfast.trace.tracer import Tracer  # only a sandbox that keeps a trace needs it

            self.tracer = Tracer(config.trace, config.clock)

    def engine_for(self, language: Language) -> str:
        """Return the name of the engine of a new session."""
        return self.engine_names.get(language) or USUAL_ENGINE[language]

    async def drop_journals(self) -> None:
        """Delete the journals past their retention time, with the first run and then every hour."""
        now = self.clock.boot_ms()
        if self._dropped_ms is None or now - self._dropped_ms >= _DROP_EVERY_MS:
            self._dropped_ms = now
            await self.store.drop_journals(self.clock.now_ms() - self.settings.keep_journals_ms)

    def code_functions(self) -> SandboxFunctions:
        return self.functions

    is_static = True
    """There are no tool sources, so the catalog never changes."""

    async def prepare(self, name: str | None = None) -> None:
        """Do nothing: there are no tool sources."""

    def close(self) -> None:
        """End processes and threads. Stored data is kept."""
        self.leases.stop_renewing()
        self.engines.close()
        self.workers.close()
        self.dispatcher.close()
        run_blocking(self.store.close())
        self.jobs.close()


class SandboxMemory(ExecutionMemory):
    """The variables of a session, and the `TurnContext` and `TurnHooks` of its turns, one after the other.

    Without plugins, hooks handle only variables and a turn's blobs.
    """

    head: SessionHead
    machine: TurnMachine
    turn_id: str
    history: tuple[Message, ...] = ()
    preamble = _PREAMBLE
    output = None
    deps = None

    judges = False
    has_plugins_away = False
    has_unknown_states = False
    shows_streams = False
    complete = None
    tool_host = NO_HOST

    def __init__(self, session_id: str, executor: SandboxExecutor, services: SandboxServices) -> None:
        super().__init__(executor, "sandbox")
        self.session_id = session_id
        self.executor = executor
        self.services = self.session = services
        self.dispatcher = services.dispatcher
        self.read_blob = services.store.blob
        turn: Any = self
        executor.turn = turn
        self.host = StandardHost(turn, cells=executor)

    def begin(self, head: SessionHead, machine: TurnMachine) -> None:
        """Serve another turn, whose input has been fed to *machine*."""
        self.head = head
        self.machine = machine
        self.turn_id = machine.turn_id
        self._blobs: tuple[Blob, ...] = ()
        self._has_changed = False
        assert machine.code is not None
        self.executor.begin(machine.code)

    @property
    def hooks(self) -> SandboxMemory:
        return self

    def charged(self, settled: T) -> T:
        return settled

    def with_attachments(self, settled: T) -> T:
        return settled

    def attachments_of(self, call_id: int) -> Attachments:
        return NO_TURN

    def triggers_of(self, key: str) -> Triggers:
        return NO_TURN

    def keep_blob(self, data: bytes) -> str:
        digest = digest_bytes(data)
        self._blobs += (Blob(digest=digest, data=data),)
        return digest

    async def finalizing(self, outcome: Ended) -> None:
        """Do nothing: there is no plugin to notify."""

    def deliver(self, call_id: int, deliver: Callable[[], None]) -> None:
        deliver()

    def drop_held(self) -> None:
        """Do nothing: no result is held back here."""

    async def take_states(self) -> None:
        """Do nothing: there is no plugin state to capture."""

    def changed_states(self, given: Input | None = None) -> tuple[ChangedState, ...]:
        if not self.executor.dirty or (changed := self.changed()) is None:
            return ()
        self._has_changed = True
        self._blobs += changed[1]
        return (ChangedState("execution", changed[0]),)

    def take_blobs(self) -> tuple[Blob, ...]:
        blobs, self._blobs = self._blobs, ()
        return blobs

    async def kept(self, *, tolerant: bool) -> KeptState:
        if not self._has_changed and not self.executor.dirty:
            return _NOTHING_KEPT
        changed = self.changed()
        assert self.entry is not None
        return KeptState(
            state_record(SessionState(execution=self.entry)), () if changed is None else changed[1]
        )


class CodeTurn:
    """A turn running on this thread, with its lease. Other threads may call its methods."""

    def __init__(
        self,
        services: SandboxServices,
        begun: Begun | Takeover,
        started: TurnStarted | None,
        memory: SandboxMemory,
    ) -> None:
        """Open a turn that has just begun, with its first input *started*, or that was taken over."""
        self.first: list[Command] = []
        """The commands that a new turn begins with."""
        replayed = None
        if started is None:
            assert isinstance(begun, Takeover)
            replayed = replay(begun.record.turn_id, begun.input, begun.journal)
            machine = replayed.machine
        else:
            machine = TurnMachine()
            self.first = machine.feed(started)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, BlockingLoop)
        self.machine = machine
        self._spans = None
        if services.tracer is not None:
            self._spans = _open_spans(services.tracer, begun, started, machine, self.first)
        self.driver = TurnDriver(
            machine,
            begun.lease,
            memory.host,
            None if self._spans is None else _TraceObserver(self._spans),
            services,
            replayed=replayed,
        )
        self.journal = self.driver.journal
        self.turn_id = machine.turn_id
        self._executor = memory.executor
        self._loop = loop
        memory.begin(begun.head, machine)

    def drive(self, commands: list[Command]) -> Coroutine[Any, Any, Driven]:
        """Execute *commands* and all that follow from them, until the turn ends or parks."""
        driving = self.driver.drive(commands)
        return driving if self._spans is None else _traced(driving, self._spans)

    def lose(self) -> None:
        self._loop.call_soon_threadsafe(self.driver.lose)
        self.request_cancel()

    def request_cancel(self) -> None:
        """Cancel the turn's cell, whether it is about to begin, is computing or waits for a call."""
        self._executor.cancel(self.turn_id, cancelled_error())


async def _traced(driving: Coroutine[Any, Any, Driven], spans: TurnSpans) -> Driven:
    try:
        driven = await driving
    except BaseException as error:
        spans.left(error)
        raise
    outcome = driven.summary.outcome
    if isinstance(outcome, Waiting):
        spans.parked(outcome)
    else:
        spans.ended(outcome, driven.summary.usage, ())
    return driven


def _open_spans(
    tracer: Tracer,
    begun: Begun | Takeover,
    started: TurnStarted | None,
    machine: TurnMachine,
    commands: list[Command],
) -> TurnSpans:
    """Open the spans of a new turn, or those that are open according to the journal of a resumed turn."""
    from standfast.trace.turn_spans import TracedTurn, TurnSpans  # only a sandbox that keeps a trace needs it

    spans = TurnSpans(tracer, TracedTurn(begun.head.session_id, SANDBOX_AGENT, "", RUN_CODE), machine)
    if started is None:
        assert isinstance(begun, Takeover)
        spans.taken_up(begun.input, begun.journal)
    else:
        spans.began(started, UNDER.get())
        spans.fed(started, commands)
    return spans
