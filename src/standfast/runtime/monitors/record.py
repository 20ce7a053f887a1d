"""A monitor as it is stored: the body of its task.

Rules
-----
1. It holds all that the next process needs: what is watched, by which process, and which updates were taken.
2. `taken` only rises: a writer keeps the higher one, so that nothing is taken twice.
3. The last updates are kept up to `KEPT_CHARS`. They are written with each wake and at the end; until then,
   updates are only in the memory of the monitor's process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from standfast.durable.journal import owner_is_dead
from standfast.durable.process_identity import machine
from standfast.errors import Code, ErrorObject
from standfast.model.canonical import Json
from standfast.model.limits import U64
from standfast.model.monitor import MonitorState, MonitorStatus, MonitorUpdate
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.runtime.monitors.process import ProcessMark

HEARTBEAT_MS: Final = 20_000
"""How often the record of a running monitor is written."""
SILENT_MS: Final = 90_000
"""After this time without a write, a monitor on another machine counts as abandoned."""
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
    """An input that was queued for what was told after the update `since`."""

    input_id: str
    since: U64 = 0


class MonitorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`run` is one start of the monitor. The numbers are those of the last update that exists, was told by a
    wake, was taken. `wakes` counts the inputs that were queued in this run."""

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
    """Return the monitor in a task's body; None if the task is not a monitor of ours."""
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
    """Return a monitor as plain JSON, the same in every store."""
    return msgspec.json.decode(msgspec.json.encode(record))


def written(record: MonitorRecord, *, by: str, owner: str, now_ms: int) -> Callable[[TaskRecord], TaskRecord]:
    """Writes a monitor over its task, if that is still the task of *by*, and makes it that of *owner*."""

    def change(task: TaskRecord) -> TaskRecord:
        there = monitor_of(task)
        if task.owner != by or there is None or there.run != record.run:
            return task
        return _filled(task, without_taken(record, there.taken), owner, now_ms)

    return change


def without_taken(record: MonitorRecord, taken: int) -> MonitorRecord:
    """Return a record after everything up to *taken* was taken."""
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
        code=Code.INTERRUPTED, message=why, hint="with `restart` it is started again by the next process"
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


def owner_is_gone(task: TaskRecord, now_ms: int) -> bool:
    """Return whether a task has no owner, or one that is dead or has been silent on another machine."""
    if not task.owner or owner_is_dead(task.owner):
        return True
    where = task.owner.rpartition("/")[0].rsplit(":", 2)[0]
    return where != machine() and now_ms - task.updated_at > SILENT_MS
