"""The turn runner: runs the turns of one session in this process, one after the other.

Theory of operation
-------------------
One transaction begins a turn (input, lease) and one ends it (nodes, head). Between them the driver does the
work. The messages of the current frame are cached between turns, and read again only if another process has
moved the session's leaf.

Rules
-----
1. A session runs one turn at a time: within this process by a lock, among processes by the lease.
2. An unfinished turn is resumed before a new one begins, and only by the agent that it belongs to.
3. A turn that fails with an internal error or a store error stays unfinished: its lease is released, and it
   can be resumed.
4. Whether a turn can run here (its agent, its deps, the tools of approved calls) is checked before anything
   of it is journaled: after `TurnNotRunnable` it is unchanged.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Sequence
from os import urandom
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from standfast.durable.driver import Committed, Driven, TurnDriver
from standfast.durable.journal import Backoff, Replayed, replay
from standfast.errors import (
    Code,
    CodeExecutionUnavailable,
    EngineMismatch,
    ErrorObject,
    NotConfigured,
    ProviderMismatch,
    SessionBusy,
    SessionNotFound,
    TurnNotFound,
    TurnNotRunnable,
    UnknownTool,
    WrongAgent,
)
from standfast.machine.commands import Command
from standfast.machine.inputs import CancelRequested, TurnStarted, encode_input
from standfast.machine.turn_machine import TurnMachine
from standfast.model.canonical import digest_bytes
from standfast.model.events import Event, TurnBegan, TurnCommitted, TurnParked
from standfast.model.limits import UsageLimits
from standfast.model.message import Message
from standfast.model.outcome import (
    Approved,
    Ended,
    Finished,
    FrameSwitched,
    Stopped,
    StopReason,
    Waiting,
    WaitOutcome,
)
from standfast.model.session import SessionHead, TurnRecord, TurnState, TurnSummary
from standfast.plugins.contexts import TurnPersisted
from standfast.plugins.protocol import ProtocolSessionContext
from standfast.plugins.running import HOOK
from standfast.plugins.session_context import SessionContext
from standfast.plugins.turn_hooks import TurnContext
from standfast.ports.model_provider import ModelProvider
from standfast.ports.session_store import Begun, Lease, NewTurn, QueuedInput, Repeated, Save, Takeover
from standfast.ports.trace import UNDER
from standfast.runtime.dependencies import (
    NO_DEPS,
    DepsContext,
    FactoryCall,
    HeldDeps,
    OwnedFactory,
    deps_missing,
    with_instructions,
)
from standfast.runtime.result import FinishedTurn, FrameSwitchedTurn, StoppedTurn, TurnResult, WaitingTurn
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.sessions.live_session import LiveSession
from standfast.runtime.sessions.materialize import PreparedAgent
from standfast.runtime.sessions.observation import messages_of_turn
from standfast.runtime.turn import RUNNING_TURN, Turn, TurnEventPublisher, TurnRequest
from standfast.tools.context import RunContext

if TYPE_CHECKING:
    from standfast.trace.turn_spans import TurnSpans

EndedWaits = Sequence[tuple[str, WaitOutcome]]
"""Waits that have ended, with their outcomes."""


class TurnRunner:
    """The turns of one session with one agent."""

    __slots__ = ("_agent", "_context", "_directory", "_live", "_prepared", "_services", "_spans")

    def __init__(self, live: LiveSession, directory: SessionDirectory, prepared: PreparedAgent) -> None:
        self._live = live
        self._directory = directory
        self._services = directory.services
        self._prepared = prepared
        self._agent = prepared.agent
        self._spans: TurnSpans | None = None
        self._context: TurnContext | None = None
        """The context of the running turn, or of the last one."""

    async def run(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Run a new turn from its input until it ends or parks."""
        assert turn.request is not None
        async with self._live.lock:
            held = await self._dependencies(turn.turn_id, turn.request.deps)
            try:
                with self._services.leases.owner() as owner:
                    begun, started = await self._begin(turn, turn.request, owner, held.value)
                    if begun is None:
                        error = ErrorObject(
                            code=Code.CANCELLED, message="the turn was cancelled before it began"
                        )
                        outcome = Stopped(reason=StopReason.CANCELLED, error=error)
                        return await self._result(turn, TurnSummary(outcome=outcome), ())
                    turn.has_begun(begun.record.turn_id)
                    if isinstance(begun, Begun):
                        work = self._first(turn, turn.request, begun, started[0], held.value)
                        return await self._conclude(turn, await self._under(begun.lease, work))
            finally:
                if held is not NO_DEPS:
                    await self._release(held)
            record = begun.record
            if record.state is TurnState.RUNNING:  # an earlier turn has the same idempotency key
                return await self._take_up(turn, Backoff(math.inf))
            assert record.summary is not None
            said = await messages_of_turn(self._services.store, record)
            return await self._result(turn, record.summary, said)

    async def resume(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Resume a turn that is waiting or was interrupted."""
        async with self._live.lock:
            return await self._take_up(turn, Backoff(self._services.settings.busy_timeout_ms / 1000))

    def require_runnable(self, record: TurnRecord) -> None:
        """Raise `TurnNotRunnable` if the turn's agent is unknown here, or its deps have no source."""
        runner = self._runner_of(record)
        given = self._live.deps_of(record.turn_id)
        if given is None and runner._factory() is None and runner._agent.needs_deps:
            raise deps_missing(runner._agent, record.turn_id)

    async def _dependencies(self, turn_id: str, given: Any) -> HeldDeps:
        """Return the deps of a turn: *given*, or those from a factory. May raise `DepsMissing`."""
        agent = self._agent
        if given is not None:
            return HeldDeps(given)
        source = self._factory()
        if source is None:
            if agent.needs_deps:
                raise deps_missing(agent, turn_id)
            return NO_DEPS
        head = await self._services.store.head(self._live.session_id)
        if head is None:
            raise SessionNotFound(self._live.session_id)
        about = DepsContext(
            session_id=head.session_id,
            turn_id=turn_id,
            agent=agent.name,
            metadata=head.metadata,
            parent_session_id=None if head.charter is None else head.charter.parent_session_id,
        )
        timeout_s = self._services.settings.hook_timeout_s
        held = await FactoryCall(source, about, timeout_s, self._services).held()
        if held.value is None and agent.needs_deps:
            await self._release(held)
            raise deps_missing(agent, turn_id, returned_none=source.owner)
        return held

    def _factory(self) -> OwnedFactory | None:
        """Return the deps factory to use: the agent's, that of the agent above it, or the runtime's."""
        agent, services = self._agent, self._services
        if agent.deps is not None:
            return OwnedFactory(agent.deps, f"agent {agent.name!r}")
        if self._live.inherited is not None:
            return self._live.inherited
        return None if services.deps is None else OwnedFactory(services.deps, "the runtime")

    async def _release(self, held: HeldDeps) -> None:
        services = self._services
        if held is not NO_DEPS:
            timeout_s = services.settings.hook_timeout_s
            await held.release(timeout_s, lambda problem: services.report("", "deps", problem))

    async def _ready(self, turn: Turn[Any], record: TurnRecord) -> tuple[TurnRunner, HeldDeps]:
        """Return the runner of the turn's agent, and the turn's deps. Any agent can end a cancelled turn."""
        given = None if turn.request is None else turn.request.deps
        given = self._live.deps_of(turn.turn_id) if given is None else given
        if record.cancel_requested:
            return self, HeldDeps(given)
        runner = self._runner_of(record)
        return runner, await runner._dependencies(turn.turn_id, given)

    def _runner_of(self, record: TurnRecord) -> TurnRunner:
        """Return a runner with the turn's agent, usually this one.

        Raise `WrongAgent` if it is unknown here.
        """
        here = self._agent
        needed = "" if record.summary is None else record.summary.engine
        if needed and needed != (found := self._services.engines.build(needed.partition(" ")[0])):
            raise EngineMismatch(record.turn_id, needed=needed, found=found)
        if record.agent in ("", here.name):
            return self
        owner = self._directory.known_agent(record.agent)
        if owner is None:
            raise WrongAgent(
                f"turn {record.turn_id} belongs to agent {record.agent!r}, but this is agent {here.name!r}",
                turn_id=record.turn_id,
                owner=record.agent,
                hint=f"open the session with agent {record.agent!r} or pass it to Runtime(agents=[...]); "
                "or cancel the turn",
            )
        return TurnRunner(self._live, self._directory, self._directory.prepared(owner))

    async def _own_context(self, taken: Takeover, replayed: Replayed, ended: EndedWaits) -> SessionContext:
        """Return the session's context in the middle of the turn.

        Raise `WrongAgent` if another agent of the same name began the turn: one with another provider, or
        with a tool that this agent lacks and whose call was approved or has begun.
        """
        agent, turn_id = self._agent, taken.record.turn_id
        try:
            context = await self._live.context(taken.head, taken.journal, self._prepared)
        except ProviderMismatch as error:
            raise _other_agent_of_name(turn_id, agent.name, error.message) from error
        if taken.record.cancel_requested:
            return context
        approved = {wait_id for wait_id, outcome in ended if isinstance(outcome, Approved)}
        for name in sorted(replayed.machine.calls.needed_tools(approved, replayed.intents)):
            await context.prepare(name)
            try:
                context.called_tool(name)
            except UnknownTool:
                problem = f"the one here has no tool {name!r}, which the turn is about to call"
                raise _other_agent_of_name(turn_id, agent.name, problem) from None
        return context

    async def _under(self, lease: Lease, work: Awaitable[Driven], waited: TurnRecord | None = None) -> Driven:
        """Await *work*; if it fails, release the lease, or park a *waited* turn that cannot run here."""
        self._spans = None
        try:
            return await work
        except BaseException as error:
            if self._spans is not None:
                self._spans.left(error)
            self._live.forget()
            if isinstance(error, TurnNotRunnable) and waited is not None and waited.summary is not None:
                nothing = Save(turn_id=waited.turn_id, entries=())
                await asyncio.shield(self._services.store.park(lease, nothing, waited.summary))
            else:
                await asyncio.shield(self._services.leases.give_back(lease, error))
            raise

    async def _begin(
        self, turn: Turn[Any], request: TurnRequest, owner: str, deps: Any
    ) -> tuple[Begun | Repeated | None, list[TurnStarted]]:
        """Begin the turn in the store and return it with its first input; None if it was withdrawn before."""
        context = await self._live.context(prepared=self._prepared)
        if request.extension is not None:
            await context.plugins.ask_protocol("validate_turn_extension", request.extension)
        if (limits := request.limits or context.policy.limits).max_cost_usd is not None:
            await self._require_price(limits, context)
        if not isinstance(self._agent.instructions, str):
            ctx: RunContext[Any] = RunContext(
                deps=deps,
                session_id=self._live.session_id,
                turn_id=turn.turn_id,
                host=context.plugins.hosts.tool,
            )
            layer = await with_instructions(request.prompt, self._agent.instructions, ctx, self._services)
            request = msgspec.structs.replace(request, prompt=layer)
        if not context.is_static:
            await context.prepare()  # if the catalog cannot be built, fail before the turn begins
        new, started = self._new_turn(turn.turn_id, request, context)
        # A queued input is retried when its session is free; waiting for that would occupy a slot.
        patience_ms = 0 if request.consumes else self._services.settings.busy_timeout_ms
        backoff = Backoff(patience_ms / 1000)
        begun = await self._services.leases.begin(
            new,
            owner,
            backoff,
            lambda: turn.withdrawn,
            lambda turn_id: self._take_up(self._live.turn_of(turn_id), backoff),
        )
        return begun, started

    def _new_turn(
        self, turn_id: str, request: TurnRequest, context: SessionContext
    ) -> tuple[NewTurn, list[TurnStarted]]:
        """Return a turn to begin, and a list whose only item is its first input once it has begun."""
        started = TurnStarted(
            at_ms=self._services.clock.now_ms(),
            turn_id=turn_id,
            message=request.message,
            limits=request.limits or context.policy.limits,
            nonce=urandom(12).hex(),
            stages=context.plugins.stages,
            extension=request.extension,
            prompt=request.prompt,
            warns=context.artifact().preamble.warns_of_budget,
            settings=dict(request.settings),
        )
        made = [started]

        def make_input(head: SessionHead, claimed: tuple[QueuedInput, ...]) -> bytes:
            injected = [msgspec.structs.replace(item.message, input_id=item.input_id) for item in claimed]
            made[0] = msgspec.structs.replace(started, injected=tuple(injected)) if injected else started
            return encode_input(made[0])

        new = NewTurn(
            session_id=self._live.session_id,
            turn_id=turn_id,
            agent=self._agent.name,
            make_input=make_input,
            input_digest=digest_bytes(msgspec.json.encode(request.message))
            if request.idempotency_key
            else "",
            idempotency_key=request.idempotency_key,
            consumes=request.consumes,
            blobs=request.blobs,
        )
        return new, made

    async def _first(
        self, turn: Turn[Any], request: TurnRequest, begun: Begun, started: TurnStarted, deps: Any
    ) -> Driven:
        machine = TurnMachine()
        self._live.keep_deps(turn.turn_id, request.deps)
        self._live.events.show(turn, TurnBegan(turn_id=turn.turn_id, session_id=self._live.session_id))
        if begun.head.blocked is not None:
            await self._live.queue.unblock(begun.head)
        if begun.head.agent != self._agent.name:
            await self._directory.note_agent(self._live.session_id, self._agent)
        context = await self._live.context(begun.head, prepared=self._prepared)
        commands = machine.feed(started)
        driver = await self._driver(turn, machine, begun, deps, context)
        if self._spans is not None:
            self._spans.began(started, UNDER.get())
        if turn.withdrawn:
            commands = driver.feed(CancelRequested(at_ms=self._services.clock.now_ms()))
        return await self._drive(driver, commands)

    async def _take_up(self, turn: Turn[Any], backoff: Backoff) -> TurnResult[Any]:
        """Resume a turn; return its result if another process has ended it."""
        ready: tuple[TurnRunner, HeldDeps] | None = None
        try:
            while True:
                record = await self._services.store.turn(turn.turn_id)
                if record is None or record.state is TurnState.ENDED:
                    return await self._ended_elsewhere(turn)
                try:
                    ready = ready or await self._ready(turn, record)
                    return await ready[0]._take_over(turn, record, ready[1].value)
                except TurnNotFound:
                    return await self._ended_elsewhere(turn)
                except TurnNotRunnable as error:
                    left = await self._services.store.unfinished(self._services.clock.now_ms())
                    if any(one.turn_id == turn.turn_id for one in left):  # it can be resumed now
                        await self._live.queue.block(turn.turn_id, error)
                        raise
                    if record.summary is not None:  # none of its waits has ended yet
                        return await self._result(turn, record.summary, ())
                    if not await backoff.pause():  # another process runs it
                        raise
                except SessionBusy:
                    if not await backoff.pause():
                        raise
        finally:
            if ready is not None:
                await self._release(ready[1])

    async def _ended_elsewhere(self, turn: Turn[Any]) -> TurnResult[Any]:
        """Return the result of a turn that another process has ended."""
        record = await self._services.store.turn(turn.turn_id)
        if record is None or record.summary is None:
            raise TurnNotFound(turn.turn_id)
        return await self._result(turn, record.summary, await messages_of_turn(self._services.store, record))

    async def _take_over(self, turn: Turn[Any], record: TurnRecord, deps: Any) -> TurnResult[Any]:
        """Resume a turn now; raise `SessionBusy` if another worker holds its lease."""
        leases = self._services.leases
        with leases.owner() as owner:
            taken = await self._services.store.take_over(turn.turn_id, leases.claimant(owner))
            waited = record if record.state is TurnState.WAITING else None
            driven = await self._under(taken.lease, self._resume(turn, taken, deps), waited)
            return await self._conclude(turn, driven)

    async def _resume(self, turn: Turn[Any], taken: Takeover, deps: Any) -> Driven:
        """Replay a turn's journal, apply the waits that have ended, and continue to drive the turn."""
        ended = await self._services.store.ended_waits(turn.turn_id, self._services.clock.now_ms())
        replayed = replay(turn.turn_id, taken.input, taken.journal)
        machine = replayed.machine
        context = await self._own_context(taken, replayed, ended)
        self._live.events.show(
            turn, TurnBegan(turn_id=turn.turn_id, session_id=self._live.session_id, resumed=True)
        )
        await self._live.queue.unblock(taken.head)
        if not taken.record.cancel_requested:
            if machine.calls.any_cells() and context.plugins.code_executor is None:
                raise CodeExecutionUnavailable(
                    f"turn {turn.turn_id} is in the middle of a cell, but agent {self._agent.name!r} "
                    "does not run code",
                    hint='open the session with an agent that does (protocol="code", or CodeMode()), or '
                    "cancel the turn",
                )
            await self._require_price(machine.account.limits, context)
        driver = await self._driver(turn, machine, taken, deps, context, replayed)
        if self._spans is not None:
            self._spans.taken_up(taken.input, taken.journal)
        commands = driver.resume(ended, cancelled=taken.record.cancel_requested)
        return await self._drive(driver, commands)

    async def _driver(
        self,
        turn: Turn[Any],
        machine: TurnMachine,
        begun: Begun | Takeover,
        deps: Any,
        context: SessionContext,
        replayed: Replayed | None = None,
    ) -> TurnDriver:
        history = await self._live.frame.messages_at(begun.head)
        model = self._model(context)
        show: Callable[[Event], None] = functools.partial(self._live.events.show, turn)
        beside = model
        if self._services.tracer is not None:  # only a runtime with a trace needs these modules
            from standfast.trace.tracer import Tracer
            from standfast.trace.turn_spans import TracedModel, TracedTurn, TurnSpans

            assert isinstance(self._services.tracer, Tracer)
            executor = context.plugins.code_executor
            about = TracedTurn(
                session_id=self._live.session_id,
                agent=self._agent.name,
                model_id=model.model_id,
                cell_tool="" if executor is None else executor.cell_tool,
            )
            self._spans = TurnSpans(self._services.tracer, about, machine)
            show, beside = self._spans.showing(show), TracedModel(model, self._spans)
        if not context.is_static:
            await context.prepare()
        self._context = turn_context = TurnContext(
            services=self._services,
            session=context,
            head=begun.head,
            machine=machine,
            history=history,
            shows_attachments=self._live.frame.has_attachments,
            model=model,
            plugin_model=beside,
            dispatcher=self._prepared.dispatcher,
            show=show,
            create_session=functools.partial(self._directory.create_session, self._agent, self._live),
            occur=self._directory.occur,
            output=self._agent.output_type,
            deps=deps,
        )
        host = turn_context.preamble.host(turn_context)
        engine = getattr(context.plugins.code_executor, "engine_name", "")
        observer = TurnEventPublisher(turn.turn_id, show, self._spans)
        return TurnDriver(
            machine,
            begun.lease,
            host,
            observer,
            self._services,
            replayed=replayed,
            engine=functools.partial(self._services.engines.build, engine) if engine else str,
        )

    def _model(self, context: SessionContext) -> ModelProvider:
        """Return the agent's model, or the one that the session was configured with."""
        chosen = context.policy.model
        if chosen == self._prepared.policy.model:
            return self._prepared.model
        return self._services.models.named(chosen, self._live.session_id)

    async def _require_price(self, limits: UsageLimits, context: SessionContext) -> None:
        """Raise `NotConfigured` for a limit in dollars on a model whose price is unknown."""
        if limits.max_cost_usd is None:
            return
        model_id, services = self._model(context).model_id, self._services
        if not await services.threads.run(lambda: services.prices.knows(model_id)):
            raise NotConfigured(
                f"max_cost_usd needs the price of {model_id}, which is unknown",
                hint=f"pass Runtime(prices={{{model_id!r}: {{'input': ..., 'output': ...}}}}), in dollars "
                "per million tokens, or install standfast[prices], which knows most models",
            )

    async def _drive(self, driver: TurnDriver, commands: list[Command]) -> Driven:
        """Execute *commands* and all that follow from them, until the turn ends or parks."""
        live, turn, leases = self._live, self._context, self._services.leases
        assert turn is not None
        live.driver, live.in_turn = driver, turn.session
        leases.hold(driver)
        outer, hook = RUNNING_TURN.get(), HOOK.get()
        RUNNING_TURN.set(turn)
        HOOK.set("")
        try:
            driven = await driver.drive(commands)
        finally:
            RUNNING_TURN.set(outer)
            HOOK.set(hook)
            live.driver = live.in_turn = None
            leases.let_go(driver)
        spent, calls = turn.account.end()
        if calls:  # model calls outside the turn, too late to be charged to it
            await self._services.store.add_usage(live.session_id, spent, calls, self._services.clock.now_ms())
        return driven

    async def _conclude(self, turn: Turn[Any], driven: Driven) -> TurnResult[Any]:
        assert self._context is not None
        live, machine, summary = self._live, self._context.machine, driven.summary
        if isinstance(driven, Committed):
            assert type(summary.outcome) is not Waiting
            live.frame.append(self._context.head, driven.head, machine)
            await self._persisted(turn.turn_id, summary.outcome, driven.head, self._context.session)
            if live.session_id in self._directory.background.watched:
                await self._directory.background.session_moved(live.session_id)
            event: Event = TurnCommitted(
                turn_id=turn.turn_id,
                outcome=summary.outcome,
                usage=summary.usage,
                depth=driven.head.depth,
                nodes=len(machine.entries),
            )
            if self._spans is not None:
                self._spans.ended(summary.outcome, summary.usage, machine.account.ledger("turn"))
        else:
            assert type(summary.outcome) is Waiting
            event = TurnParked(turn_id=turn.turn_id, waits=summary.outcome.waits)
            if self._spans is not None:
                self._spans.parked(summary.outcome)
        live.events.show(turn, event)
        made_inputs = isinstance(driven, Committed) and bool(machine.next_messages())
        follows = made_inputs or type(summary.outcome) is FrameSwitched
        live.turn_over(turn.turn_id, summary, follows=follows)
        if made_inputs:
            live.queue.drain()
        return await self._result(turn, summary, tuple(machine.messages))

    async def _persisted(
        self, turn_id: str, outcome: Ended, head: SessionHead, context: SessionContext
    ) -> None:
        """Notify plugins that the turn was committed, and the protocol of a new frame."""
        if head.state != context.state_id:
            context.stored(head.state)
        context.options.frame = head.frame
        self._live.stood = head
        plugins = context.plugins
        if type(outcome) is FrameSwitched:
            here = ProtocolSessionContext(self._live.session_id)
            await plugins.tell_protocol("restore_session", here, context.state())
        if plugins.contributions.hooks["turn_persisted"]:
            await plugins.emit_runtime_event(
                TurnPersisted(
                    session_id=self._live.session_id, turn_id=turn_id, outcome=outcome, leaf=head.leaf
                )
            )

    async def _result(
        self, turn: Turn[Any], summary: TurnSummary, messages: tuple[Message, ...]
    ) -> TurnResult[Any]:
        facts: dict[str, Any] = {
            "turn_id": turn.turn_id,
            "session_id": self._live.session_id,
            "usage": summary.usage,
            "calls": summary.calls,
            "messages": messages,
        }
        match summary.outcome:
            case Finished() as outcome:
                output, declared = outcome.text, self._agent.output_type
                if declared is not None:
                    load = functools.partial(declared.load, outcome.value)
                    output = await self._services.threads.run(load) if declared.runs_code else load()
                return FinishedTurn(outcome=outcome, output=output, **facts)
            case FrameSwitched() as outcome:
                return FrameSwitchedTurn(outcome=outcome, **facts)
            case Waiting() as outcome:
                return WaitingTurn(outcome=outcome, **facts)
            case Stopped() as outcome:
                return StoppedTurn(outcome=outcome, **facts)
            case _:
                assert_never(summary.outcome)


def _other_agent_of_name(turn_id: str, name: str, problem: str) -> WrongAgent:
    return WrongAgent(
        f"turn {turn_id} belongs to another agent named {name!r}: {problem}",
        turn_id=turn_id,
        owner=name,
        hint="resume it with the agent that began it, or cancel the turn",
    )
