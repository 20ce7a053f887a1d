"""The stored records of monitors, and the turns that they queue.

Theory of operation
-------------------
A wake is a queued input of the session. It is open until its turn begins, or until the updates are taken,
which withdraws it; while it is open, no other wake is queued for the monitor. The input is queued before the
record is written. If the process dies in between, the next process queues the input under the same id, which
has no effect.

Rules
-----
1. At most one wake of a monitor is open, even after a crash.
2. An update is in one wake only. When the monitor ends, an open wake is replaced by one with all updates.
3. A process that finds its monitor's record deleted, or taken over by another process, ends the monitor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from standfast.errors import IdempotencyConflict, TaskExists, TaskNotFound
from standfast.model.monitor import MonitorSpec, MonitorUpdate
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.ports.clock import Clock
from standfast.ports.session_store import SessionStore
from standfast.runtime.monitors.running_monitor import (
    MonitorEnding,
    MonitorRecord,
    RunningMonitor,
    Wake,
    body_of,
    interrupted,
    monitor_of,
    task_of,
    without_taken,
    written,
)

QueueTurn = Callable[[str, str, str], Awaitable[None]]
"""Queues an input (session id, input id, text), whose turn starts in the background."""

SHOWN: Final = 20
SHOWN_CHARS: Final = 500

Taken = tuple[tuple[MonitorUpdate, ...], int]


class MonitorStore:
    """The store access of all monitors of one owner."""

    def __init__(self, store: SessionStore, clock: Clock, owner: str, queue_turn: QueueTurn) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._queue_turn = queue_turn

    async def add(self, watch: RunningMonitor, created_at: int) -> None:
        """Store the record of a new monitor. Errors: `TaskExists`, `SessionNotFound`."""
        now = self._clock.now_ms()
        await self._store.add_task(
            task_of(watch.session_id, watch.record(), self._owner, created_at=created_at, now_ms=now)
        )

    async def save(self, watch: RunningMonitor, record: MonitorRecord | None = None) -> None:
        """Write a monitor's state, without an owner if another process is to restart it."""
        record = record or watch.record()
        owner = "" if watch.ending is MonitorEnding.CLOSED and watch.is_armed else self._owner
        change = written(record, by=self._owner, owner=owner, now_ms=self._clock.now_ms())
        try:
            task = await self._store.change_task(watch.session_id, watch.spec.id, change)
        except TaskNotFound:  # deleted, or moved to another session
            live = await self._store.tasks(live=True)
            records = ((one, monitor_of(one)) for one in live if one.kind is TaskKind.MONITOR)
            moved = next((one for one, found in records if found and found.run == watch.run), None)
            if moved is None:
                watch.end_by(MonitorEnding.LOST)
                return
            watch.session_id = moved.session_id
            task = await self._store.change_task(watch.session_id, watch.spec.id, change)
        if not watch.has_ended:
            self.adopt(watch, task)

    async def claim(self, task: TaskRecord, record: MonitorRecord) -> bool:
        """Take over a monitor whose owner is dead; return False if another process was faster."""
        change = written(record, by=task.owner, owner=self._owner, now_ms=self._clock.now_ms())
        with suppress(TaskNotFound):
            after = await self._store.change_task(task.session_id, task.id, change)
            found = monitor_of(after)
            ours = after.owner == self._owner and not after.state.is_terminal
            return ours and found is not None and found.run == record.run
        return False

    async def release(self, task: TaskRecord, record: MonitorRecord) -> None:
        """Release a claimed monitor, so that a process that can run it takes it over."""
        change = written(record, by=self._owner, owner="", now_ms=self._clock.now_ms())
        await self._store.change_task(task.session_id, task.id, change)

    async def request_stop(self, task: TaskRecord) -> None:
        """Ask the process that runs a monitor to end it."""
        now = self._clock.now_ms()

        def change(found: TaskRecord) -> TaskRecord:
            return msgspec.structs.replace(found, state=TaskState.CANCEL_REQUESTED, updated_at=now)

        await self._store.change_task(task.session_id, task.id, change)

    async def fail(self, task: TaskRecord) -> None:
        """Close an ownerless task of kind monitor whose body is not a monitor's record."""
        now, error = self._clock.now_ms(), interrupted("the process that ran the monitor is gone")

        def change(found: TaskRecord) -> TaskRecord:
            if found.owner != task.owner:
                return found
            return msgspec.structs.replace(found, state=TaskState.FAILED, error=error, updated_at=now)

        with suppress(TaskNotFound):
            await self._store.change_task(task.session_id, task.id, change)

    def adopt(self, watch: RunningMonitor, task: TaskRecord) -> None:
        """Apply the changes that other processes made to a monitor's task."""
        record = monitor_of(task)
        ours = record is not None and record.run == watch.run and task.owner == self._owner
        if record is None or not ours or task.state.is_terminal:
            watch.end_by(MonitorEnding.LOST)
            return
        watch.session_id = task.session_id
        watch.was_taken(record.taken)
        if task.state is TaskState.CANCEL_REQUESTED:
            watch.end_by(MonitorEnding.STOPPED)

    async def wake(self, watch: RunningMonitor) -> None:
        """Queue a turn for the updates that no wake contains yet, unless a wake is open."""
        if watch.wake is None or not await self.is_waiting(watch.session_id, watch.wake):
            await self._queue(watch)
            await self.save(watch)

    async def wake_at_end(self, watch: RunningMonitor) -> None:
        """Queue the last turn, which also contains the updates of a wake that is still open."""
        if watch.wake is not None and await self._store.withdraw_input(watch.wake.input_id):
            watch.told = watch.wake.since
        await self._queue(watch)

    async def is_waiting(self, session_id: str, wake: Wake) -> bool:
        return any(item.input_id == wake.input_id for item in await self._store.inputs(session_id))

    async def _queue(self, watch: RunningMonitor) -> None:
        since, told = watch.told, watch.ring.seq
        updates = watch.ring.after(since)
        wake = Wake(input_id=f"monitor.{watch.run}.{watch.wakes + 1}", since=since)
        text = wake_text(watch.spec, updates, told - since - len(updates))
        with suppress(IdempotencyConflict):  # a wake that was not recorded is open under this id
            await self._queue_turn(watch.session_id, wake.input_id, text)
        watch.queued(wake, told)

    async def take(self, watch: RunningMonitor) -> Taken:
        """Take the updates of a monitor of this process; they are returned once that is stored."""
        updates, lost, last = watch.ring.updates, watch.ring.lost, watch.ring.seq
        if not updates:
            return (), 0
        await self._withdraw(watch.wake)
        await self.save(watch, without_taken(watch.record(), last))
        watch.was_taken(last)
        return updates, lost

    async def take_stored(self, task: TaskRecord) -> Taken:
        """Take the stored updates of a monitor that another process runs, or that has ended."""
        record = monitor_of(task)
        if record is None or not record.updates:
            return (), 0
        await self._withdraw(record.wake)
        after = without_taken(record, record.updates[-1].seq)
        now = self._clock.now_ms()
        if task.state.is_terminal:
            with suppress(TaskExists):  # a task that has ended cannot be changed, but can be replaced
                await self._store.add_task(msgspec.structs.replace(task, body=body_of(after)))
        else:
            change = written(after, by=task.owner, owner=task.owner, now_ms=now)
            await self._store.change_task(task.session_id, task.id, change)
        return record.updates, record.lost

    async def _withdraw(self, wake: Wake | None) -> None:
        if wake is not None:
            await self._store.withdraw_input(wake.input_id)


def wake_text(spec: MonitorSpec, updates: Sequence[MonitorUpdate], left_out: int) -> str:
    """Return the input of a turn that a monitor starts: its name and its last updates."""
    about = f" ({spec.description})" if spec.description else ""
    shown = updates[-SHOWN:]
    left_out += len(updates) - len(shown)
    lines = [f"Monitor {spec.id!r}{about}:"]
    if left_out:
        lines.append(f"({left_out} earlier lines are not shown)")
    for update in shown:
        text = update.text if len(update.text) <= SHOWN_CHARS else f"{update.text[:SHOWN_CHARS]}…"
        match update.kind:
            case "update":
                lines.append(f"> {text}")
            case "notice":
                lines.append(f"! {text}")
            case "end":
                lines.append(f"It has ended: {text}.")
    return "\n".join(lines)
