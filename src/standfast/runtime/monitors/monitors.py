"""The monitors of a runtime: commands that watch something for sessions, and start their turns.

Theory of operation
-------------------
A monitor is a task in the store and, in one process, a `RunningMonitor` with its `MonitorProcess`. Its
supervisor is started first, then the record names it, and only then its command begins: no command runs
without a record. A background task follows each monitor, queues its wakes and closes its record. `recover`,
called every second, takes over monitors of dead processes, ends cancelled ones, and queues delayed wakes.

Rules
-----
1. One process runs a monitor. To take over a monitor, a process changes its owner, then ends the remaining
   processes, and only then restarts the monitor or closes its record.
2. A monitor whose record says RUNNING has a process, or an owner whose death the next `recover` notices.
3. `close` ends every process. It must be called before the store is closed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from standfast.durable.journal import HEARTBEAT_MS, owner_is_gone
from standfast.errors import CallerError, CommandNotStarted, InvalidArgument, MonitorNotFound, TaskExists
from standfast.model.canonical import check_bounds
from standfast.model.monitor import (
    MonitorSnapshot,
    MonitorSpec,
    MonitorState,
    MonitorStatus,
    MonitorUpdate,
    MonitorUpdateBatch,
)
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.plugins.runtime_services import runtime_not_open
from standfast.ports.clock import Clock
from standfast.ports.session_store import SessionStore
from standfast.runtime.monitors.monitor_store import MonitorStore, QueueTurn
from standfast.runtime.monitors.process import Command, MonitorProcess, end_orphans
from standfast.runtime.monitors.running_monitor import (
    MonitorEnding,
    MonitorRecord,
    Notify,
    RunningMonitor,
    begun_anew,
    interrupted,
    monitor_of,
)

_GONE = "the process that ran the monitor is gone"


class Monitors:
    """The monitors that one runtime runs. Used on its loop.

    Args:
        owner: the owner of their records, from `durable.journal.new_owner`; the caller retires it after
            `close`.
        queue_turn: queues an input for a session and starts its turn.
        notify: is called with every update that is kept.
        takes_up: whether a session's monitors of dead processes may be restarted here.
    """

    def __init__(
        self,
        *,
        store: SessionStore,
        clock: Clock,
        owner: str,
        queue_turn: QueueTurn,
        notify: Notify | None = None,
        takes_up: Callable[[str], bool] = lambda session_id: True,
    ) -> None:
        self.owner = owner
        self._store = store
        self._clock = clock
        self._records = MonitorStore(store, clock, owner, queue_turn)
        self._notify = notify
        self._takes_up = takes_up
        self._watches: dict[str, RunningMonitor] = {}
        self._opened: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._beginnings: set[asyncio.Task[None]] = set()
        self._recovering = asyncio.Lock()
        self._is_closed = False

    async def start(self, session_id: str, spec: MonitorSpec) -> MonitorSnapshot:
        """Start a monitor. If its command cannot be run, the snapshot says that it has `FAILED`.

        Errors: `InvalidArgument`, `TaskExists`, `SessionNotFound`.
        """
        self._require_open()
        spec = _checked(spec)
        before = found = await self._store.task(session_id, spec.id)
        if found is not None and not found.state.is_terminal and self._is_left(found):
            await self.recover()
            found = await self._store.task(session_id, spec.id)
        if found is not None and not found.state.is_terminal:
            raise TaskExists(session_id, spec.id)
        now = self._clock.now_ms()
        status = MonitorStatus(spec=spec, state=MonitorState.RUNNING, started_at=now, updated_at=now)
        record = MonitorRecord(run=secrets.token_hex(8), status=status)
        earlier = None if before is None else monitor_of(before)
        created_at = now
        if before is not None and earlier is not None:  # keep the earlier run's updates that were not taken
            record = msgspec.structs.replace(earlier, run=record.run, status=status, process=None, wakes=0)
            created_at = before.created_at
        watch = self._watch(session_id, record)
        await self._kept(self._begin(watch, lambda: self._records.add(watch, created_at), quiet=True))
        return await self.snapshot(session_id)

    async def stop(self, session_id: str, monitor_id: str) -> MonitorSnapshot:
        """Stop a monitor and all processes it started; if another process runs it, ask that process to."""
        task = await self._store.task(session_id, monitor_id)
        if task is None or task.kind is not TaskKind.MONITOR:
            raise MonitorNotFound(session_id, monitor_id)
        record = monitor_of(task)
        if record is not None and not task.state.is_terminal:
            watch = self._watches.get(record.run)
            if watch is not None:
                await self._end(watch, MonitorEnding.STOPPED)
            elif not await self._stop_left(task):
                await self._records.request_stop(task)
        return await self.snapshot(session_id)

    async def snapshot(self, session_id: str) -> MonitorSnapshot:
        """Return the session's monitors, in the order in which they were first started."""
        monitors = []
        for task, record in await self._of_session(session_id):
            watch = self._watches.get(record.run)
            status = record.status if watch is None or task.state.is_terminal else watch.status()
            wake = record.wake if watch is None else watch.wake
            waits = wake is not None and await self._records.is_waiting(session_id, wake)
            monitors.append(msgspec.structs.replace(status, wakes=waits))
        return MonitorSnapshot(monitors=tuple(monitors))

    async def _of_session(self, session_id: str) -> list[tuple[TaskRecord, MonitorRecord]]:
        """Return the session's monitors: the task of each, and the record in it."""
        tasks = await self._store.tasks(session_id=session_id)
        return [(task, record) for task in tasks if (record := monitor_of(task)) is not None]

    async def take_updates(self, session_id: str) -> MonitorUpdateBatch:
        """Return the updates of the session's monitors, each once, and withdraw a queued wake."""
        updates: list[MonitorUpdate] = []
        lost = 0
        for task, record in await self._of_session(session_id):
            watch = self._watches.get(record.run)
            taken = None
            if watch is not None:
                async with watch.lock:
                    if not watch.concluded.is_set():
                        taken = await self._records.take(watch)
            if taken is None:
                found = task if watch is None else await self._store.task(session_id, task.id)
                taken = ((), 0) if found is None else await self._records.take_stored(found)
            updates += taken[0]
            lost += taken[1]
        updates.sort(key=lambda update: update.at_ms)
        return MonitorUpdateBatch(updates=tuple(updates), lost=lost)

    async def session_opened(self, session_id: str, specs: Sequence[MonitorSpec] = ()) -> None:
        """Start, once per process, the monitors that start with a session: *specs* and those not stopped."""
        self._require_open()
        found = await self._of_session(session_id)
        if any(not task.state.is_terminal and self._is_left(task) for task, _ in found):
            await self.recover()  # the record of a dead process still says RUNNING
            found = await self._of_session(session_id)
        before = [record.status for _, record in found]
        known = [one.spec for one in before if one.state.is_over and one.state is not MonitorState.STOPPED]
        armed = {spec.id: spec for spec in (*known, *specs) if spec.arm == "session_start"}
        for spec in armed.values():
            if (session_id, spec.id) not in self._opened:
                self._opened.add((session_id, spec.id))
                with suppress(TaskExists):
                    await self.start(session_id, spec)

    async def recover(self, live: Sequence[TaskRecord] | None = None) -> None:
        """Take over monitors of dead processes, stop cancelled ones, queue wakes.

        *live* are all live tasks.
        """
        async with self._recovering:
            if self._is_closed:
                return
            tasks = await self._store.tasks(live=True) if live is None else live
            monitors = [task for task in tasks if task.kind is TaskKind.MONITOR]
            for task in monitors:
                with suppress(CallerError):  # its session or task was deleted in the meantime
                    await self._look_after(task)
            known = {record.run for task in monitors if (record := monitor_of(task)) is not None}
            for watch in [one for one in self._watches.values() if one.run not in known]:
                if watch.has_ended:
                    watch.stirred.set()
                elif watch.is_written:  # its record was deleted, or closed by another process
                    async with watch.lock:
                        await self._records.save(watch)

    async def forget(self, session_id: str) -> None:
        """Stop all monitors of a session that was closed or deleted."""
        self._opened = {key for key in self._opened if key[0] != session_id}
        watches = [watch for watch in self._watches.values() if watch.session_id == session_id]
        await asyncio.gather(*(self._end(watch, MonitorEnding.STOPPED) for watch in watches))

    async def close(self) -> None:
        """End every process. Monitors with `restart` are restarted by the next runtime."""
        self._is_closed = True
        async with self._recovering:
            await asyncio.gather(*self._beginnings, return_exceptions=True)
            ends = [self._end(watch, MonitorEnding.CLOSED) for watch in self._watches.values()]
            await asyncio.gather(*ends, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._watches.clear()

    def _require_open(self) -> None:
        if self._is_closed:
            raise runtime_not_open()

    def _watch(self, session_id: str, record: MonitorRecord) -> RunningMonitor:
        return RunningMonitor(session_id, record, self._clock, self._notify)

    async def _begin(
        self, watch: RunningMonitor, write: Callable[[], Awaitable[None]], *, quiet: bool = False
    ) -> None:
        """Start the supervisor, store its mark, then start the command."""
        self._watches[watch.run] = watch
        spec = watch.spec
        try:
            try:
                watch.held_by(MonitorProcess(Command(spec.command, spec.cwd, spec.env), watch))
            except CommandNotStarted as error:
                watch.failed(error.error_object())
            await write()
        except BaseException:
            del self._watches[watch.run]
            if watch.process is not None:
                await watch.process.abandon()
            watch.concluded.set()
            raise
        watch.is_written = True
        if watch.process is not None:
            try:
                await watch.process.run()
                watch.begun()
            except CommandNotStarted as error:
                watch.failed(error.error_object())
        if watch.never_ran and quiet:
            watch.told = watch.ring.seq  # the caller sees the failure itself
        self._go_on(self._follow(watch), self._tasks)
        if watch.never_ran:
            await self._concluded(watch)

    async def _kept(self, work: Coroutine[Any, Any, None]) -> None:
        """Await *work* to its end, even if the caller is cancelled."""
        await asyncio.shield(self._go_on(work, self._beginnings))

    def _go_on(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)
        return task

    async def _follow(self, watch: RunningMonitor) -> None:
        """Queue wakes as updates arrive, and close the record at the end."""
        while not watch.has_ended:
            await watch.stirred.wait()
            watch.stirred.clear()
            if watch.wants_wake and not watch.has_ended:
                with suppress(Exception):  # `recover` tries again
                    async with watch.lock:
                        await self._records.wake(watch)
        watch.settle()
        while not await self._closes(watch):
            watch.stirred.clear()
            await watch.stirred.wait()
        self._watches.pop(watch.run, None)

    async def _closes(self, watch: RunningMonitor) -> bool:
        """Queue the last wake and store the monitor's end; return False if the store failed."""
        try:
            async with watch.lock:
                if watch.wakes_at_end and watch.ending is not MonitorEnding.LOST:
                    await self._records.wake_at_end(watch)
                await self._records.save(watch)
                watch.failure = None
        except Exception as error:
            watch.failure = error
        watch.concluded.set()
        return watch.failure is None

    async def _stop_left(self, task: TaskRecord) -> bool:
        """Close a monitor whose owner is dead; return False if a live process owns it."""
        async with self._recovering:
            found = await self._store.task(task.session_id, task.id)
            record = None if found is None else monitor_of(found)
            if found is None or record is None or not self._is_left(found):
                return False
            await self._close_left(found, record, MonitorEnding.STOPPED)
            return True

    async def _end(self, watch: RunningMonitor, ending: MonitorEnding) -> None:
        watch.end_by(ending)
        if watch.process is not None and not watch.has_ended:
            await watch.process.stop()
        await self._concluded(watch)

    async def _concluded(self, watch: RunningMonitor) -> None:
        await watch.concluded.wait()
        if watch.failure is not None:
            raise watch.failure

    async def _look_after(self, task: TaskRecord) -> None:
        record = monitor_of(task)
        watch = None if record is None else self._watches.get(record.run)
        if watch is not None and task.owner == self.owner:
            if not watch.has_ended:
                self._records.adopt(watch, task)
                if self._clock.now_ms() - task.updated_at > HEARTBEAT_MS:
                    async with watch.lock:
                        await self._records.save(watch)
            if watch.has_ended or watch.wants_wake:
                watch.stirred.set()
        elif not self._is_left(task):
            return
        elif record is None:
            await self._records.fail(task)
        elif task.owner or self._takes_up(task.session_id):
            await self._take_over(task, record)

    def _is_left(self, task: TaskRecord) -> bool:
        """Return whether no process runs a live monitor: its owner is dead, or is us and has lost it."""
        if task.owner != self.owner:
            return not task.owner or owner_is_gone(task.owner, task.updated_at, self._clock.now_ms())
        record = monitor_of(task)
        return record is not None and record.run not in self._watches

    async def _take_over(self, task: TaskRecord, record: MonitorRecord) -> None:
        if task.state is TaskState.CANCEL_REQUESTED:
            await self._close_left(task, record, MonitorEnding.STOPPED)
        elif not record.status.spec.restart:
            await self._close_left(task, record, None)
        elif not await self._is_ours_and_swept(task, record):
            return
        elif self._takes_up(task.session_id):
            watch = self._watch(task.session_id, begun_anew(record, self._clock.now_ms()))
            await self._kept(self._begin(watch, lambda: self._records.save(watch)))
        else:  # release it for a process that can run it
            status = msgspec.structs.replace(record.status, state=MonitorState.ARMED)
            await self._records.release(task, msgspec.structs.replace(record, status=status, process=None))

    async def _close_left(
        self, task: TaskRecord, record: MonitorRecord, ending: MonitorEnding | None
    ) -> None:
        """Close the record of a monitor that no process runs."""
        if not await self._is_ours_and_swept(task, record):
            return
        watch = self._watch(task.session_id, record)
        if ending is None:
            watch.failed(interrupted(_GONE))
        watch.ending, watch.has_ended = ending, True
        watch.settle()
        await self._records.save(watch)

    async def _is_ours_and_swept(self, task: TaskRecord, record: MonitorRecord) -> bool:
        """Take over a monitor and end its processes; return False if another process was faster."""
        if not await self._records.claim(task, record):
            return False
        if record.process is not None:
            await asyncio.to_thread(end_orphans, record.process)
        return True


def _checked(spec: MonitorSpec) -> MonitorSpec:
    """Return a validated spec, with strings such as `wake="queue_turn"` converted to their types."""
    check_bounds(spec)
    try:
        spec = msgspec.json.decode(msgspec.json.encode(spec), type=MonitorSpec)
    except (msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"the monitor is invalid: {error}") from None
    if not spec.command or (not isinstance(spec.command, str) and not spec.command[0]):
        raise InvalidArgument(f"monitor {spec.id!r} has no command")
    return spec
