"""One monitor: its record, which is the body of its task, and its in-memory state while it runs.

Rules
-----
1. A record has everything that the next process needs: the spec, the supervisor, and which updates were
   taken. `taken` only increases: a writer keeps the higher value, so that no update is taken twice.
2. The last updates are kept up to `KEPT_CHARS`. They are written with each wake and at the end; until then,
   updates are only in the memory of the monitor's process.
3. A running monitor does not access the store. It collects the output of its process, and knows what has to
   be written.
"""

from __future__ import annotations

import asyncio
import enum
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec

from standfast.errors import Code, ErrorObject
from standfast.model.canonical import Json
from standfast.model.limits import U64
from standfast.model.monitor import RING, MonitorState, MonitorStatus, MonitorUpdate, WakePolicy
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.ports.clock import Clock
from standfast.runtime.monitors.process import Lines, MonitorProcess, ProcessMark

KEPT_CHARS: Final = 32_768
_LABEL_CHARS: Final = 200
_TASK_STATES: Final = {
    MonitorState.ARMED: TaskState.PENDING,
    MonitorState.RUNNING: TaskState.RUNNING,
    MonitorState.EXITED: TaskState.COMPLETED,
    MonitorState.TIMED_OUT: TaskState.FAILED,
    MonitorState.STOPPED: TaskState.CANCELLED,
    MonitorState.FAILED: TaskState.FAILED,
}


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """A queued input with the updates after the update `since`."""

    input_id: str
    since: U64 = 0


class MonitorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored state of a monitor. `run` identifies one start of it.

    The numbers are those of the last update that exists, that is part of a wake, and that was taken. `wakes`
    counts the inputs queued in this run.
    """

    run: str
    status: MonitorStatus
    process: ProcessMark | None = None
    seq: U64 = 0
    told: U64 = 0
    taken: U64 = 0
    lost: U64 = 0
    wakes: U64 = 0
    wake: Wake | None = None
    updates: tuple[MonitorUpdate, ...] = ()


def monitor_of(task: TaskRecord) -> MonitorRecord | None:
    """Return the monitor's record in a task's body; None if the body is not such a record."""
    if task.kind is not TaskKind.MONITOR:
        return None
    try:
        record = msgspec.convert(task.body, MonitorRecord)
    except msgspec.ValidationError:
        return None
    if not task.state.is_terminal or record.status.state.is_over:
        return record
    state = MonitorState.STOPPED if task.state is TaskState.CANCELLED else MonitorState.FAILED
    status = msgspec.structs.replace(record.status, state=state, updated_at=task.updated_at, error=task.error)
    return msgspec.structs.replace(record, status=status)  # another process has ended its task


def task_of(
    session_id: str, record: MonitorRecord, owner: str, *, created_at: int, now_ms: int
) -> TaskRecord:
    """Return a monitor as a new task."""
    spec = record.status.spec
    command = spec.command if isinstance(spec.command, str) else " ".join(spec.command)
    empty = TaskRecord(
        session_id=session_id,
        id=spec.id,
        kind=TaskKind.MONITOR,
        state=TaskState.PENDING,
        label=(spec.description or command)[:_LABEL_CHARS],
        owner=owner,
        created_at=created_at,
        updated_at=now_ms,
    )
    return _filled(empty, record, owner, now_ms)


def body_of(record: MonitorRecord) -> Json:
    """Return a monitor's record as plain JSON, which is the same in every store."""
    return msgspec.json.decode(msgspec.json.encode(record))


def written(record: MonitorRecord, *, by: str, owner: str, now_ms: int) -> Callable[[TaskRecord], TaskRecord]:
    """Return a change that writes a record to a task owned by *by*, and makes *owner* its owner."""

    def change(task: TaskRecord) -> TaskRecord:
        there = monitor_of(task)
        if task.owner != by or there is None or there.run != record.run:
            return task
        return _filled(task, without_taken(record, there.taken), owner, now_ms)

    return change


def without_taken(record: MonitorRecord, taken: int) -> MonitorRecord:
    """Return a record without the updates up to *taken*."""
    if taken <= record.taken:
        return record
    left = tuple(update for update in record.updates if update.seq > taken)
    return msgspec.structs.replace(
        record,
        taken=taken,
        told=max(record.told, taken),
        lost=0,
        wake=None,
        updates=left,
        status=msgspec.structs.replace(record.status, pending=len(left), wakes=False),
    )


