"""The store as monitors have it: whoever observes a session hears when one of its monitors begins or ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from standfast.model.task import TaskRecord, TaskState
from standfast.ports.session_store import SessionStore


class _ToldStore:
    """Passes everything on, and tells of tasks whose state is another."""

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


def told(store: SessionStore, tell: Callable[[TaskRecord], None]) -> SessionStore:
    """A store whose tasks are told of."""
    return cast(SessionStore, _ToldStore(store, tell))
