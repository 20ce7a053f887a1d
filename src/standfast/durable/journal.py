"""A turn's journal, and the lease under which it is written.

Theory of operation
-------------------
`TurnJournal` buffers the inputs that the driver feeds to the machine and writes them as late as the rules
allow: before the next effect. So a reply and the intents of the calls it requests are one transaction,
results that arrive together are one, and the commit itself writes the last reply. `replay` feeds a stored
journal to a fresh machine, which then has the state it had in the process that died. `LeaseKeeper` renews the
leases of all turns that run in this process.

A hook ruling that requests nothing may be written a moment later (`_FLUSH_S`): if the next step takes less
time, one transaction writes both. The same holds for everything while only cells and pure tools run, because
they have no external effects.

Rules
-----
1. An input's key names the effect that produced it, not its position. So concurrent calls may finish in any
   order, and recovery never assigns one call's result to another.
2. A later write never overtakes an earlier one.
3. A process that has lost the lease writes nothing.
4. A write that fails because the store is temporarily unavailable (disk full, I/O error, locked) is retried
   while the lease holds, so that one error does not lose a result that only this process has, such as that of
   a payment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, ParamSpec, Protocol, TypeVar, assert_never

import msgspec

from standfast import errors
from standfast.durable.effects import ChangedState, EffectHost
from standfast.durable.process_identity import is_dead, machine, process_name
from standfast.machine import inputs
from standfast.machine.turn_machine import TurnMachine
from standfast.model.approval import Approval
from standfast.model.outcome import Wait
from standfast.model.ruling import NOTHING_SAID
from standfast.ports import session_store as port
from standfast.ports.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")
MakeCheckpoint = Callable[[tuple[port.QueuedInput, ...]], port.JournalEntry]
"""A function that makes a checkpoint's journal entry from the injected messages that it claims."""
log: Final = logging.getLogger("standfast")

_FIRST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 2.0

_FLUSH_S: Final = 0.005
"""How long the write of an input may be delayed if no external effect follows from it."""

_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.25
HEARTBEAT_MS: Final = 20_000
"""How often a process updates the records of the tasks it is running."""
SILENT_MS: Final = 90_000
"""After this time without an update of its record, a task on another machine counts as abandoned."""
_owners: Final[set[str]] = set()
_numbers: Final = itertools.count(1)


def task_input_id(turn_id: str) -> str:
    """Return the id of the input that *turn_id* enqueues to start the next turn, in a new frame."""
    return f"{turn_id}.task"


def key_of(given: inputs.Input, machine: TurnMachine, fence: int) -> str:
    """Return the journal key of an input that is about to be fed to *machine*."""
    if type(given) is inputs.ToolSettled:
        return f"tool.{given.call_id}"
    if type(given) is inputs.ModelReplied:
        return f"model.{machine.account.model_calls}"
    match given:
        case inputs.ModelFailed():
            return f"model.{machine.account.model_calls}"
        case inputs.CellPaused(call_id=call_id, number=number):
            return f"cell.{call_id}.{number}"
        case inputs.FinishRequested(call_id=call_id):
            return f"finish.{call_id}"
        case inputs.HooksRan(stage=stage, number=number):
            return f"hooks.{stage}.{number}"
        case inputs.CallPrepared(number=number):
            return f"prepare.{number}"
        case inputs.CallRuled(call_id=call_id):
            return f"ruled.{call_id}"
        case inputs.CallTimedOut(call_id=call_id, attempt=attempt):
            return f"timeout.{call_id}.{attempt}"
        case inputs.WaitOpened(wait=wait):
            return f"wait.{wait.wait_id}"
        case inputs.WaitEnded(wait_id=wait_id):
            return f"waited.{wait_id}"
        case inputs.CheckpointPassed():
            return f"checkpoint.{machine.checkpoints}"
        case inputs.Resumed():
            return f"resumed.{fence}"
        case (
            inputs.TurnStarted()
            | inputs.FrameSwitchRequested()
            | inputs.CancelRequested()
            | inputs.DeadlinePassed()
            | inputs.Aborted()
        ):
            return str(type(given).__struct_config__.tag)
        case _:
            assert_never(given)