def kept(updates: Sequence[MonitorUpdate]) -> tuple[MonitorUpdate, ...]:
    """Return the last updates, up to `KEPT_CHARS`."""
    room, first = KEPT_CHARS, len(updates)
    while first > 0 and room >= len(updates[first - 1].text):
        first -= 1
        room -= len(updates[first].text)
    return tuple(updates[first:])


def interrupted(why: str) -> ErrorObject:
    return ErrorObject(
        code=Code.INTERRUPTED, message=why, hint="set `restart` to have the next process restart it"
    )


def _filled(task: TaskRecord, record: MonitorRecord, owner: str, now_ms: int) -> TaskRecord:
    status = record.status
    state = _TASK_STATES[status.state]
    if task.state is TaskState.CANCEL_REQUESTED and not state.is_terminal:
        state = task.state
    return msgspec.structs.replace(
        task,
        state=state,
        owner=owner,
        updated_at=now_ms,
        body=body_of(record),
        result={"exit_code": status.exit_code} if status.state is MonitorState.EXITED else None,
        error=status.error,
    )


class UpdateRing:
    """The last `RING` updates. `seq` numbers them across processes; `lost` counts those dropped unread."""

    def __init__(self, updates: Iterable[MonitorUpdate] = (), *, seq: int = 0, lost: int = 0) -> None:
        self._updates = deque(updates, RING)
        self.seq = max([seq, *(update.seq for update in self._updates)])
        self.lost = lost

    def __len__(self) -> int:
        return len(self._updates)

    @property
    def updates(self) -> tuple[MonitorUpdate, ...]:
        return tuple(self._updates)

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def add(self, update: MonitorUpdate) -> None:
        self.lost += len(self._updates) == RING
        self._updates.append(update)

    def skip(self, count: int) -> None:
        """Count updates that are dropped, because at least a whole ring of others follows them."""
        self.seq += count
        self.lost += count

    def after(self, seq: int) -> tuple[MonitorUpdate, ...]:
        return tuple(update for update in self._updates if update.seq > seq)

    def drop(self, seq: int) -> None:
        """Drop the updates that were taken, up to number *seq*."""
        while self._updates and self._updates[0].seq <= seq:
            self._updates.popleft()
            self.lost = 0


Notify = Callable[[str, MonitorUpdate], None]
"""A callback for each update of a session's monitors. It must not block."""


class MonitorEnding(enum.Enum):
    """Why a monitor was ended, if its command did not end by itself."""

    STOPPED = "stopped"
    TIMED_OUT = "timed_out"
    CLOSED = "closed"
    LOST = "lost"
    """Its record was deleted, or belongs to another process."""


