"""One turn whose input is code, from its beginning or from where it was left to its end or its next wait.

Theory of operation
-------------------
The turn is an ordinary one: the same machine, driver, host and journal as an agent's, without plugins and a
model (`_NoPlugins`). Nothing here needs an event loop of the caller's: `run_blocking` drives the turn on the
calling thread, and the cell computes there as well (`InlineThreads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from standfast.durable.driver import Driven, TurnDriver
from standfast.durable.effects import Kept
from standfast.durable.journal import replay
from standfast.errors import ErrorObject
from standfast.machine.commands import Command, RunTool
from standfast.machine.inputs import Input, TurnStarted
from standfast.machine.turn_machine import TurnMachine
from standfast.model.canonical import digest_bytes
from standfast.model.capability import Capability
from standfast.model.cell import RUN_CODE
from standfast.model.limits import CapabilityLimits
from standfast.model.message import Message
from standfast.model.outcome import Ended, Waiting
from standfast.model.plugin_state import SessionState, encode_entry, encode_state
from standfast.model.session import SANDBOX_AGENT, SessionHead
from standfast.plugins.plugin_states import ExecutionMemory
from standfast.plugins.protocol import TurnDriverPreamble
from standfast.plugins.runtime_services import RuntimeSettings
from standfast.ports.clock import Clock
from standfast.ports.code_engine import SLEEP
from standfast.ports.session_store import Begun, Blob, JournalEntry, SessionStore, StateRecord, Takeover
from standfast.ports.trace import UNDER
from standfast.protocols.code.own_functions import run_code
from standfast.protocols.standard.host import StandardHost
from standfast.runtime.code_executor import SandboxExecutor
from standfast.sandbox.run_errors import cancelled_error
from standfast.tools.blocking_loop import BlockingLoop
from standfast.tools.context import NO_TURN, Attachments, Triggers
from standfast.tools.decorator import tool
from standfast.tools.dispatch import Dispatcher
from standfast.tools.no_host import NO_HOST
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolRegistry
from standfast.tools.stubs import stub_text
from standfast.tools.threads import DaemonThreads

if TYPE_CHECKING:
    from standfast.trace.tracer import Tracer
    from standfast.trace.turn_spans import TurnSpans

T = TypeVar("T")

_LONGEST_S: Final = 366 * 86_400.0
"""No sleep is longer: no run lives as long."""


@tool(side_effect="none", limits=CapabilityLimits(timeout_ms=2**32 - 1))
async def sleep(seconds: float = 0.0) -> None:
    """Wait; the limit on wall time counts it."""
    await asyncio.sleep(min(max(0.0, seconds), _LONGEST_S))


_PREAMBLE: Final = TurnDriverPreamble(host=StandardHost)
_OWN: Final = {RUN_CODE: run_code.registered, SLEEP: sleep.registered}


class InlineThreads(DaemonThreads):
    """Runs every job on the calling thread: it has nothing else to do until the job is over."""

    def start(self, job: Callable[[], Callable[[], object] | None]) -> None:
        then = job()
        if then is not None:
            then()

    async def run(self, job: Callable[[], T]) -> T:
        return job()


class SandboxFunctions:
    """The `CodeFunctions` of a sandbox: the tools of its registry, and `sleep` unless a tool is called so."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self.names = registry.names
        self.suggest = registry.suggest

    def __contains__(self, name: object, /) -> bool:
        return name in self._registry

    def own(self, name: str) -> RegisteredTool | None:
        return None if name in self._registry else _OWN.get(name)

    def capability(self, name: str) -> Capability:
        return (self.own(name) or self._registry.require(name)).capability

    def is_async(self, name: str) -> bool:
        tool = self._registry.get(name)
        return tool is not None and tool.async_mode

    def stubs(self) -> str:
        return stub_text(self._registry)


class _NoPlugins:
    """The `TurnHooks` of a turn without plugins: it keeps blobs and the session's variables."""

    judges = False
    has_unknown_states = False
    shows_streams = False
    complete = None
    tool_host = NO_HOST

    def __init__(self, memory: ExecutionMemory, store: SessionStore) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, BlockingLoop)
        self.spares = loop.spares
        self.read_blob = store.blob
        self._memory = memory
        self._blobs: list[Blob] = []
        self._changed = False

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
        self._blobs.append(Blob(digest=digest, data=data))
        return digest

    async def finalizing(self, outcome: Ended) -> None:
        """There is no plugin to tell."""

    def deliver(self, call_id: int, deliver: Callable[[], None]) -> None:
        deliver()

    def drop_held(self) -> None:
        """No result is held back here."""

    async def take_states(self) -> None:
        """There is no plugin to ask."""

    def changed_states(self, given: Input | None = None) -> tuple[JournalEntry, ...]:
        changed = self._memory.changed()
        if changed is None:
            return ()
        self._changed = True
        self._blobs.extend(changed[1])
        return (JournalEntry(key="execution", kind="state", body=encode_entry(changed[0])),)

    def take_blobs(self) -> tuple[Blob, ...]:
        blobs, self._blobs = tuple(self._blobs), []
        return blobs

    async def kept(self, *, tolerant: bool) -> Kept:
        changed = self._memory.changed()
        if changed is None and not self._changed:
            return Kept()
        entry = self._memory.entry
        assert entry is not None
        record = StateRecord(
            body=encode_state(SessionState(execution=entry)), blobs=tuple(entry.artifacts.values())
        )
        return Kept(record, () if changed is None else changed[1])


