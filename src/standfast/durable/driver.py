"""Carries one turn from where it stands to its end, or to where it waits.

Theory of operation
-------------------
The driver feeds the machine and carries out its commands through an `EffectHost`. What it feeds it keeps in
`_unsaved`, and writes that down at the latest moment that the rules allow: before the next effect. So a reply
and the intents of the calls it asks for are one transaction, results that arrive together are one, and the
last reply goes into the commit itself. A plain turn costs two transactions: its input and its end.

What plugins said, where nothing follows from it, may wait for a moment (`_FLUSH_S`): if the step after it is
over sooner, both are written at once. So may everything while only code runs, or tools that only compute:
they touch nothing.

Rules
-----
1. An input is durable before any command that follows from it touches the world.
2. An effect that is not idempotent is journaled as an intent before it begins. What plugins remember is
   journaled together with the inputs that made them remember it.
3. The last reply and the commit are one transaction. It is refused if something was injected or the turn
   was cancelled in between: either is then dealt with, so that each wins or loses once.
4. Whoever lost the lease writes nothing and stops.
5. A write that fails because the store cannot be written now (disk full, I/O error, locked) is repeated while
   the lease holds: what this process knows, such as the result of a payment, is not given up for one error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar, assert_never

import msgspec

from standfast.durable.effects import Asks, EffectHost, Known, Prepared, Ready
from standfast.durable.keys import key_of, task_input_id
from standfast.errors import InternalError, LeaseLost, PluginStateLost, StoreError, StoreUnavailable
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
from standfast.machine.inputs import (
    Aborted,
    CallPrepared,
    CancelRequested,
    CheckpointPassed,
    DeadlinePassed,
    HooksRan,
    Input,
    OutputCheck,
    Resumed,
    ToolSettled,
    WaitEnded,
    WaitOpened,
    decode_input,
    encode_input,
)
from standfast.machine.turn_machine import TurnMachine
from standfast.model.approval import Approval
from standfast.model.head import SessionHead
from standfast.model.message import UserMessage
from standfast.model.outcome import Ended, FrameSwitched, StopReason, Waiting
from standfast.model.ruling import NOTHING_SAID
from standfast.model.turn import TurnSummary
from standfast.model.wait import Wait, WaitOutcome
from standfast.ports.clock import Clock
from standfast.ports.session_store import (
    Blob,
    CommitRefused,
    JournalEntry,
    Lease,
    QueuedInput,
    Save,
    Saved,
    SessionStore,
    TurnCommit,
)

T = TypeVar("T")
log: Final = logging.getLogger("standfast")

_FIRST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 2.0

_FLUSH_S: Final = 0.005
"""So long may what plugins said wait to be written, where nothing follows from it."""


class Committed(msgspec.Struct, frozen=True):
    """The turn is over."""

    head: SessionHead
    summary: TurnSummary


class Parked(msgspec.Struct, frozen=True):
    """The turn waits; anybody may go on with it when a wait ends."""

    summary: TurnSummary


Driven = Committed | Parked


class TurnObserver(Protocol):
    """Sees what happens to a turn, as it happens."""

    def fed(self, given: Input, following: Sequence[Command]) -> None:
        """The machine was told *given*, and wants *following* done."""

    def running(self, command: RunTool) -> None: ...


class DriverServices(Protocol):
    """What a driver needs of the runtime."""

    @property
    def store(self) -> SessionStore: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def sleep(self) -> Callable[[float], Awaitable[None]]: ...


class TurnDriver:
    """One turn under one lease. `drive` is called once, in a task of its own."""

    def __init__(
        self,
        machine: TurnMachine,
        lease: Lease,
        host: EffectHost,
        observer: TurnObserver,
        services: DriverServices,
        *,
        journaled: set[str] | None = None,
        intents: frozenset[str] = frozenset(),
    ) -> None:
        self.machine = machine
        self.lease = lease
        self.turn_id = machine.turn_id
        self._host = host
        self._observer = observer
        self._store = services.store
        self._clock = clock = services.clock
        self._sleep = services.sleep
        self.held_until_ms = clock.boot_ms() + lease.until_ms - clock.now_ms()
        self._keys = journaled or set()
        self._intents = intents
        self._unsaved: list[JournalEntry | tuple[str, Input]] = []  # inputs by their keys, not yet encoded
        self._urgent = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._approvals: list[Approval] = []
        self._waits: list[Wait] = []
        self._blobs: tuple[Blob, ...] = ()
        self._inbox: list[Input] = []
        self._interrupt: Input | None = None
        self._lost = False
        self._retreats = 0
        self._wake: asyncio.Future[None] | None = None
        self._asking: asyncio.Task[object] | None = None
        self._pure: set[int] = set()

    async def drive(self, commands: list[Command]) -> Driven:
        """Carry out *commands* and what follows from them, to the end."""
        timer = self._set_timer()
        try:
            while True:
                commands = self._interrupted() or commands
                result = await self._carry_out(commands)
                if isinstance(result, (Committed, Parked)):
                    return result
                commands = result
        finally:
            self._host.stop()
            if timer is not None:
                timer.cancel()
            with contextlib.suppress(StoreError):  # the turn broke already, or nothing is left to write
                await self._end_flushing()

    def resume(self, ended: Iterable[tuple[str, WaitOutcome]], *, cancelled: bool) -> list[Command]:
        """Tell the machine of a turn that waited or was left what has *ended* since; what is to be done."""
        now = self._now()
        self.feed(Resumed(at_ms=now))
        for wait_id, outcome in ended:
            self.feed(WaitEnded(at_ms=now, wait_id=wait_id, outcome=outcome))
        ended_here = self.machine.outcome
        commands: list[Command] = self.machine.outstanding() if ended_here is None else [Commit(ended_here)]
        return (self.feed(CancelRequested(at_ms=now)) or commands) if cancelled else commands

    def feed(self, given: Input) -> list[Command]:
        """Tell the machine, and remember to tell the journal."""
        key = key_of(given, self.machine, self.lease.fence)
        if key in self._keys:
            return []  # what came late for an effect that has its outcome
        self._keys.add(key)
        self._unsaved.append((key, given))
        if isinstance(given, ToolSettled) and self.machine.lacks_result(given.call_id):
            self._host.settled(given)
        self._note_states(given)
        self._urgent = self._urgent or not _can_wait(given)
        return self._tell(given)

    def _tell(self, given: Input) -> list[Command]:
        following = self.machine.feed(given)
        self._observer.fed(given, following)
        return following

    # Called from outside, on the loop of the turn

    def request_cancel(self) -> None:
        """End the turn soon. That it was asked for is on disk already."""
        self._break_in(CancelRequested(at_ms=self._now()))

    def lose(self) -> None:
        """The lease is gone: stop, and write nothing more."""
        self._lost = True
        self._break_in(CancelRequested(at_ms=self._now()))

    def _break_in(self, given: Input) -> None:
        if self._interrupt is not None:
            return
        self._interrupt = given
        # Not at once: the model's provider may be the one that asks for it, in the task that is to be ended.
        asyncio.get_running_loop().call_soon(self._stop_asking)
        self._ring()

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    def _deliver(self, given: Input) -> None:
        self._inbox.append(given)
        self._ring()

    def _ring(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # Carrying out

    async def _carry_out(self, commands: list[Command]) -> list[Command] | Driven:
        if not commands:
            return await self._await_effects()
        commands = _still_wanted(commands)
        first = commands[0]
        match first:
            case CallModel():
                return await self._call_model(first)
            case RunTool() | ContinueCell():
                self._continue([one for one in commands if isinstance(one, ContinueCell)])
                return await self._run_tools([one for one in commands if isinstance(one, RunTool)])
            case RunHooks():
                return await self._run_hooks(first)
            case PrepareCall():
                return await self._prepare_call(first)
            case Checkpoint(kind="after_work"):
                return await self._pass(first, OutputCheck())
            case Checkpoint():
                return await self._complete(first)
            case Park():
                return await self._park(first.outcome)
            case StopEffects():
                self._host.stop()
                return commands[1:]
            case Commit():
                return await self._commit(first.outcome)
            case _:
                assert_never(first)

    async def _run_hooks(self, command: RunHooks) -> list[Command]:
        self._flush_soon()
        if command.stage == "after_turn":  # the turn ends, whoever wants it to end
            return self.feed(await self._host.run_hooks(command))
        ran = await self._interruptibly(self._host.run_hooks(command))
        return [command] if ran is None else self.feed(ran)

    async def _prepare_call(self, command: PrepareCall) -> list[Command]:
        self._flush_soon()
        prepared = await self._interruptibly(self._host.prepare_call(command))
        return [command] if prepared is None else self.feed(prepared)

    async def _call_model(self, command: CallModel) -> list[Command]:
        if self._urgent:
            await self._save()
        else:
            self._flush_soon()
        answer = await self._interruptibly(self._ask(command))
        return [command] if answer is None else self.feed(answer)

    async def _ask(self, command: CallModel) -> Input:
        if command.delay_ms and (left_ms := self._left_of(command.delay_ms)) > 0:
            await self._sleep(left_ms / 1000)
        return await self._host.call_model(command)

    def _left_of(self, delay_ms: int) -> int:
        """What of a delay is still to come: it began with the failure, maybe in another process."""
        return min(delay_ms, delay_ms - (self._now() - self.machine.failed_at_ms))

    async def _interruptibly(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do *work*; None if the turn is to end and it was broken off."""
        if self._interrupt is not None:
            work.close()
            return None
        self._asking = asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError:
            if self._interrupt is None or self._asking is None:
                raise
            self._asking.uncancel()
            return None
        finally:
            self._asking = None

    def _continue(self, commands: list[ContinueCell]) -> None:
        """Let cells go on, if they have not ended meanwhile."""
        under_way = self.machine.under_way() if commands else ()
        for one in commands:
            if one.call.call_id in under_way:
                self._pure.add(one.call.call_id)
                self._host.continue_cell(one, self._deliver)

    async def _run_tools(self, commands: list[RunTool]) -> list[Command]:
        if not commands:
            return []
        prepared = await self._interruptibly(self._prepare_all(commands))
        if prepared is None:
            return [*commands]
        ready: list[Ready] = []
        # What plugins remember after these calls' hooks contains what they remember of results that came in.
        following = self._feed_arrived()
        if any(isinstance(one, StopEffects) for one in following):
            return following
        for one in prepared:
            if one.ruled is not None and (ending := self.feed(one.ruled)):
                return ending
            if isinstance(one, Ready):
                ready.append(one)
            else:
                following += self._note(one)
        self._intend(ready)
        if not ready or not all(one.pure for one in ready):
            await self._save()
        if self._interrupt is None:
            self._start(ready)
        return following

    async def _prepare_all(self, commands: list[RunTool]) -> list[Prepared]:
        """Everything before the executions; plugins rule on several calls at once."""
        if len(commands) > 1 and not commands[0].ruled:
            return await asyncio.gather(*map(self._prepare, commands))
        return [await self._prepare(command) for command in commands]

    async def _prepare(self, command: RunTool) -> Prepared:
        return await self._host.prepare(command, begun=command.key in self._intents)

    def _start(self, ready: list[Ready]) -> None:
        for one in ready:
            if one.pure:
                self._pure.add(one.command.call.call_id)
            self._observer.running(one.command)
            self._host.start(one, self._deliver)

    def _note(self, prepared: Known | Asks) -> list[Command]:
        if isinstance(prepared, Known):
            return self.feed(prepared.settled)
        if prepared.approval is not None:
            self._approvals.append(prepared.approval)
        return self._open_wait(WaitOpened(at_ms=self._now(), wait=prepared.wait))

    def _open_wait(self, given: WaitOpened) -> list[Command]:
        if given.wait.kind != "approval":
            self._waits.append(given.wait)
        return self.feed(given)

    def _intend(self, ready: list[Ready]) -> None:
        for one in ready:
            key = one.command.key
            if not one.idempotent and key not in self._intents:
                self._unsaved.append(JournalEntry(key=key, kind="intent"))

    async def _await_effects(self) -> list[Command]:
        under_way = self.machine.under_way()
        if under_way and self._pure.issuperset(under_way):
            self._flush_soon()
        else:
            await self._save()
        while not self._inbox and self._interrupt is None:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        self._wake = None
        return self._feed_arrived()

    def _feed_arrived(self) -> list[Command]:
        arrived, self._inbox = self._inbox, []
        following: list[Command] = []
        for given in arrived:
            following += self._open_wait(given) if isinstance(given, WaitOpened) else self.feed(given)
        return following

    async def _pass(self, command: Checkpoint, output: OutputCheck) -> list[Command]:
        """Make durable what is known, and claim what was injected, in one transaction."""
        now = self._now()
        key = command.key
        retreat = self._retreat(key)

        finishes = command.kind == "before_completion" and output.problem is None and not command.held

        def make(claimed: tuple[QueuedInput, ...]) -> JournalEntry:
            if not claimed and finishes:
                return retreat
            messages = tuple(
                msgspec.structs.replace(item.message, input_id=item.input_id) for item in claimed
            )
            passed = CheckpointPassed(at_ms=now, kind=command.kind, messages=messages, output=output)
            return JournalEntry(key=key, kind="input", body=encode_input(passed))

        entry = await self._save(make)
        assert entry is not None
        if entry.key == retreat.key:
            return [command]
        self._keys.add(key)
        return self._tell(decode_input(entry.body))

    def _retreat(self, key: str) -> JournalEntry:
        """Says that what was injected is withdrawn, and no more than that: the checkpoint is not passed.

        Only a commit may finish a turn, because it alone is refused if more has come in the meantime.
        """
        self._retreats += 1
        return JournalEntry(key=f"{key}.retreat.{self.lease.fence}.{self._retreats}", kind="intent")

    async def _complete(self, command: Checkpoint) -> list[Command] | Driven:
        """Finish the turn, unless the answer does not fit or something came in."""
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
                Aborted(at_ms=self._now(), reason=StopReason.PLUGIN_ABORT, error=lost.error_object())
            )
        if isinstance(committed, Committed):
            passed = CheckpointPassed(at_ms=self._now(), kind=command.kind, output=output)
            self.machine.feed(passed)
            return committed
        if committed.reason == "injected":
            return await self._pass(command, output)
        return self.feed(CancelRequested(at_ms=self._now()))

    async def _commit(self, outcome: Ended) -> Driven:
        committed = await self._write_end(outcome, tolerant=True)
        if isinstance(committed, CommitRefused):
            raise InternalError(f"the end of turn {self.turn_id} was refused: {committed.reason}")
        return committed

    async def _write_end(self, outcome: Ended, *, tolerant: bool) -> Committed | CommitRefused:
        """Commit. If not *tolerant*, a plugin whose state cannot be kept is an error."""
        await self._host.finalizing(outcome)
        await self._end_flushing()
        self._require_lease()
        summary = self.machine.summary(outcome)
        kept = await self._host.kept(tolerant=tolerant)
        self._require_lease()
        blobs = self._take_blobs()
        commit = TurnCommit(
            turn_id=self.turn_id,
            now_ms=self._now(),
            entries=tuple(self.machine.whole()),
            summary=summary,
            model_calls=self.machine.model_calls,
            usage=self.machine.ledger("turn"),
            enqueue=self._next_inputs(outcome),
            state=kept.state,
            blobs=(*blobs, *kept.blobs),
        )
        written = await self._write(lambda: self._store.commit(self.lease, commit))
        if isinstance(written, CommitRefused):
            self._blobs = blobs
            return written
        return Committed(written, summary)

    def _next_inputs(self, outcome: Ended) -> tuple[QueuedInput, ...]:
        """What turns of its own begin with: a new frame's task, and what plugins want said after the turn."""
        task = self._task_of(outcome)
        said = (
            QueuedInput(
                input_id=f"{self.turn_id}.after.{number}",
                session_id=self.lease.session_id,
                kind="queue",
                message=message,
                created_at=self._now(),
            )
            for number, message in enumerate(self.machine.next_messages(), 1)
        )
        return (*said,) if task is None else (task, *said)

    def _task_of(self, outcome: Ended) -> QueuedInput | None:
        """The task that a new frame begins with, as the input of a turn of its own."""
        if not isinstance(outcome, FrameSwitched) or outcome.switch.task is None:
            return None
        return QueuedInput(
            input_id=task_input_id(self.turn_id),
            session_id=self.lease.session_id,
            kind="queue",
            message=UserMessage(content=outcome.switch.task),
            created_at=self._now(),
        )

    async def _park(self, outcome: Waiting) -> list[Command] | Parked:
        ended = await self._host.parking()
        if ended is not None:
            return self.feed(ended)
        await self._end_flushing()
        self._require_lease()
        summary = self.machine.summary(outcome)
        self._note_states()  # what the host has changed since
        save = self._take_unsaved()
        await self._write(lambda: self._store.park(self.lease, save, summary))
        return Parked(summary)

    # Writing down

    def _flush_soon(self) -> None:
        """Have what is known written in a moment, if nobody does so before."""
        if self._unsaved and self._flush_timer is None and self._flushing is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(_FLUSH_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_timer = None
        if self._unsaved and not self._lost:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        urgent = self._urgent
        save = self._take_unsaved()
        self._urgent = urgent  # what must be written first is, only once this is over
        self._heed(await self._write(lambda: self._store.save(self.lease, save)))
        self._flushing = None  # if it fails, `_end_flushing` finds it
        self._flush_soon()

    async def _end_flushing(self) -> None:
        """Wait for what is being written: what comes later must not overtake it."""
        flushing, self._flushing = self._flushing, None
        try:
            if flushing is not None:
                await flushing
        finally:
            if self._flush_timer is not None:
                self._flush_timer.cancel()
                self._flush_timer = None

    async def _save(
        self, make_checkpoint: Callable[[tuple[QueuedInput, ...]], JournalEntry] | None = None
    ) -> JournalEntry | None:
        self._require_lease()
        await self._end_flushing()
        if not self._unsaved and make_checkpoint is None:
            self._urgent = False
            return None
        save = self._take_unsaved()
        if make_checkpoint is not None:
            save = msgspec.structs.replace(save, make_checkpoint=make_checkpoint)
        saved = await self._write(lambda: self._store.save(self.lease, save))
        self._heed(saved)
        return saved.checkpoint

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T:
        """Return what *write* returns; while the store is unavailable and the lease holds, call it again."""
        pause_s = _FIRST_RETRY_S
        while True:
            try:
                return await write()
            except StoreUnavailable as error:
                left_s = (self.held_until_ms - self._clock.boot_ms()) / 1000
                if not error.retryable or left_s <= 0:
                    raise
                if pause_s == _FIRST_RETRY_S:
                    log.warning(
                        "session %s, turn %s: cannot write to the store (%s); retrying until the lease ends",
                        self.lease.session_id,
                        self.turn_id,
                        error,
                    )
                await self._sleep(min(pause_s, left_s))
            self._require_lease()
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)

    def _heed(self, saved: Saved) -> None:
        if saved.cancel_requested and "cancel_requested" not in self._keys:
            self.request_cancel()

    def _note_states(self, given: Input | None = None) -> None:
        """Put what plugins remember to what made them remember it: hooks under way are not done yet."""
        self._unsaved.extend(self._host.changed_states(given))

    def _take_unsaved(self) -> Save:
        save = Save(
            turn_id=self.turn_id,
            entries=tuple(map(_entry_of, self._unsaved)),
            approvals=tuple(self._approvals),
            waits=tuple(self._waits),
            blobs=self._take_blobs(),
        )
        self._unsaved, self._approvals, self._waits = [], [], []
        self._urgent = False
        return save

    def _take_blobs(self) -> tuple[Blob, ...]:
        """What is to be handed over, and what a refused commit gave back."""
        blobs, self._blobs = (*self._blobs, *self._host.take_blobs()), ()
        return blobs

    def _require_lease(self) -> None:
        if self._lost:
            raise LeaseLost(self.lease.session_id)

    # Interruptions

    def _interrupted(self) -> list[Command]:
        given, self._interrupt = self._interrupt, None
        self._require_lease()
        return [] if given is None else self.feed(given)

    def _set_timer(self) -> asyncio.TimerHandle | None:
        deadline = self.machine.deadline_ms
        if deadline is None:
            return None
        delay_s = max(0, deadline - self._now()) / 1000
        return asyncio.get_running_loop().call_later(
            delay_s, lambda: self._break_in(DeadlinePassed(at_ms=self._now()))
        )

    def _now(self) -> int:
        return self._clock.now_ms()


def _entry_of(noted: JournalEntry | tuple[str, Input]) -> JournalEntry:
    """An entry of the journal. Most turns end before anything of theirs is written there."""
    if isinstance(noted, JournalEntry):
        return noted
    key, given = noted
    return JournalEntry(key=key, kind="input", body=encode_input(given))


def _still_wanted(commands: list[Command]) -> list[Command]:
    """What is to be done: if the turn ends or has gone on, that, and nothing of what was asked for before."""
    if len(commands) == 1:
        return commands
    for at, command in enumerate(commands):
        if isinstance(command, StopEffects):
            return commands[at:]
    for at, command in enumerate(commands):
        if not isinstance(command, (RunTool, ContinueCell)):
            return commands[at:]
    return commands


def _can_wait(given: Input) -> bool:
    """Whether nothing that touches the world follows from this."""
    match given:
        case HooksRan(ruling=ruling):
            return ruling == NOTHING_SAID
        case CallPrepared(ruling=ruling, compaction=None, switch=None):
            return ruling == NOTHING_SAID
        case _:
            return False