class RunningMonitor:
    """A monitor and its process. Used on the runtime's loop."""

    def __init__(self, session_id: str, record: MonitorRecord, clock: Clock, notify: Notify | None) -> None:
        self.session_id = session_id
        self.run, self.spec = record.run, record.status.spec
        self.wake, self.wakes, self.told, self.taken = record.wake, record.wakes, record.told, record.taken
        self.ring = UpdateRing(record.updates, seq=max(record.seq, record.taken), lost=record.lost)
        self.process: MonitorProcess | None = None
        self.ending: MonitorEnding | None = None
        self.has_ended = False
        self.never_ran = self.is_written = False
        self.failure: Exception | None = None
        self.lock = asyncio.Lock()
        self.stirred, self.concluded = asyncio.Event(), asyncio.Event()
        self._mark = record.process
        self._state = MonitorState.RUNNING
        self._code: int | None = None
        self._error: ErrorObject | None = None
        self._started_at, self._updated_at = record.status.started_at, record.status.updated_at
        self._news = self.told
        self._clock = clock
        self._notify = notify
        self._timer: asyncio.TimerHandle | None = None

    def heard(self, kind: Literal["update", "notice"], lines: Lines) -> None:
        self.ring.skip(lines.skipped)
        for text in lines.texts:
            self._add(kind, text)
        self.stirred.set()

    def ended(self, code: int | None) -> None:
        self._code = code
        self.has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        self.stirred.set()

    def _add(self, kind: Literal["update", "notice", "end"], text: str) -> None:
        self._updated_at = self._clock.now_ms()
        update = MonitorUpdate(
            monitor_id=self.spec.id, seq=self.ring.next_seq(), at_ms=self._updated_at, kind=kind, text=text
        )
        self.ring.add(update)
        if kind != "notice":
            self._news = update.seq
        if self._notify is not None:
            with suppress(Exception):  # an error of the listener must not stop the monitor
                self._notify(self.session_id, update)

    def held_by(self, process: MonitorProcess) -> None:
        self.process, self._mark = process, process.mark

    def begun(self) -> None:
        """Start the timer of the command's timeout, in real time."""
        if self.has_ended:
            return
        limit_s = self.spec.timeout_ms / 1000
        self._timer = asyncio.get_running_loop().call_later(limit_s, self.end_by, MonitorEnding.TIMED_OUT)

    def end_by(self, ending: MonitorEnding) -> None:
        """Request the end of the monitor. Only the first reason is kept."""
        self.ending = self.ending or ending
        if self.process is not None:
            self.process.request_stop()

    def failed(self, error: ErrorObject) -> None:
        """Record that the monitor could not be started or has lost its process, unless it was being ended."""
        self.has_ended = self.never_ran = True
        if self.ending is None:
            self._conclude(MonitorState.FAILED, error.message, error)

    def settle(self) -> None:
        """Record how the process has ended, once."""
        if self._state is not MonitorState.RUNNING:
            return
        match self.ending:
            case MonitorEnding.STOPPED | MonitorEnding.LOST:
                self._conclude(MonitorState.STOPPED, "stopped")
            case MonitorEnding.TIMED_OUT:
                why = f"timed out after {self.spec.timeout_ms:,} ms"
                self._conclude(
                    MonitorState.TIMED_OUT, why, ErrorObject(code=Code.TIMEOUT_WALL, message=f"it {why}")
                )
            case MonitorEnding.CLOSED if self.spec.restart:
                self._state, self._mark = MonitorState.ARMED, None
            case MonitorEnding.CLOSED:
                why = "interrupted, because the runtime was closed"
                self._conclude(MonitorState.FAILED, why, interrupted(f"it was {why}"))
            case None if self._code is None:
                why = "its supervisor was killed"
                self._conclude(MonitorState.FAILED, why, interrupted(why))
            case None if self._code < 0:
                name = f"signal {-self._code}"
                with suppress(ValueError):
                    name = signal.Signals(-self._code).name
                self._conclude(MonitorState.EXITED, f"killed by {name}")
            case None:
                self._conclude(MonitorState.EXITED, f"exited with code {self._code}")

    def _conclude(self, state: MonitorState, text: str, error: ErrorObject | None = None) -> None:
        self._state, self._error, self._mark = state, error, None
        self._add("end", text)

    @property
    def is_armed(self) -> bool:
        """Whether the next process will restart the monitor."""
        return self._state is MonitorState.ARMED

    @property
    def wants_wake(self) -> bool:
        """Whether there are updates that should wake the session and that are in no wake yet."""
        return self.spec.wake is WakePolicy.QUEUE_TURN and self._news > self.told

    @property
    def wakes_at_end(self) -> bool:
        """Whether the end wakes the session: not if a caller stopped the monitor or closed the runtime."""
        return self.wants_wake and self.ending in (None, MonitorEnding.TIMED_OUT)

    def queued(self, wake: Wake, told: int) -> None:
        self.wake, self.told = wake, told
        self.wakes += 1

    def was_taken(self, seq: int) -> None:
        """Drop the updates up to number *seq*, which were taken in this process or another."""
        if seq > self.taken:
            self.taken, self.told, self.wake = seq, max(self.told, seq), None
            self.ring.drop(seq)

    def record(self) -> MonitorRecord:
        updates = kept(self.ring.after(self.taken))
        return MonitorRecord(
            run=self.run,
            status=self.status(),
            process=self._mark,
            seq=self.ring.seq,
            told=self.told,
            taken=self.taken,
            lost=self.ring.lost + len(self.ring) - len(updates),
            wakes=self.wakes,
            wake=self.wake,
            updates=updates,
        )

    def status(self) -> MonitorStatus:
        return MonitorStatus(
            spec=self.spec,
            state=self._state,
            started_at=self._started_at,
            updated_at=self._updated_at,
            exit_code=self._code if self._state is not MonitorState.ARMED else None,
            pending=len(self.ring),
            wakes=self.wake is not None,
            error=self._error,
        )


def begun_anew(record: MonitorRecord, now_ms: int) -> MonitorRecord:
    """Return the record for another run of the command, with the updates that were not taken."""
    status = MonitorStatus(
        spec=record.status.spec, state=MonitorState.RUNNING, started_at=now_ms, updated_at=now_ms
    )
    return msgspec.structs.replace(record, status=status, process=None)