class Replayed(msgspec.Struct, frozen=True):
    """A replayed machine, with the journal's input keys, its intents and the plugin states in it."""

    machine: TurnMachine
    keys: set[str]
    intents: frozenset[str]
    states: dict[str, bytes]


def journaled_inputs(
    turn_id: str, first: bytes, journal: Iterable[port.JournalEntry]
) -> Iterator[inputs.Input]:
    """Yield all inputs of a turn, starting with the first. Raise `RecordCorrupt` if one cannot be decoded."""
    saved = ((entry.key, entry.body) for entry in journal if entry.kind == "input")
    for key, body in (("turn_started", first), *saved):
        try:
            given: inputs.Input = inputs.decode_input(body)
        except msgspec.DecodeError as error:
            raise errors.RecordCorrupt(f"{key} of turn {turn_id} ({error})") from None
        if isinstance(given, inputs.TurnStarted) != (key == "turn_started"):
            raise errors.RecordCorrupt(f"{key} of turn {turn_id}")
        yield given


def replay(turn_id: str, first: bytes, journal: tuple[port.JournalEntry, ...]) -> Replayed:
    """Feed a turn's journal to a fresh machine and return it with the journal's keys, intents and states."""
    machine = TurnMachine()
    for given in journaled_inputs(turn_id, first, journal):
        machine.feed(given)
    return Replayed(
        machine,
        {entry.key for entry in journal if entry.kind == "input"},
        frozenset(entry.key for entry in journal if entry.kind == "intent"),
        {entry.key: entry.body for entry in journal if entry.kind == "state"},
    )


class DriverServices(Protocol):
    """The services of the runtime that a driver uses."""

    @property
    def store(self) -> port.SessionStore: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def sleep(self) -> Callable[[float], Awaitable[None]]: ...

    @property
    def keeps_journals(self) -> bool:
        """Whether a turn's journal is kept after the turn has ended."""


