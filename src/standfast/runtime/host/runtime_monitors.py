"""The monitors of one open `Runtime`. Their modules are loaded with the first one: few runtimes have any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from standfast.model.message import UserMessage
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.plugins.runtime_services import runtime_not_open
from standfast.ports.session_store import SessionStore
from standfast.runtime.sessions.directory import SessionDirectory

if TYPE_CHECKING:
    from standfast.runtime.monitors.monitors import Monitors


class RuntimeMonitors:
    """Opens `Monitors` when they are first needed. *tell* is called with each change of a monitor's task."""

    def __init__(self, directory: SessionDirectory, owner: str, tell: Callable[[TaskRecord], None]) -> None:
        self._directory = directory
        self._owner = owner
        self._tell = tell
        self._monitors: Monitors | None = None
        self._is_closed = False

    def opened(self) -> Monitors:
        if self._monitors is None:
            if self._is_closed:
                raise runtime_not_open()
            from standfast.runtime.monitors.monitors import Monitors

            directory = self._directory
            self._monitors = Monitors(
                store=cast(SessionStore, _ReportingStore(directory.services.store, self._tell)),
                clock=directory.services.clock,
                owner=self._owner,
                queue_turn=lambda session_id, input_id, text: directory.queue_turn(
                    session_id, input_id, UserMessage(content=text)
                ),
                takes_up=directory.works_on,
            )
        return self._monitors

    async def recover(self, live: Sequence[TaskRecord]) -> None:
        """Recover the monitors among all *live* tasks, and those that run here."""
        has_any = self._monitors is not None or any(task.kind is TaskKind.MONITOR for task in live)
        if has_any and not self._is_closed:
            await self.opened().recover(live)

    async def forget(self, session_id: str) -> None:
        """Stop the monitors of a session that was closed or deleted."""
        if self._monitors is not None:
            await self._monitors.forget(session_id)

    async def close(self) -> None:
        self._is_closed = True
        if self._monitors is not None:
            await self._monitors.close()


class _ReportingStore:
    """The store for monitors, which also publishes an event when a monitor's task begins, changes or ends."""

    def __init__(self, store: SessionStore, tell: Callable[[TaskRecord], None]) -> None:
        self._store = store
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def add_task(self, record: TaskRecord) -> None:
        await self._store.add_task(record)
        self._tell(record)

    async def change_task(
        self, session_id: str, task_id: str, change: Callable[[TaskRecord], TaskRecord]
    ) -> TaskRecord:
        before: list[TaskState] = []

        def noting(task: TaskRecord) -> TaskRecord:
            before.append(task.state)
            return change(task)

        after = await self._store.change_task(session_id, task_id, noting)
        if before and before[-1] is not after.state:
            self._tell(after)
        return after
