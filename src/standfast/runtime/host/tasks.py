"""The background tasks of a runtime: their registration, execution and end.

Theory of operation
-------------------
The state of a task is its record in the store. This process also has a handle for each task that it owns: an
asyncio task, or the callback that cancels a task run by the caller that registered it. A task ends once: a
later attempt to end it finds the record closed and changes nothing.

Hidden tasks have no record. Closing the runtime awaits them for a grace period, and then cancels them.

Rules
-----
1. A task is recorded before it begins, and its end is recorded before `cancel` returns.
2. Cancelling marks the record first, so that the process that runs the task can end it.
3. A task that does not end within its grace period is abandoned, and recorded as `cancelled`.
4. An exception of a task never propagates to a turn or to the runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, assert_never

from standfast.durable.journal import new_owner, owner_is_gone, retire
from standfast.errors import InvalidArgument, MonitorNotFound, StandfastError, StoreError, TaskNotFound
from standfast.model.events import TaskChanged
from standfast.model.task import TaskKind, TaskRecord, TaskSpec, TaskState
from standfast.plugins.runtime_services import RuntimeServices
from standfast.runtime.host import task_changes as changes
from standfast.runtime.host.async_handles import AsyncHandles
from standfast.runtime.host.closing import WaitGraph, close_tree
from standfast.runtime.host.runtime_monitors import RuntimeMonitors
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.turn import detached
from standfast.tools.tracebacks import described

if TYPE_CHECKING:
    from standfast.ports.host import SessionTask, TaskCancel

GRACE_S: Final = 1.0
"""How long a cancelled task may take to end."""

HIDDEN_GRACE_S: Final = 5.0
"""How long closing a runtime waits for hidden tasks."""

_CLOSED: Final = "the runtime that ran the task was closed"
_HIDDEN: Final[ContextVar[asyncio.Task[Any] | None]] = ContextVar("standfast_hidden_task", default=None)
"""The hidden task in which the current code runs, on any loop."""
_MINE: Final[ContextVar[TaskHandle | None]] = ContextVar("standfast_task", default=None)
"""The managed task in which the current code runs."""


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run *work* in the background, detached from the calling turn."""
    return asyncio.get_running_loop().create_task(work, context=detached())