class TurnJournal:
    """The journal of one turn under one lease. Calls *on_cancel* if the store reports a cancellation."""

    urgent = False
    """Whether the buffer has an entry that must be written before the next effect."""
    held_until_ms: int | None = None
    """The boot-time clock's reading until which no other process may take the lease; set by `hold`."""
    _replaced = 0
    _approvals: tuple[Approval, ...] = ()
    _waits: tuple[Wait, ...] = ()
    _blobs: tuple[port.Blob, ...] = ()

    def __init__(
        self,
        turn_id: str,
        lease: port.Lease,
        host: EffectHost,
        services: DriverServices,
        on_cancel: Callable[[], None],
        *,
        keys: set[str] | None = None,
        intents: frozenset[str] = frozenset(),
        states: dict[str, bytes] | None = None,
    ) -> None:
        self.turn_id = turn_id
        self.lease = lease
        self.lost = False
        self.flush: asyncio.TimerHandle | asyncio.Task[None] | None = None
        """The flush that is scheduled or running."""
        self.keeps = services.keeps_journals
        self._states = states or {}
        self.intents = intents
        self.keys = keys or set()
        self.unsaved: list[
            port.JournalEntry | ChangedState | tuple[str, inputs.Input]
        ] = []  # inputs by their keys, not yet encoded
        self._services = services
        self._host = host
        self.on_cancel: Callable[[], None] | None = on_cancel

    def note(self, given: inputs.Input, machine: TurnMachine) -> bool:
        """Buffer an input before *machine* is fed it; return False if its effect already has an outcome."""
        key = key_of(given, machine, self.lease.fence)
        if key in self.keys:
            return False
        self.keys.add(key)
        self.unsaved.append((key, given))
        if type(given) is inputs.HooksRan or type(given) is inputs.CallPrepared:
            opens = isinstance(given, inputs.CallPrepared) and (given.compaction or given.switch)
            if given.ruling == NOTHING_SAID and not opens:
                return True  # no external effect follows from it
        self.urgent = True
        return True

    def intend(self, key: str) -> None:
        """Buffer an intent: the effect *key*, which is not idempotent, is about to begin."""
        if key not in self.intents:
            self.unsaved.append(port.JournalEntry(key=key, kind="intent"))

    def note_wait(self, wait: Wait, approval: Approval | None = None) -> None:
        """Buffer a wait, with its approval request if it waits for a person."""
        if approval is not None:
            self._approvals += (approval,)
        if wait.kind != "approval":
            self._waits += (wait,)

    def entries(self) -> tuple[port.JournalEntry, ...]:
        """Return all unsaved entries, encoded."""
        entries = []
        for noted in self.unsaved:
            if isinstance(noted, tuple):
                key, given = noted
                noted = port.JournalEntry(key=key, kind="input", body=inputs.encode_input(given))
            elif isinstance(noted, ChangedState):
                noted = noted.entry()
            entries.append(noted)
        return tuple(entries)

    def note_states(self, states: tuple[port.JournalEntry | ChangedState, ...]) -> None:
        """Buffer plugin states. If journals are kept, buffer the state that each one replaces before it."""
        for state in states:
            if self.keeps:
                state = state.entry() if isinstance(state, ChangedState) else state
                self._replaced += 1
                key = f"{state.key}@{self.lease.fence}.{self._replaced}"
                past = self._states.get(state.key, b"")
                self.unsaved.append(port.JournalEntry(key=key, kind="past", body=past))
                self._states[state.key] = state.body
            self.unsaved.append(state)

    def take(self, make_checkpoint: MakeCheckpoint | None = None) -> port.Save:
        """Empty the buffer and return its contents as a `Save`, which the caller writes now."""
        save = port.Save(
            turn_id=self.turn_id,
            entries=self.entries(),
            approvals=self._approvals,
            waits=self._waits,
            blobs=self.take_blobs(),
            make_checkpoint=make_checkpoint,
        )
        self.unsaved, self._approvals, self._waits = [], (), ()
        self.urgent = False
        return save

    def take_blobs(self) -> tuple[port.Blob, ...]:
        """Return the blobs that are not stored yet, including those of a refused commit."""
        blobs, self._blobs = (*self._blobs, *self._host.take_blobs()), ()
        return blobs

    def return_blobs(self, blobs: tuple[port.Blob, ...]) -> None:
        """Keep *blobs* for the next write: the commit they belonged to was refused."""
        self._blobs = blobs

    def require_lease(self) -> None:
        if self.lost:
            raise errors.LeaseLost(self.lease.session_id)

    # Writing

    async def save(self, make_checkpoint: MakeCheckpoint | None = None) -> port.JournalEntry | None:
        """Write all unsaved entries; return the entry that *make_checkpoint* made."""
        if self.lost:
            self.require_lease()
        if self.flush is not None:
            await self.end_flushing()
        if not self.unsaved and make_checkpoint is None:
            self.urgent = False
            return None
        saved = await self.write(self._services.store.save, self.lease, self.take(make_checkpoint))
        if saved.cancel_requested:
            self._heed_cancel()
        return saved.checkpoint

    def flush_soon(self) -> None:
        """Schedule a write of all unsaved entries after `_FLUSH_S`, unless one is already scheduled."""
        if self.unsaved and self.flush is None:
            self.flush = asyncio.get_running_loop().call_later(_FLUSH_S, self._flush_now)

    def _flush_now(self) -> None:
        self.flush = None
        if self.unsaved and not self.lost:
            self.flush = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        urgent = self.urgent
        save = self.take()
        self.urgent = urgent  # effects still have to wait until this write is done
        if (await self.write(self._services.store.save, self.lease, save)).cancel_requested:
            self._heed_cancel()
        self.flush = None  # on failure it stays set, and `end_flushing` raises the error
        self.flush_soon()

    async def end_flushing(self) -> None:
        """Wait for a running flush, which a later write must not overtake, and cancel a scheduled one."""
        flush, self.flush = self.flush, None
        if isinstance(flush, asyncio.Future):
            try:
                await flush
            finally:
                await self.end_flushing()  # it may have scheduled another one
        elif flush is not None:
            flush.cancel()

    def _heed_cancel(self) -> None:
        """Tell the driver that the turn is to be cancelled, unless it knows."""
        if "cancel_requested" not in self.keys and self.on_cancel is not None:
            self.on_cancel()

    async def write(self, write: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call *write* and return its result, retrying while the store is unavailable and the lease holds."""
        pause_s = _FIRST_RETRY_S
        while True:
            try:
                return await write(*args, **kwargs)
            except errors.StoreUnavailable as error:
                left_s = self._lease_left_s()
                if not error.retryable or left_s <= 0:
                    raise
                if pause_s == _FIRST_RETRY_S:
                    log.warning(
                        "session %s, turn %s: cannot write to the store (%s); retrying until the lease ends",
                        self.lease.session_id,
                        self.turn_id,
                        error,
                    )
                await self._services.sleep(min(pause_s, left_s))
            self.require_lease()
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)

    def _lease_left_s(self) -> float:
        """Return for how long no other process may take the lease."""
        if self.held_until_ms is None:
            return (self.lease.until_ms - self._services.clock.now_ms()) / 1000
        return (self.held_until_ms - self._services.clock.boot_ms()) / 1000


# Leases


def new_owner(epoch: str) -> str:
    """Return a new lease owner's name, valid until `retire`.

    Each turn has a name of its own, so that a lease which could not be released does not block a later turn.
    """
    owner = f"{process_name(os.getpid())}/{epoch}.{next(_numbers)}"
    _owners.add(owner)
    return owner


def retire(owner: str) -> None:
    """Forget a lease owner's name: its turn no longer runs in this process."""
    _owners.discard(owner)


def owner_is_dead(owner: str) -> bool:
    """Return whether the turn of this owner has provably stopped running."""
    process = owner.rpartition("/")[0]
    return owner not in _owners if process == process_name(os.getpid()) else is_dead(process)


def owner_is_gone(owner: str, written_ms: int, now_ms: int) -> bool:
    """Return whether *owner* is dead, or is on another machine and last wrote more than `SILENT_MS` ago."""
    where = owner.rpartition("/")[0].rsplit(":", 2)[0]
    return owner_is_dead(owner) or (where != machine() and now_ms - written_ms > SILENT_MS)


class _OwnerName:
    """A context manager that returns a lease owner's name and retires it on exit."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> str:
        return self._name

    def __exit__(self, *raised: object) -> None:
        _owners.discard(self._name)


class Backoff:
    """Exponential backoff: each pause is longer than the last, `limit_s` seconds in total."""

    __slots__ = ("_left_s", "_pause_s")

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s
        self._pause_s = _FIRST_PAUSE_S

    async def pause(self) -> bool:
        """Sleep and return True, or return False immediately if the limit is reached."""
        if self._left_s <= 0:
            return False
        await asyncio.sleep(self._pause_s)
        self._left_s -= self._pause_s
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True


class LeasedTurn(Protocol):
    """A running turn, which holds the lease of its journal."""

    @property
    def journal(self) -> TurnJournal: ...

    def lose(self) -> None:
        """Stop the turn, because its lease was lost."""

    def request_cancel(self) -> None:
        """Cancel the turn, because a caller in another process requested it."""


class LeaseKeeper:
    """Claims and renews the leases of this process's turns, and polls for cancellations by other processes.

    One task renews all leases, three times per lease duration. If a lease is lost, its turn is stopped: the
    store would refuse all further writes of that turn.
    """

    def __init__(self, store: port.SessionStore, clock: Clock, lease_ms: int, epoch: str = "") -> None:
        self._store = store
        self._clock = clock
        self._epoch = epoch
        self.lease_ms = lease_ms
        self.offset_ms = clock.now_ms() - clock.boot_ms()
        self._holders: dict[str, LeasedTurn] = {}
        self._renews = False
        self._task: asyncio.Task[None] | None = None

    def now_ms(self) -> int:
        """Return the time by which leases expire. Setting the system clock does not affect it."""
        return self._clock.boot_ms() + self.offset_ms

    def owner(self) -> _OwnerName:
        """Return a context manager with a new lease owner's name, which is valid until it exits."""
        return _OwnerName(new_owner(self._epoch))

    def claimant(self, owner: str) -> port.Claimant:
        """Return a claim to a lease for *owner*, starting now."""
        return port.Claimant(
            owner=owner,
            now_ms=self._clock.now_ms(),
            lease_ms=self.lease_ms,
            lease_now_ms=self._clock.boot_ms() + self.offset_ms,
        )

    async def begin(
        self,
        new: port.NewTurn,
        owner: str,
        backoff: Backoff | None,
        withdrawn: Callable[[], bool],
        take_up: Callable[[str], Awaitable[object]],
    ) -> port.Begun | port.Repeated | None:
        """Begin a turn once its session is free; return None if the input is *withdrawn* before that.

        If the session has an unfinished turn, *take_up* resumes it first. Raise `TurnUnfinished` if that turn
        is still waiting, and `SessionBusy` when *backoff* reaches its limit; without one, there is no limit.
        """
        while not withdrawn():
            try:
                return await self._store.begin(new, self.claimant(owner))
            except errors.TurnUnfinished as unfinished:
                if unfinished.waits and not await self.can_continue(unfinished.turn_id):
                    raise
                await take_up(unfinished.turn_id)
            except errors.SessionBusy:
                backoff = backoff or Backoff(math.inf)
                if not await backoff.pause():
                    raise
        return None

    async def can_continue(self, turn_id: str) -> bool:
        """Return whether a parked turn can be resumed: it was cancelled, or one of its waits has ended."""
        record = await self._store.turn(turn_id)
        if record is not None and record.cancel_requested:
            return True
        return bool(await self._store.ended_waits(turn_id, self._clock.now_ms()))

    def hold(self, holder: LeasedTurn) -> None:
        """Renew the holder's lease until `let_go`."""
        journal = holder.journal
        journal.held_until_ms = journal.lease.until_ms - self.offset_ms
        self._holders[journal.turn_id] = holder
        if not self._renews:
            self._renews = True
            self.start_renewing()

    def start_renewing(self) -> None:
        """Start the task that renews leases, unless it is already running."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._renew_forever())

    def let_go(self, holder: LeasedTurn) -> None:
        self._holders.pop(holder.journal.turn_id, None)

    async def give_back(self, lease: port.Lease, error: BaseException) -> None:
        """Release the lease of a turn that failed with *error*, so that another process can take over."""
        if not isinstance(error, errors.LeaseLost):
            with contextlib.suppress(errors.StoreError):
                await self._store.renew((lease,), self.now_ms(), 0)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            self._renews = False

    async def _renew_forever(self) -> None:
        rounds = max(1, self.lease_ms // 3000)
        while True:
            for _ in range(rounds):
                await asyncio.sleep(min(self.lease_ms / 3000, 1.0))
                await self.look()
            if self._holders:
                await self.renew_all()

    async def look(self) -> None:
        """Cancel the turns whose cancellation another process has requested."""
        with contextlib.suppress(errors.StoreError):
            for turn_id in await self._store.cancelled(tuple(self._holders)) if self._holders else ():
                if (holder := self._holders.get(turn_id)) is not None:
                    holder.request_cancel()

    async def renew_all(self) -> None:
        holders = list(self._holders.values())
        until_ms = self._clock.boot_ms() + self.lease_ms
        leases = tuple(holder.journal.lease for holder in holders)
        try:
            renewed = await self._store.renew(leases, self.now_ms(), self.lease_ms)
        except errors.StoreError:
            return  # try again in the next round; a lease lasts for three
        for holder in holders:
            journal = holder.journal
            if self._holders.get(journal.turn_id) is not holder:
                continue  # the turn has ended meanwhile, and with it its lease
            if journal.lease.session_id in renewed.lost:
                holder.lose()
                continue
            journal.held_until_ms = until_ms
            if journal.turn_id in renewed.cancelled:
                holder.request_cancel()