class _TraceObserver:
    """The `TurnObserver` of a code turn: it feeds the turn's spans if the sandbox keeps a trace."""

    def __init__(self, spans: TurnSpans | None) -> None:
        self._spans = spans

    def fed(self, given: Input, following: Sequence[Command]) -> None:
        if self._spans is not None:
            self._spans.fed(given, following)

    def running(self, command: RunTool) -> None: ...


class CodeTurnServices(msgspec.Struct, frozen=True):
    """What turns without a model need of the `RuntimeServices`."""

    store: SessionStore
    clock: Clock
    settings: RuntimeSettings
    threads: DaemonThreads = msgspec.field(default_factory=InlineThreads)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    tracer: Tracer | None = None


class _CodeSession:
    """What turns without a model need of the `SessionContext`. All tools are known from the beginning."""

    executor_id = "sandbox"

    def __init__(self, registry: ToolRegistry) -> None:
        self.functions = SandboxFunctions(registry)
        self.find_tool = registry.require

    def code_functions(self) -> SandboxFunctions:
        return self.functions

    async def prepare(self, name: str | None = None) -> None:
        """There is no source of tools to ask."""


@dataclass(slots=True, kw_only=True)
class _CodeTurnContext:
    """The `TurnContext` of a turn without a model."""

    services: CodeTurnServices
    session: _CodeSession
    head: SessionHead
    machine: TurnMachine
    dispatcher: Dispatcher
    executor: SandboxExecutor
    hooks: _NoPlugins
    session_id: str
    turn_id: str
    history: tuple[Message, ...] = ()
    preamble: TurnDriverPreamble = _PREAMBLE
    output: None = None
    deps: None = None


class CodeTurns:
    """Opens the turns of sessions without a model, over what they share."""

    def __init__(self, services: CodeTurnServices, dispatcher: Dispatcher, registry: ToolRegistry) -> None:
        self._services = services
        self._dispatcher = dispatcher
        self._session = _CodeSession(registry)

    @property
    def functions(self) -> SandboxFunctions:
        return self._session.functions

    def open(
        self,
        begun: Begun | Takeover,
        started: TurnStarted | None,
        executor: SandboxExecutor,
        memory: ExecutionMemory,
    ) -> CodeTurn:
        """The turn that was begun, with what it *started* with, or that was taken over."""
        if isinstance(begun, Takeover):
            replayed = replay(begun.record.turn_id, begun.input, begun.journal)
            machine, keys, intents = replayed.machine, replayed.keys, replayed.intents
            commands: list[Command] = []
        else:
            assert started is not None
            machine, keys, intents = TurnMachine(), set[str](), frozenset[str]()
            commands = machine.feed(started)
        context: Any = _CodeTurnContext(
            services=self._services,
            session=self._session,
            head=begun.head,
            machine=machine,
            dispatcher=self._dispatcher,
            executor=executor,
            hooks=_NoPlugins(memory, self._services.store),
            session_id=begun.head.session_id,
            turn_id=machine.turn_id,
        )
        spans = self._spans(begun, started, machine, commands) if self._services.tracer is not None else None
        driver = TurnDriver(
            machine,
            begun.lease,
            StandardHost(context),
            _TraceObserver(spans),
            self._services,
            journaled=keys,
            intents=intents,
        )
        return CodeTurn(machine, driver, executor, commands, spans)

    def _spans(
        self,
        begun: Begun | Takeover,
        started: TurnStarted | None,
        machine: TurnMachine,
        commands: list[Command],
    ) -> TurnSpans:
        """Open the spans of a new turn, or those of one taken over, whose journal tells what is open."""
        from standfast.trace.turn_spans import (  # only a sandbox that keeps a trace needs it
            TurnAbout,
            TurnSpans,
        )

        tracer = self._services.tracer
        assert tracer is not None
        about = TurnAbout(begun.head.session_id, SANDBOX_AGENT, "", RUN_CODE)
        spans = TurnSpans(tracer, about, machine)
        if started is None:
            assert isinstance(begun, Takeover)
            spans.taken_up(begun.input, begun.journal)
        else:
            spans.began(started, UNDER.get())
            spans.fed(started, commands)
        return spans


class CodeTurn:
    """One turn while it runs on this thread. It is a `Holder` of its lease; others may call its methods."""

    def __init__(
        self,
        machine: TurnMachine,
        driver: TurnDriver,
        executor: SandboxExecutor,
        commands: list[Command],
        spans: TurnSpans | None = None,
    ) -> None:
        self.machine = machine
        self.commands = commands
        """What a new turn begins with."""
        self.driver = driver
        self.journal = driver.journal
        self.turn_id = machine.turn_id
        self._executor = executor
        self._spans = spans
        self._loop = asyncio.get_running_loop()

    def stop(self, error: ErrorObject) -> None:
        """End the turn's cell with *error*, whether it computes or stands still."""
        cell = self._executor.running
        if cell is not None:
            cell.stop(error)

    def lose(self) -> None:
        self._loop.call_soon_threadsafe(self.driver.lose)
        self.stop(cancelled_error())

    def request_cancel(self) -> None:
        self.stop(cancelled_error())

    async def drive(self, commands: list[Command]) -> Driven:
        assert self.machine.code is not None
        self._executor.begin(self.machine.code)
        if self._spans is None:
            return await self.driver.drive(commands)
        try:
            driven = await self.driver.drive(commands)
        except BaseException as error:
            self._spans.left(error)
            raise
        if isinstance(driven.summary.outcome, Waiting):
            self._spans.parked(driven.summary.outcome)
        else:
            self._spans.ended(driven.summary.outcome, driven.summary.usage, ())
        return driven