class LateTasks:
    """Tasks that did not end within their grace period, referenced so that they are not garbage-collected."""

    def __init__(self) -> None:
        self.grace_s = GRACE_S
        self.late: set[asyncio.Task[Any]] = set()

    def keep(self, task: asyncio.Task[Any]) -> None:
        if not task.done():
            self.late.add(task)
            task.add_done_callback(self.late.discard)

    async def wait_for(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Wait for cancelled tasks; keep those that do not end in time."""
        if tasks:
            for task in (await asyncio.wait(tasks, timeout=self.grace_s))[1]:
                self.keep(task)


class HiddenTasks:
    """The hidden tasks of sessions, which have no record. Their failures are only reported."""

    def __init__(self, services: RuntimeServices, ends: LateTasks) -> None:
        self._services = services
        self._ends = ends
        self.running: dict[str, set[asyncio.Task[None]]] = {}
        self.grace_s = HIDDEN_GRACE_S

    def spawn(self, session_id: str, label: str, work: SessionTask) -> None:
        async def run() -> None:
            _HIDDEN.set(asyncio.current_task())
            try:
                await work()
            except (Exception, SystemExit) as error:
                self._services.report("", f"hidden task {label[:80]} of {session_id}", described(error))

        def forget(task: asyncio.Task[None]) -> None:
            tasks = self.running.get(session_id, set())
            tasks.discard(task)
            if not tasks:
                self.running.pop(session_id, None)

        task = _start(run())
        self.running.setdefault(session_id, set()).add(task)
        task.add_done_callback(forget)

    def _others(self, session_id: str) -> list[asyncio.Task[None]]:
        """Return the session's hidden tasks except the calling one."""
        me = _HIDDEN.get() or asyncio.current_task()
        return [task for task in self.running.get(session_id, ()) if task is not me]

    async def wait(self, session_id: str) -> None:
        """Wait until the session has no hidden task other than the calling one."""
        while others := self._others(session_id):
            await asyncio.wait(others)

    async def end(self, session_id: str) -> None:
        """Cancel the session's hidden tasks, except the calling one."""
        others = self._others(session_id)
        for task in others:
            task.cancel()
        await self._ends.wait_for(others)

    def all(self) -> list[asyncio.Task[None]]:
        return [task for tasks in self.running.values() for task in tasks]

    async def finish(self) -> None:
        """Give hidden tasks time to end, while the runtime still has its services."""
        tasks = [task for task in self.all() if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=self.grace_s)


class TaskHandle:
    """A task that this process owns. `session_id` changes when the task is moved to another session."""

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

    async def end(self, services: RuntimeServices, ends: LateTasks) -> None:
        """Cancel the task, and abandon it after the grace period. Concurrent callers share one attempt."""

        async def call(cancel: TaskCancel) -> None:
            try:
                await cancel()
            except (Exception, SystemExit) as error:
                services.report("", "task", f"a task could not be cancelled: {described(error)}")

        async def cancelled() -> None:
            waits: list[asyncio.Task[Any]] = []
            if self.cancel is not None:
                waits.append(_start(call(self.cancel)))
            if self.task is not None:
                waits.append(self.task)
                self.task.cancel()
            await ends.wait_for(waits)

        if self.ending is None:
            self.ending = _start(cancelled())
        await asyncio.shield(self.ending)


class Tasks:
    """The tasks of one open `Runtime`. Used on the runtime's loop."""

    def __init__(self, directory: SessionDirectory, waits: WaitGraph) -> None:
        self._directory = directory
        self._waits = waits
        self._services = directory.services
        self._store = directory.services.store
        self.owner = new_owner(self._services.settings.epoch)
        self.ends = LateTasks()
        self.hidden = HiddenTasks(self._services, self.ends)
        self.monitors = RuntimeMonitors(directory, self.owner, self.tell)
        self.handles = AsyncHandles(directory, self.let_go_of)
        self._handles: dict[tuple[str, str], TaskHandle] = {}
        self._coming: list[TaskHandle] = []
        self._cancelling: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._closing = False

    def _now(self) -> int:
        return self._services.clock.now_ms()

    async def register(self, session_id: str, spec: TaskSpec, cancel: TaskCancel | None = None) -> TaskRecord:
        """Record a task that the caller runs."""
        return await self._add(spec, TaskHandle(session_id, spec, cancel))

    async def spawn(self, session_id: str, spec: TaskSpec, work: SessionTask) -> TaskRecord:
        """Record a task, and run it."""
        handle = TaskHandle(session_id, spec)
        record = await self._add(spec, handle)
        if handle.ending is None:  # unless it was cancelled before it could begin
            handle.task = _start(self._run(handle, work))
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
        """Delete a task's record. The task itself continues, and its end is not recorded."""
        self._let_go((session_id, task_id))
        self.handles.forget(session_id, task_id)
        await self._store.remove_task(session_id, task_id)

    def _let_go(self, key: tuple[str, str]) -> None:
        """Drop the handle of a task, which continues until the runtime closes at the latest."""
        handle = self._handles.pop(key, None)
        if handle is not None and handle.task is not None:
            self.ends.keep(handle.task)

    async def complete(self, session_id: str, task_id: str, state: TaskState) -> None:
        """Record that a task has ended. Does nothing if it has already ended or does not exist."""
        if not state.is_terminal:
            raise InvalidArgument(f"a task cannot end as {state}", hint="use completed, failed or cancelled")
        with contextlib.suppress(TaskNotFound):
            await self.change(session_id, task_id, changes.became(state, self._now()))
            self._let_go((session_id, task_id))

    async def transition(self, session_id: str, task_id: str, state: TaskState) -> None:
        """Record that a live task is running or idle. Does nothing if it has ended or does not exist."""
        if state not in (TaskState.RUNNING, TaskState.IDLE):
            raise InvalidArgument(f"a live task must be running or idle, got {state}")
        with contextlib.suppress(TaskNotFound):
            await self.change(session_id, task_id, changes.progressed(state, self._now()))

    async def change(self, session_id: str, task_id: str, change: changes.Change) -> TaskRecord:
        """Apply *change* to a record and return it; publish an event if it has changed."""
        seen: list[TaskRecord] = []

        def noting(task: TaskRecord) -> TaskRecord:
            seen.append(task)
            return change(task)

        after = await self._store.change_task(session_id, task_id, noting)
        if seen and after != seen[-1]:
            self.tell(after)
        return after

    async def touch(self, record: TaskRecord) -> None:
        """Rewrite a record, so that other machines see that its process is alive."""
        with contextlib.suppress(TaskNotFound):
            touched = changes.touched(self.owner, self._now())
            await self._store.change_task(record.session_id, record.id, touched)

    def tell(self, record: TaskRecord) -> None:
        """Publish a task's change to observers and the trace."""
        self.handles.note(record, self.owner)
        self._directory.tell(record.session_id, TaskChanged(record=record))
        if self._services.tracer is not None and record.state.is_terminal:
            self._services.tracer.task(record)

    async def _run(self, handle: TaskHandle, work: SessionTask) -> None:
        _MINE.set(handle)
        _HIDDEN.set(None)
        change: changes.Change
        try:
            change = changes.finished(await work(), self._now())
        except asyncio.CancelledError:
            if self._closing and not _is_plain(handle.kind):
                return  # the process that continues it closes its record
            change = changes.became(TaskState.CANCELLED, self._now())
            if self._closing:
                change = changes.interrupted(_CLOSED, self._now())
        except (Exception, SystemExit) as error:
            change = changes.broke(error, self._now())
        await self._settle(handle, change)

    async def _settle(self, handle: TaskHandle, change: changes.Change) -> None:
        """Record a task's end, in the session to which it now belongs."""
        key = handle.key
        try:
            await self.change(*key, change)
        except TaskNotFound:  # it was moved or deleted in the meantime
            if handle.key != key or await self._was_moved(handle):
                await self._settle(handle, change)
        except StoreError as error:
            self._services.report(
                "", "task", f"the end of task {handle.task_id!r} is lost: {described(error)}"
            )
        if self._handles.get(handle.key) is handle:
            del self._handles[handle.key]

    async def cancel(self, session_id: str, task_id: str) -> TaskRecord:
        """Cancel a task as its kind requires, and return its record. Does nothing if it has ended."""
        record = await self.change(session_id, task_id, changes.cancel_asked(self._now()))
        if record.state.is_terminal:
            return record
        match record.kind:
            case TaskKind.MONITOR:
                with contextlib.suppress(MonitorNotFound):
                    await self.monitors.opened().stop(session_id, task_id)
                after = await self._store.task(session_id, task_id)
                if after is None:
                    raise TaskNotFound(session_id, task_id)
                if after.state.is_terminal or self._is_elsewhere(after):
                    return after  # the process that runs it closes the record
                record = after
            case TaskKind.SUBAGENT:
                child = child_of(record)
                if child is not None and await self._store.head(child) is not None:
                    await self.close_tree(child)
            case TaskKind.OBSERVER | TaskKind.OTHER:
                if self._is_elsewhere(record):
                    return record  # the record's mark makes its process end it
            case _:
                assert_never(record.kind)
        return await self._stop(record)

    async def cancel_all(self, session_id: str, keep: Iterable[str] = ()) -> list[TaskRecord]:
        """Cancel all live tasks of a session except *keep*, the calling one last; return their records."""
        kept, mine = set(keep), _MINE.get()
        found = await self._store.tasks(session_id=session_id, live=True)
        found = [task for task in found if task.id not in kept]
        last = [task for task in found if mine is not None and mine.key == (session_id, task.id)]
        ended = await asyncio.gather(
            *(self.cancel(session_id, task.id) for task in found if task not in last), return_exceptions=True
        )
        for one in ended:
            if isinstance(one, BaseException) and not isinstance(one, TaskNotFound):
                raise one
        records = [one for one in ended if isinstance(one, TaskRecord)]
        return records + [await self.cancel(session_id, task.id) for task in last]

    def _is_elsewhere(self, record: TaskRecord) -> bool:
        """Return whether a live process other than this one runs the task."""
        gone = owner_is_gone(record.owner, record.updated_at, self._now())
        return record.owner != self.owner and not gone

    async def _stop(self, record: TaskRecord) -> TaskRecord:
        """End the part of a task that runs here, and close its record."""
        key = (record.session_id, record.id)
        handle = self._handles.get(key) or next((one for one in self._coming if one.key == key), None)
        itself = handle is not None and handle is _MINE.get()
        if handle is not None:
            if not itself:
                await handle.end(self._services, self.ends)
            key = handle.key
        after = await self.change(*key, changes.became(TaskState.CANCELLED, self._now()))
        self._handles.pop(key, None)
        if itself and handle is not None and handle.task is not None:
            handle.task.cancel()  # the task cancels itself: it is interrupted at its next await
        return after

    async def let_go_of(self, session_id: str, task_id: str) -> None:
        """Record a request to cancel a task, without waiting for its end."""
        await self.change(session_id, task_id, changes.cancel_asked(self._now()))
        self.cancel_soon(session_id, task_id)

    def cancel_soon(self, session_id: str, task_id: str) -> None:
        """Cancel a task in the background."""
        key = (session_id, task_id)

        async def cancel() -> None:
            try:
                await self.cancel(session_id, task_id)
            except StandfastError as error:  # the next round of recovery retries
                self._services.report("", "task", f"task {task_id!r} could not be ended: {error.message}")

        if key not in self._cancelling:
            ending = self._cancelling[key] = _start(cancel())
            ending.add_done_callback(lambda _: self._cancelling.pop(key, None))

    async def transfer(self, from_id: str, to_id: str, task_ids: Sequence[str]) -> None:
        """Move tasks to another session: all of them or none."""
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
        """Assign the handle of a task that runs here to another session."""
        if self._handles.get(handle.key) is handle:
            del self._handles[handle.key]
        handle.session_id = session_id
        self._handles[handle.key] = handle

    async def follow(self, record: TaskRecord) -> bool:
        """Adopt *record* if its task runs here and another process has moved it to another session."""
        for handle in list(self._handles.values()):
            same = (handle.task_id, handle.created_at) == (record.id, record.created_at)
            if same and await self._store.task(*handle.key) is None:
                self.handles.forget(*handle.key)
                self._rekey(handle, record.session_id)
                if record.handle:  # the process that moved it checks everything before the move
                    self.handles.watch(*handle.key, await self.handles.standpoint(record.session_id))
                return True
        return False

    async def _was_moved(self, handle: TaskHandle) -> bool:
        """Look for the record of a task that another process has moved; return whether it was found."""
        if self._handles.get(handle.key) is not handle:
            return False  # it was deleted
        for record in await self._store.tasks(live=True):
            mine = (record.id, record.owner, record.created_at)
            if mine == (handle.task_id, self.owner, handle.created_at) and not self.has(
                record.session_id, record.id
            ):
                self._rekey(handle, record.session_id)
                return True
        return False

    def has(self, session_id: str, task_id: str) -> bool:
        """Return whether this process owns the task, or is about to."""
        key = (session_id, task_id)
        return key in self._handles or any(handle.key == key for handle in self._coming)

    async def end_session(self, session_id: str) -> None:
        """End all background work of a session, except the calling task."""
        mine = _MINE.get()
        keep = [mine.task_id] if mine is not None and mine.session_id == session_id else []
        await self.cancel_all(session_id, keep)
        await self.hidden.end(session_id)

    async def close_tree(self, session_id: str) -> None:
        """Close a session and all sessions below it."""

        async def end_beside(one: str) -> None:
            await self.end_session(one)
            await self.monitors.forget(one)

        await close_tree(self._directory, self._waits, session_id, end_beside)

    async def abandon(self, session_id: str) -> None:
        """End the tasks running here for a session that was deleted with its records."""
        for handle in [one for one in self._handles.values() if one.session_id == session_id]:
            await handle.end(self._services, self.ends)
            self._handles.pop(handle.key, None)
        self.handles.forget_session(session_id)
        await self.hidden.end(session_id)

    async def close(self) -> None:
        """End all tasks running here.

        Records of subagents stay live for the process that resumes their turns.
        """
        self._closing = True
        running = [handle.task for handle in self._handles.values() if handle.task is not None]
        under_way = (*self.hidden.all(), *running, *self.ends.late, *self._cancelling.values())
        for task in under_way:
            task.cancel()
        await self.ends.wait_for(under_way)
        for handle in list(self._handles.values()):
            with contextlib.suppress(TaskNotFound, StoreError):
                record = await self._store.task(*handle.key)
                if record is not None and _is_plain(record.kind):
                    await self.change(*handle.key, changes.interrupted(_CLOSED, self._now()))
        self._handles.clear()
        retire(self.owner)


def _is_plain(kind: TaskKind) -> bool:
    """Return whether a task of this kind ends with its process."""
    return kind in (TaskKind.OTHER, TaskKind.OBSERVER)


def child_of(record: TaskRecord) -> str | None:
    """Return the session of a subagent's task; None for other tasks."""
    found = record.body.get("session_id") if isinstance(record.body, dict) else None
    return found if isinstance(found, str) else None
