"""The background tasks of a runtime: what is registered, what runs here, and how it ends.

Theory of operation
-------------------
What is known of a task is its record in the store; every method here changes that first or last. Beside it
this process has a handle for each task that it runs: an asyncio task, or a way to cancel what somebody else
runs. A task ends once: whatever comes after its end finds the record closed and changes nothing.

Hidden tasks have no record. They are awaited, with a grace when the runtime closes, and then cancelled.

Rules
-----
1. A task is on record before it begins, and its end is on record before anybody who cancels it is answered.
2. Cancelling marks the record first, so that another process may do what only it can do.
3. A task that does not end within its grace is left behind, and is `cancelled` on record.
4. Nothing that a task does reaches a turn or the runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, assert_never

from standfast.durable.journal import new_owner, owner_is_dead, retire
from standfast.errors import InvalidArgument, MonitorNotFound, StandfastError, StoreError, TaskNotFound
from standfast.model.events import TaskChanged
from standfast.model.task import TaskKind, TaskRecord, TaskSpec, TaskState
from standfast.plugins.running import described
from standfast.ports.host import SessionTask, TaskCancel
from standfast.runtime.host import task_changes as changes
from standfast.runtime.host.async_handles import AsyncHandles
from standfast.runtime.host.closing import TurnWaits, close_tree
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.turn import detached

if TYPE_CHECKING:
    from standfast.runtime.monitors.monitors import Monitors

GRACE_S: Final = 1.0
"""So long may a task take to end once it was cancelled."""

HIDDEN_GRACE_S: Final = 5.0
"""So long does closing a runtime wait for hidden tasks."""


_HIDDEN: Final[ContextVar[asyncio.Task[Any] | None]] = ContextVar("standfast_hidden_task", default=None)
"""The hidden task that this code is a part of, on whichever loop it runs."""
_MINE: Final[ContextVar[TaskHandle | None]] = ContextVar("standfast_task", default=None)
"""The managed task that this code is."""


class TaskHandle:
    """What this process has of a task. `session_id` changes when the task is handed over."""

    __slots__ = ("cancel", "created_at", "ending", "kind", "session_id", "task", "task_id")

    def __init__(self, session_id: str, spec: TaskSpec, cancel: TaskCancel | None = None) -> None:
        self.session_id = session_id
        self.task_id = spec.id
        self.created_at = 0
        self.kind = spec.kind
        self.cancel = cancel
        self.task: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.session_id, self.task_id


class Tasks:
    """Made by `Runtime` when it opens; used on its loop."""

    monitors: Monitors

    def __init__(self, directory: SessionDirectory, waits: TurnWaits) -> None:
        self._directory = directory
        self._waits = waits
        self._services = directory.services
        self._store = directory.services.store
        self.owner = new_owner(self._services.settings.epoch)
        self.grace_s = GRACE_S
        self.hidden_grace_s = HIDDEN_GRACE_S
        self.handles = AsyncHandles(directory, self.let_go_of)
        self._handles: dict[tuple[str, str], TaskHandle] = {}
        self._coming: list[TaskHandle] = []
        self._hidden: dict[str, set[asyncio.Task[None]]] = {}
        self._left: set[asyncio.Task[Any]] = set()
        self._ends: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._closing = False

    # Registering

    async def register(self, session_id: str, spec: TaskSpec, cancel: TaskCancel | None = None) -> TaskRecord:
        """Put a task on record that somebody else runs."""
        return await self._add(spec, TaskHandle(session_id, spec, cancel))

    async def spawn(self, session_id: str, spec: TaskSpec, work: SessionTask) -> TaskRecord:
        """Put a task on record, and run it."""
        handle = TaskHandle(session_id, spec)
        record = await self._add(spec, handle)
        if handle.ending is None:  # nobody has cancelled it before it could begin
            handle.task = self._start(self._run(handle, work))
        return record

    async def _add(self, spec: TaskSpec, handle: TaskHandle) -> TaskRecord:
        record = changes.registered(spec, handle.session_id, self.owner, self._now())
        handle.created_at = record.created_at
        since = await self.handles.standpoint(handle.session_id) if record.handle else None
        self._coming.append(handle)
        try:
            await self._store.add_task(record)
        finally:
            self._coming.remove(handle)
        if handle.ending is None:
            self._handles[handle.key] = handle
            if record.handle:
                self.handles.watch(*handle.key, since)
        self.tell(record)
        return record

    async def unregister(self, session_id: str, task_id: str) -> None:
        """Forget a task. What runs goes on, and nobody hears of its end."""
        self._let_go((session_id, task_id))
        self.handles.forget(session_id, task_id)
        await self._store.remove_task(session_id, task_id)

    def _let_go(self, key: tuple[str, str]) -> None:
        """Look after a task no more; what runs of it ends with the runtime at the latest."""
        handle = self._handles.pop(key, None)
        if handle is not None and handle.task is not None:
            self._leave(handle.task)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        if not task.done():
            self._left.add(task)
            task.add_done_callback(self._left.discard)

    # Changing

    async def complete(self, session_id: str, task_id: str, state: TaskState) -> None:
        """A task has ended. Harmless if it had, or is not there."""
        if not state.is_terminal:
            raise InvalidArgument(
                f"a task does not end as {state}", hint="it is completed, failed or cancelled"
            )
        with contextlib.suppress(TaskNotFound):
            await self.change(session_id, task_id, changes.became(state, self._now()))
            self._let_go((session_id, task_id))

    async def transition(self, session_id: str, task_id: str, state: TaskState) -> None:
        """A live task is at work, or waits for some. Harmless if it is over, or is not there."""
        if state not in (TaskState.RUNNING, TaskState.IDLE):
            raise InvalidArgument(f"a live task is running or idle, not {state}")
        with contextlib.suppress(TaskNotFound):
            await self.change(session_id, task_id, changes.went_on(state, self._now()))

    async def change(self, session_id: str, task_id: str, change: changes.Change) -> TaskRecord:
        """The record as *change* leaves it; observers are told if it is another."""
        seen: list[TaskRecord] = []

        def noting(task: TaskRecord) -> TaskRecord:
            seen.append(task)
            return change(task)

        after = await self._store.change_task(session_id, task_id, noting)
        if seen and after != seen[-1]:
            self.tell(after)
        return after

    # Running

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside whatever asks for it."""
        return asyncio.get_running_loop().create_task(work, context=detached())

    async def _run(self, handle: TaskHandle, work: SessionTask) -> None:
        _MINE.set(handle)
        _HIDDEN.set(None)
        change: changes.Change
        try:
            change = changes.finished(await work(), self._now())
        except asyncio.CancelledError:
            if self._closing and not _is_plain(handle.kind):
                return  # whoever goes on with it closes its record
            change = self._stopped()
        except (Exception, SystemExit) as error:
            change = changes.broke(error, self._now())
        await self._settle(handle, change)

    def _stopped(self) -> changes.Change:
        if self._closing:
            return changes.interrupted("the runtime that ran the task was closed", self._now())
        return changes.became(TaskState.CANCELLED, self._now())

    async def _settle(self, handle: TaskHandle, change: changes.Change) -> None:
        """Put a task's end on record, wherever it belongs by now."""
        key = handle.key
        try:
            await self.change(*key, change)
        except TaskNotFound:  # it was handed over in between, or forgotten
            if handle.key != key or await self._moved(handle):
                await self._settle(handle, change)
        except StoreError as error:
            self._services.report(
                "", "task", f"the end of task {handle.task_id!r} is lost: {described(error)}"
            )
        if self._handles.get(handle.key) is handle:
            del self._handles[handle.key]

    # Cancelling

    async def cancel(self, session_id: str, task_id: str) -> TaskRecord:
        """End a task as its kind wants it; the record after that. One that is over stays as it is."""
        record = await self.change(session_id, task_id, changes.cancel_asked(self._now()))
        if record.state.is_terminal:
            return record
        match record.kind:
            case TaskKind.MONITOR:
                return await self._cancel_monitor(record)
            case TaskKind.SUBAGENT:
                child = child_of(record)
                if child is not None and await self._store.head(child) is not None:
                    await self.close_tree(child)
            case TaskKind.OBSERVER | TaskKind.OTHER:
                if self._is_elsewhere(record):
                    return record  # its process ends it: it has been told by the record
            case _:
                assert_never(record.kind)
        return await self._stop(record)

    async def cancel_all(self, session_id: str, keep: Sequence[str] = ()) -> list[TaskRecord]:
        """End all live tasks of a session but these, at once; their records after that."""
        found = await self._store.tasks(session_id=session_id, live=True)
        kept = set(keep)
        found = [task for task in found if task.id not in kept]
        mine = [task for task in found if self._asks(task)]  # it comes last: it hears nothing after that
        ended = await self._cancel_each([task for task in found if task not in mine])
        return ended + [await self.cancel(task.session_id, task.id) for task in mine]

    async def _cancel_each(self, records: Sequence[TaskRecord]) -> list[TaskRecord]:
        ended = await asyncio.gather(
            *(self.cancel(record.session_id, record.id) for record in records), return_exceptions=True
        )
        errors = [
            one for one in ended if isinstance(one, BaseException) and not isinstance(one, TaskNotFound)
        ]
        if errors:
            raise errors[0]
        return [one for one in ended if isinstance(one, TaskRecord)]

    def _is_elsewhere(self, record: TaskRecord) -> bool:
        """Whether another process runs the task, and is alive."""
        return record.owner != self.owner and not owner_is_dead(record.owner)

    async def _cancel_monitor(self, record: TaskRecord) -> TaskRecord:
        """End the monitor's processes; its record is closed with them, by whoever runs them."""
        with contextlib.suppress(MonitorNotFound):
            await self.monitors.stop(record.session_id, record.id)
        after = await self._store.task(record.session_id, record.id)
        if after is None:
            raise TaskNotFound(record.session_id, record.id)
        return after if after.state.is_terminal or self._is_elsewhere(after) else await self._stop(after)

    async def _stop(self, record: TaskRecord) -> TaskRecord:
        """End what runs here for a task, and close its record."""
        handle = self._handle(record)
        itself = handle is not None and handle is _MINE.get()
        if handle is not None and not itself:
            await self._end(handle)
        key = (record.session_id, record.id) if handle is None else handle.key
        after = await self.change(*key, changes.became(TaskState.CANCELLED, self._now()))
        self._handles.pop(key, None)
        if itself and handle is not None and handle.task is not None:
            handle.task.cancel()  # it has asked for it, and hears of it at its next step
        return after

    def _asks(self, record: TaskRecord) -> bool:
        """Whether the task is the one that asks."""
        mine = _MINE.get()
        return mine is not None and mine.key == (record.session_id, record.id)

    def _handle(self, record: TaskRecord) -> TaskHandle | None:
        """What this process has of a task, or is about to have."""
        key = (record.session_id, record.id)
        return self._handles.get(key) or next((one for one in self._coming if one.key == key), None)

    async def _end(self, handle: TaskHandle) -> None:
        """Cancel what runs; after its grace it is left behind. Others who want that wait for the same."""
        if handle.ending is None:
            handle.ending = self._start(self._cancelled(handle))
        await asyncio.shield(handle.ending)

    async def _cancelled(self, handle: TaskHandle) -> None:
        waits: list[asyncio.Task[Any]] = []
        if handle.cancel is not None:
            waits.append(self._start(self._call(handle.cancel)))
        if handle.task is not None:
            waits.append(handle.task)
            handle.task.cancel()
        await self._await_ends(waits)

    async def _call(self, cancel: Callable[[], Awaitable[None]]) -> None:
        try:
            await cancel()
        except (Exception, SystemExit) as error:
            self._services.report("", "task", f"a task could not be cancelled: {described(error)}")

    async def _await_ends(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Wait for tasks that were told to end; those that do not are kept from being collected."""
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=self.grace_s)
        for task in late:
            self._leave(task)

    # Handing over

    async def transfer(self, from_id: str, to_id: str, task_ids: Sequence[str]) -> None:
        """Give tasks to another session: all of them or none."""
        if not task_ids or from_id == to_id:
            return
        since = await self.handles.standpoint(to_id)
        await self._store.move_tasks(from_id, to_id, tuple(dict.fromkeys(task_ids)), self._now())
        for task_id in task_ids:
            self.handles.forget(from_id, task_id)
            handle = self._handles.get((from_id, task_id))
            if handle is not None:
                self._rekey(handle, to_id)
            moved = await self._store.task(to_id, task_id)
            if moved is not None:
                if moved.handle and not moved.state.is_terminal:
                    self.handles.watch(to_id, task_id, since)
                self.tell(moved)

    def _rekey(self, handle: TaskHandle, session_id: str) -> None:
        """What runs here for a task is of another session from here on."""
        if self._handles.get(handle.key) is handle:
            del self._handles[handle.key]
        handle.session_id = session_id
        self._handles[handle.key] = handle

    async def follow(self, record: TaskRecord) -> bool:
        """Whether *record* is of a task that runs here, and that another process has handed over."""
        for handle in list(self._handles.values()):
            same = (handle.task_id, handle.created_at) == (record.id, record.created_at)
            if same and await self._store.task(*handle.key) is None:
                self.handles.forget(*handle.key)
                self._rekey(handle, record.session_id)
                if record.handle:  # whoever handed it over looks at what came before that
                    self.handles.watch(*handle.key, await self.handles.standpoint(record.session_id))
                return True
        return False

    async def _moved(self, handle: TaskHandle) -> bool:
        """Whether another process has handed a task over that ran here; then it is followed."""
        if self._handles.get(handle.key) is not handle:
            return False  # it was forgotten
        for record in await self._store.tasks(live=True):
            mine = (record.id, record.owner, record.created_at)
            if mine == (handle.task_id, self.owner, handle.created_at) and not self.has(
                record.session_id, record.id
            ):
                self._rekey(handle, record.session_id)
                return True
        return False

    # Hidden tasks

    def spawn_hidden(self, session_id: str, label: str, work: SessionTask) -> None:
        """Run something that is on no record. Its failure is reported, and goes no further."""
        task = self._start(self._run_hidden(session_id, label, work))
        self._hidden.setdefault(session_id, set()).add(task)
        task.add_done_callback(lambda ended: self._forget_hidden(session_id, ended))

    async def await_hidden(self, session_id: str) -> None:
        """Until the session has no hidden task left, but for the one that asks."""
        me = _HIDDEN.get() or asyncio.current_task()
        while others := [task for task in self._hidden.get(session_id, ()) if task is not me]:
            await asyncio.wait(others)

    async def _run_hidden(self, session_id: str, label: str, work: SessionTask) -> None:
        _HIDDEN.set(asyncio.current_task())
        try:
            await work()
        except (Exception, SystemExit) as error:
            self._services.report("", f"hidden task {label[:80]} of {session_id}", described(error))

    def _forget_hidden(self, session_id: str, task: asyncio.Task[None]) -> None:
        hidden = self._hidden.get(session_id)
        if hidden is not None:
            hidden.discard(task)
            if not hidden:
                del self._hidden[session_id]

    # MonitorEnding

    async def end_session(self, session_id: str) -> None:
        """End everything that goes on beside a session's turns. What asks for that is left alone."""
        mine = _MINE.get()
        keep = [mine.task_id] if mine is not None and mine.session_id == session_id else []
        await self.cancel_all(session_id, keep)
        await self._end_hidden(session_id)

    async def close_tree(self, session_id: str) -> None:
        """Close a session and all below it."""
        await close_tree(self._directory, self._waits, session_id, self._end_beside)

    async def _end_beside(self, session_id: str) -> None:
        await self.end_session(session_id)
        await self.monitors.forget(session_id)

    async def _end_hidden(self, session_id: str) -> None:
        me = _HIDDEN.get() or asyncio.current_task()
        hidden = [task for task in self._hidden.get(session_id, ()) if task is not me]
        for task in hidden:
            task.cancel()
        await self._await_ends(hidden)

    async def abandon(self, session_id: str) -> None:
        """End what runs here for a session that is no more, and has no records either."""
        gone = [handle for handle in self._handles.values() if handle.session_id == session_id]
        for handle in gone:
            await self._end(handle)
            self._handles.pop(handle.key, None)
        self.handles.forget_session(session_id)
        await self._end_hidden(session_id)

    async def finish_hidden(self) -> None:
        """Give hidden tasks the time to end, while the runtime still has its services."""
        tasks = [task for hidden in self._hidden.values() for task in hidden]
        tasks = [task for task in tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=self.hidden_grace_s)

    async def close(self) -> None:
        """End what runs here. Subagents stay on record: whoever takes their turns up goes on with them."""
        self._closing = True
        hidden = [task for tasks in self._hidden.values() for task in tasks]
        running = [handle.task for handle in self._handles.values() if handle.task is not None]
        under_way = (*hidden, *running, *self._left, *self._ends.values())
        for task in under_way:
            task.cancel()
        await self._await_ends(under_way)
        for handle in list(self._handles.values()):
            await self._close_record(handle)
        self._handles.clear()
        retire(self.owner)

    async def _close_record(self, handle: TaskHandle) -> None:
        """A task whose process goes: its record ends, if it did not and nobody can go on with it."""
        with contextlib.suppress(TaskNotFound, StoreError):
            record = await self._store.task(*handle.key)
            if record is not None and _is_plain(record.kind):
                why = "the runtime that ran the task was closed"
                await self.change(*handle.key, changes.interrupted(why, self._now()))

    # Small things

    def has(self, session_id: str, task_id: str) -> bool:
        """Whether somebody in this process looks after the task, or is about to."""
        key = (session_id, task_id)
        return key in self._handles or any(handle.key == key for handle in self._coming)

    async def let_go_of(self, session_id: str, task_id: str) -> None:
        """Ask for the end of a task, on record, without waiting for it."""
        await self.change(session_id, task_id, changes.cancel_asked(self._now()))
        self.cancel_soon(session_id, task_id)

    def cancel_soon(self, session_id: str, task_id: str) -> None:
        """End a task that somebody else wants to end, without waiting for that."""
        key = (session_id, task_id)
        if key not in self._ends:
            ending = self._ends[key] = self._start(self._end_for_others(session_id, task_id))
            ending.add_done_callback(lambda _: self._ends.pop(key, None))

    async def _end_for_others(self, session_id: str, task_id: str) -> None:
        try:
            await self.cancel(session_id, task_id)
        except StandfastError as error:  # the next look at it tries again
            self._services.report("", "task", f"task {task_id!r} could not be ended: {error.message}")

    def tell(self, record: TaskRecord) -> None:
        """Tell observers and the trace what has become of a task."""
        self.handles.heard(record, self.owner)
        self._directory.tell(record.session_id, TaskChanged(record=record))
        if self._services.tracer is not None and record.state.is_terminal:
            self._services.tracer.task(record)

    def _now(self) -> int:
        return self._services.clock.now_ms()


def _is_plain(kind: TaskKind) -> bool:
    """Whether a task is over when the process that runs it is."""
    return kind in (TaskKind.OTHER, TaskKind.OBSERVER)


def child_of(record: TaskRecord) -> str | None:
    """The session that works for a subagent's task."""
    found = record.body.get("session_id") if isinstance(record.body, dict) else None
    return found if isinstance(found, str) else None
