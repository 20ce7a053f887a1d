"""The turn driver: executes a turn's commands until the turn ends or parks.

Theory of operation
-------------------
The driver feeds inputs to the machine and executes the commands it returns through an `EffectHost`. It notes
every input in the turn's journal, which is written as late as the rules allow (see `journal`). A turn without
tool calls costs two transactions: one for its first input and one for its end.

Rules
-----
1. An input is durable before any command that follows from it has an external effect.
2. An effect that is not idempotent is journaled as an intent before it begins. A plugin's changed state is
   journaled together with the input that changed it.
3. The model's last reply and the end of the turn are written in one transaction. The store refuses it if a
   message was injected or the turn was cancelled in the meantime; the driver then handles that first.
4. A process that has lost its lease writes nothing more and stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar, assert_never

import msgspec

from standfast.durable.effects import EffectHost, EffectReady, EffectSettled, EffectWaits, Prepared
from standfast.durable.journal import DriverServices, Replayed, TurnJournal, task_input_id
from standfast.durable.prompt_future import PromptFuture
from standfast.errors import InternalError, PluginStateLost, StoreError
from standfast.machine import inputs
from standfast.machine.commands import (
    CallModel,
    Checkpoint,
    Command,
    Commit,
    ContinueCell,
    Park,
    PrepareCall,
    RunHooks,
    RunTool,
    StopEffects,
)
from standfast.machine.turn_machine import TurnMachine
from standfast.model.message import UserMessage
from standfast.model.outcome import Ended, FrameSwitched, StopReason, Waiting, WaitOutcome
from standfast.model.session import SessionHead, TurnSummary
from standfast.ports.session_store import CommitRefused, JournalEntry, Lease, QueuedInput, TurnCommit

T = TypeVar("T")


class Committed(msgspec.Struct, frozen=True):
    """The turn has ended."""

    head: SessionHead
    summary: TurnSummary


class Parked(msgspec.Struct, frozen=True):
    """The turn is waiting; any process may resume it when one of its waits ends."""

    summary: TurnSummary


Driven = Committed | Parked


class TurnObserver(Protocol):
    """A callback interface for the inputs, commands and tool calls of a running turn."""

    def fed(self, given: inputs.Input, following: Sequence[Command]) -> None:
        """Observe that the machine was fed *given* and returned the commands *following*."""

    def running(self, command: RunTool) -> None: ...


class TurnDriver:
    """The driver of one turn under one lease. Call `drive` once, in a task of its own."""

    _retreats = 0
    _task: asyncio.Task[object] | None = None
    _asking = False
    """Whether an interrupt cancels the task, which is awaiting work that may be abandoned."""

    def __init__(
        self,
        machine: TurnMachine,
        lease: Lease,
        host: EffectHost,
        observer: TurnObserver | None,
        services: DriverServices,
        *,
        replayed: Replayed | None = None,
        engine: Callable[[], str] = str,
    ) -> None:
        self.machine = machine
        self._interrupt: inputs.Input | None = None
        self._wake: PromptFuture[None] | None = None
        self._engine = engine
        self.turn_id = machine.turn_id
        self.journal = TurnJournal(
            machine.turn_id,
            lease,
            host,
            services,
            self.request_cancel,
            keys=None if replayed is None else replayed.keys,
            intents=frozenset() if replayed is None else replayed.intents,
            states=None if replayed is None else replayed.states,
        )
        self._host = host
        self._observer = observer
        self._services = services
        self._now = services.clock.now_ms
        self._sleep = services.sleep
        self._inbox: list[inputs.Input | EffectWaits] = []
        self._pure: set[int] = set()

    async def drive(self, commands: list[Command]) -> Driven:
        """Execute *commands* and all that follow from them, until the turn ends or parks."""
        self._task, timer = asyncio.current_task(), None
        if (deadline := self.machine.account.deadline_ms) is not None:
            timer = asyncio.get_running_loop().call_later(
                max(0, deadline - self._now()) / 1000,
                lambda: self._break_in(inputs.DeadlinePassed(at_ms=self._now())),
            )
        try:
            while True:
                if self.journal.lost:
                    self.journal.require_lease()
                if self._interrupt is not None:
                    given, self._interrupt = self._interrupt, None
                    commands = self.feed(given) or commands
                result = await self._execute(commands)
                if not isinstance(result, list):
                    return result
                commands = result
        finally:
            self._host.stop()
            if timer is not None:
                timer.cancel()
            if self.journal.flush is not None:
                with contextlib.suppress(StoreError):  # the turn has failed already, or has ended
                    await self.journal.end_flushing()
            self.journal.on_cancel = self._task = None  # breaks reference cycles: the turn is freed now

    def resume(self, ended: Iterable[tuple[str, WaitOutcome]], *, cancelled: bool) -> list[Command]:
        """Feed the waits that *ended* while no process drove the turn; return the commands to execute."""
        now = self._now()
        self.feed(inputs.Resumed(at_ms=now))
        for wait_id, outcome in ended:
            self.feed(inputs.WaitEnded(at_ms=now, wait_id=wait_id, outcome=outcome))
        ended_here = self.machine.outcome
        commands: list[Command] = self.machine.outstanding() if ended_here is None else [Commit(ended_here)]
        return (self.feed(inputs.CancelRequested(at_ms=now)) or commands) if cancelled else commands

    def feed(self, given: inputs.Input) -> list[Command]:
        """Note an input in the journal and feed it to the machine."""
        if not self.journal.note(given, self.machine):
            return []
        if isinstance(given, inputs.ToolSettled) and self.machine.calls.lacks_result(given.call_id):
            self._host.settled(given)
        # Journal changed plugin states next to this input, not later: hooks that run meanwhile may change
        # them.
        if states := self._host.changed_states(given):
            self.journal.note_states(states)
        following = self.machine.feed(given)
        if self._observer is not None:
            self._observer.fed(given, following)
        return following

    # Called by other components, on the turn's event loop

    def request_cancel(self) -> None:
        """Cancel the turn as soon as possible. The caller has already stored the request."""
        self._break_in(inputs.CancelRequested(at_ms=self._now()))

    def lose(self) -> None:
        """Stop the turn without writing anything more, because its lease was lost."""
        self.journal.lost = True
        self._break_in(inputs.CancelRequested(at_ms=self._now()))

    def _break_in(self, given: inputs.Input) -> None:
        if self._interrupt is not None:
            return
        self._interrupt = given
        # Deferred, because the caller may be the model provider, running in the very task to cancel.
        asyncio.get_running_loop().call_soon(
            lambda: self._asking and self._task is not None and self._task.cancel()
        )
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _deliver(self, given: inputs.Input | EffectWaits, /, *, at_once: bool = False) -> None:
        self._inbox.append(given)
        if self._wake is not None and not self._wake.done():
            # While several calls run, wait for the next loop cycle, to journal results that arrive together
            # at once.
            self._wake.set_result(None, at_once=at_once and self.machine.calls.one_runs())

    # Executing

    async def _execute(self, commands: list[Command]) -> list[Command] | Driven:
        if not commands:
            return await self._await_effects()
        if len(commands) > 1:
            commands = _still_wanted(commands)
        first = commands[0]
        if type(first) is CallModel:
            if self.journal.urgent:
                await self.journal.save()
            elif self.journal.unsaved:
                self.journal.flush_soon()
            call = self._call_later(first) if first.delay_ms else self._host.call_model(first)
            outcome = await self._interruptibly(call)
            return [first] if outcome is None else self.feed(outcome)
        if type(first) is RunTool and len(commands) == 1:
            return await self._run_tools([first])
        if type(first) is Checkpoint:
            if first.kind == "after_work":
                return await self._pass(first, inputs.OutputCheck())
            return await self._complete(first)
        match first:
            case RunTool() | ContinueCell():
                tools = []
                for one in commands:
                    if isinstance(one, RunTool):
                        tools.append(one)
                    elif isinstance(one, ContinueCell) and self.machine.calls.runs(one.call.call_id):
                        self._pure.add(one.call.call_id)
                        self._host.continue_cell(one, self._deliver)
                return await self._run_tools(tools) if tools else []
            case RunHooks():
                return await self._run_hooks(first)
            case PrepareCall():
                self.journal.flush_soon()
                prepared = await self._interruptibly(self._host.prepare_call(first))
                return [first] if prepared is None else self.feed(prepared)
            case Park():
                return await self._park(first.outcome)
            case StopEffects():
                self._host.stop()
                return commands[1:]
            case Commit():
                committed = await self._write_end(first.outcome, tolerant=True)
                if isinstance(committed, CommitRefused):
                    raise InternalError(f"the end of turn {self.turn_id} was refused: {committed.reason}")
                return committed
            case _:
                assert_never(first)

    async def _run_hooks(self, command: RunHooks) -> list[Command]:
        self.journal.flush_soon()
        if command.stage == "after_turn":  # nothing can interrupt the end of a turn
            return self.feed(await self._host.run_hooks(command))
        ran = await self._interruptibly(self._host.run_hooks(command))
        return [command] if ran is None else self.feed(ran)

    async def _call_later(self, command: CallModel) -> inputs.Input:
        # The delay counts from the failure, which may have happened in another process.
        since_failure_ms = self._now() - self.machine.failed_at_ms
        left_ms = min(command.delay_ms, command.delay_ms - since_failure_ms)
        if left_ms > 0:
            await self._sleep(left_ms / 1000)
        return await self._host.call_model(command)

    async def _interruptibly(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await *work* and return its result, or None if a cancellation or the deadline interrupted it.

        A command whose work was interrupted is executed again, unless the interrupt leads to others.
        """
        if self._interrupt is not None:
            work.close()
            return None
        self._asking = True
        try:
            return await work
        except asyncio.CancelledError:
            if self._interrupt is None or self._task is None:
                raise
            self._task.uncancel()
            return None
        finally:
            self._asking = False

    async def _run_tools(self, commands: list[RunTool]) -> list[Command]:
        alone = len(commands) == 1 and not self.journal.intents
        at_once = self._host.ready_at_once(commands[0]) if alone else None
        prepared: list[Prepared] | None = [at_once] if at_once is not None else None
        prepared = prepared or await self._interruptibly(self._prepare_all(commands))
        if prepared is None:
            return [*commands]
        ready: list[EffectReady] = []
        # Feed the results that have arrived first: the plugin states after these hooks already include them.
        following = self._feed_arrived() if self._inbox else []
        if following and any(isinstance(one, StopEffects) for one in following):
            return following
        for one in prepared:
            if one.ruled is not None and (ending := self.feed(one.ruled)):
                return ending
            if type(one) is EffectReady:
                ready.append(one)
            elif type(one) is EffectSettled:
                following += self.feed(one.settled)
            else:
                self.journal.note_wait(one.wait, one.approval)
                now, wait_id = self._now(), one.wait.wait_id
                opened = self.feed(inputs.WaitOpened(at_ms=now, wait=one.wait))
                if one.granted is not None:  # a grant has approved the call, so the turn does not park
                    opened = self.feed(inputs.WaitEnded(at_ms=now, wait_id=wait_id, outcome=one.granted))
                following += opened
        # Parking writes the waits, so save them now only if the host has to suspend a cell before it parks.
        must_save = not ready and not (
            any(isinstance(one, Park) for one in following) and self._host.parks_at_once
        )
        for one in ready:
            must_save = must_save or not one.pure
            if not one.idempotent:
                self.journal.intend(one.command.key)
        if must_save:
            await self.journal.save()
        for one in ready if self._interrupt is None else ():
            if one.pure:
                self._pure.add(one.command.call.call_id)
            if self._observer is not None:
                self._observer.running(one.command)
            self._host.start(one, self._deliver)
        return following or await self._await_effects()

    async def _prepare_all(self, commands: list[RunTool]) -> list[Prepared]:
        """Prepare each call for execution. Plugins rule on several new calls concurrently."""
        prepare, intents = self._host.prepare, self.journal.intents
        if len(commands) > 1 and not commands[0].ruled:
            begun = (prepare(one, begun=bool(intents) and one.key in intents) for one in commands)
            return await asyncio.gather(*begun)
        prepared: list[Prepared] = []
        for one in commands:
            ready = None if intents else self._host.ready_at_once(one)
            prepared.append(ready or await prepare(one, begun=bool(intents) and one.key in intents))
        return prepared

    async def _await_effects(self) -> list[Command]:
        if self._inbox:  # starting a cell may run it to its end, or to its next call
            return self._feed_arrived()
        journal = self.journal
        under_way = self.machine.calls.under_way() if self._pure else ()
        if under_way and self._pure.issuperset(under_way):
            journal.flush_soon()
        elif journal.unsaved or journal.flush is not None:
            await journal.save()
        while not self._inbox and self._interrupt is None:
            self._wake = PromptFuture()
            await self._wake
        self._wake = None
        return self._feed_arrived()

    def _feed_arrived(self) -> list[Command]:
        arrived, self._inbox = self._inbox, []
        following: list[Command] = []
        for given in arrived:
            if type(given) is EffectWaits:
                self.journal.note_wait(given.wait, given.approval)
                given = inputs.WaitOpened(at_ms=self._now(), wait=given.wait)
            following += self.feed(given)
        return following

    # Checkpoints and ends

    async def _pass(self, command: Checkpoint, output: inputs.OutputCheck) -> list[Command]:
        """Write the journal and claim the injected messages, in one transaction."""
        now = self._now()
        key = command.key
        finishes = command.kind == "before_completion" and output.problem is None and not command.held
        # Written if the injected message was withdrawn before it could be claimed: the checkpoint is not
        # passed and is tried again. Only a commit may finish a turn, because a commit is refused if another
        # message has been injected in the meantime.
        self._retreats += 1
        retreat_key = f"{key}.retreat.{self.journal.lease.fence}.{self._retreats}"

        made: list[inputs.CheckpointPassed] = []

        def make(claimed: tuple[QueuedInput, ...]) -> JournalEntry:
            if not claimed and finishes:
                return JournalEntry(key=retreat_key, kind="intent")
            messages = tuple(
                msgspec.structs.replace(item.message, input_id=item.input_id) for item in claimed
            )
            passed = inputs.CheckpointPassed(at_ms=now, kind=command.kind, messages=messages, output=output)
            made.append(passed)
            encode = inputs.encode_input if messages or output.value is not None else msgspec.json.encode
            return JournalEntry(key=key, kind="input", body=encode(passed))

        entry = await self.journal.save(make)
        assert entry is not None
        if entry.key == retreat_key:
            return [command]
        self.journal.keys.add(key)
        passed = made[-1]  # a store that retries its transaction calls `make` again
        following = self.machine.feed(passed)
        if self._observer is not None:
            self._observer.fed(passed, following)
        return following

    async def _complete(self, command: Checkpoint) -> list[Command] | Driven:
        """Finish the turn, unless the answer does not match the output type or a message was injected."""
        output = await self._interruptibly(self._host.check_output(command.text))
        if output is None:
            return [command]
        if command.held or output.problem is not None:
            return await self._pass(command, output)
        answer = self.machine.answer(output.value)
        if command.closing:
            return await self._run_hooks(RunHooks("after_turn", command.closing, answer))
        try:
            committed = await self._write_end(answer, tolerant=False)
        except PluginStateLost as lost:
            return self.feed(
                inputs.Aborted(at_ms=self._now(), reason=StopReason.PLUGIN_ABORT, error=lost.error_object())
            )
        if isinstance(committed, Committed):
            self.machine.finish(answer)
            return committed
        if committed.reason == "injected":
            return await self._pass(command, output)
        return self.feed(inputs.CancelRequested(at_ms=self._now()))

    async def _write_end(self, outcome: Ended, *, tolerant: bool) -> Committed | CommitRefused:
        """Commit the turn. Raise if a plugin cannot snapshot; if *tolerant*, keep its previous state."""
        journal = self.journal
        await self._host.finalizing(outcome)
        if journal.flush is not None:
            await journal.end_flushing()
        summary = self.machine.summary(outcome)
        kept = await self._host.kept(tolerant=tolerant)
        if journal.lost:
            journal.require_lease()
        blobs = journal.take_blobs()
        commit = TurnCommit(
            turn_id=self.turn_id,
            now_ms=self._now(),
            entries=tuple(self.machine.whole()),
            summary=summary,
            model_calls=self.machine.account.model_calls,
            usage=self.machine.account.ledger("turn"),
            enqueue=self._next_inputs(outcome),
            state=kept.state,
            blobs=(*blobs, *kept.blobs),
            journal=journal.entries() if journal.keeps else None,
        )
        written = await journal.write(self._services.store.commit, journal.lease, commit)
        if not isinstance(written, SessionHead):
            journal.return_blobs(blobs)
            return written
        return Committed(written, summary)

    def _next_inputs(self, outcome: Ended) -> tuple[QueuedInput, ...]:
        """Return the inputs of later turns: a new frame's task and the messages that plugins enqueued."""
        messages = self.machine.next_messages()
        if not messages and type(outcome) is not FrameSwitched:
            return ()
        said = [(f"{self.turn_id}.after.{number}", message) for number, message in enumerate(messages, 1)]
        if type(outcome) is FrameSwitched and outcome.switch.task is not None:
            said.insert(0, (task_input_id(self.turn_id), UserMessage(content=outcome.switch.task)))
        return tuple(
            QueuedInput(
                input_id=input_id,
                session_id=self.journal.lease.session_id,
                kind="queue",
                message=message,
                created_at=self._now(),
            )
            for input_id, message in said
        )

    async def _park(self, outcome: Waiting) -> list[Command] | Parked:
        journal = self.journal
        ended = await self._host.parking()
        if ended is not None:
            return self.feed(ended)
        await journal.end_flushing()
        journal.require_lease()
        summary = self.machine.summary(outcome)
        if self.machine.calls.any_cells():
            summary = msgspec.structs.replace(summary, engine=self._engine())
        journal.note_states(self._host.changed_states(None))  # those that changed while the host was parking
        save = journal.take()
        await journal.write(self._services.store.park, journal.lease, save, summary)
        return Parked(summary)


def _still_wanted(commands: list[Command]) -> list[Command]:
    """Drop the tool calls that precede a later step, and everything that precedes a `StopEffects`."""
    for at, command in enumerate(commands):
        if isinstance(command, StopEffects):
            return commands[at:]
    for at, command in enumerate(commands):
        if not isinstance(command, (RunTool, ContinueCell)):
            return commands[at:]
    return commands
