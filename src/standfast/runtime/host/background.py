"""What the hosts of all sessions of a runtime share: tasks, monitors, who waits for whom."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, cast

from standfast.errors import StandfastError, StoreError
from standfast.model.message import UserMessage
from standfast.model.task import TaskKind, TaskRecord, TaskState
from standfast.ports.session_store import SessionStore
from standfast.runtime.host.closing import TurnWaits
from standfast.runtime.host.task_recovery import recover_tasks
from standfast.runtime.host.tasks import Tasks
from standfast.runtime.sessions.directory import SessionDirectory

_LOOK_S: Final = 1.0
"""So often are tasks and monitors looked after, however often the keeper is woken."""


class BackgroundServices:
    """Made by `Runtime` when it opens, and closed by it."""

    def __init__(self, directory: SessionDirectory) -> None:
        from standfast.runtime.monitors.monitors import Monitors  # not before a runtime is opened

        services = directory.services
        self.waits = TurnWaits()
        self.tasks = Tasks(directory, self.waits)
        self.monitors = self.tasks.monitors = Monitors(
            store=cast(SessionStore, _ReportingStore(services.store, self.tasks.tell)),
            clock=services.clock,
            owner=self.tasks.owner,
            queue_turn=lambda session_id, input_id, text: directory.queue_turn(
                session_id, input_id, UserMessage(content=text)
            ),
            takes_up=directory.works_on,
        )
        self.watched = self.tasks.handles.watched
        self.session_moved = self.tasks.handles.look
        self.session_opened = self.monitors.session_opened
        self.spawn = self.tasks.spawn
        self._directory = directory
        self._looked_s: float | None = None

    async def recover(self, *, now: bool = False) -> None:
        """Look after tasks and monitors whose process is gone, and after handles, but not too often."""
        services = self._directory.services
        at = services.clock.monotonic()
        if not now and self._looked_s is not None and 0 <= at - self._looked_s < _LOOK_S:
            return
        self._looked_s = at
        live = await self._directory.store.tasks(live=True)
        await recover_tasks(self._directory, self.tasks, live)
        await self.tasks.handles.look_at_all()
        for session_id in {task.session_id for task in live if task.kind is TaskKind.MONITOR}:
            await self._directory.put_to_work(session_id)
        try:
            await self.monitors.recover(live)
        except StoreError:
            raise
        except StandfastError as error:
            services.report("", "keeper", f"monitors: {error.message}")

    async def forget_session(self, session_id: str) -> None:
        """End what goes on beside the turns of a session that is no more."""
        await self.tasks.abandon(session_id)
        await self.monitors.forget(session_id)

    async def close(self) -> None:
        with contextlib.suppress(StoreError):
            await self.monitors.close()
        await self.tasks.close()


class _ReportingStore:
    """The store as monitors have it: tells observers when the task of a monitor begins, changes or ends."""

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
