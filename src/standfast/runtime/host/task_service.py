"""What plugins and tools may do with background tasks, and with input for turns."""

from __future__ import annotations

from collections.abc import Sequence

from standfast.errors import TaskNotFound
from standfast.model.message import InjectedTurnInput
from standfast.model.task import TaskRecord, TaskSpec, TaskState
from standfast.ports.host import SessionTask, TaskCancel
from standfast.ports.session_store import QueuedInput
from standfast.runtime.host.service import HostService
from standfast.runtime.host.tasks import Tasks
from standfast.runtime.turn import new_input_id


class TaskService(HostService):
    """The `TaskHost` of a session."""

    __slots__ = ()

    async def inject_turn_input(self, session_id: str, input: InjectedTurnInput) -> str:
        """A message for the running turn, or for the next one. A session may tell those above it, too."""
        await self._head("inject_turn_input", session_id, upward=True)
        item = QueuedInput(
            input_id=input.id or new_input_id(),
            session_id=session_id,
            kind="inject",
            message=input.message,
            created_at=self._directory.now_ms(),
        )
        await self._directory.store.put_input(item)
        return item.input_id

    async def spawn_hidden_task(self, session_id: str, label: str, task: SessionTask) -> None:
        """Run something that is not listed. It is awaited before the runtime closes."""
        await self._head("spawn_hidden_task", session_id)
        self._background.tasks.hidden.spawn(session_id, label, task)

    async def await_hidden_tasks(self, session_id: str) -> None:
        if self.is_open:
            await self._background.tasks.hidden.wait(session_id)

    async def spawn_managed_task(self, session_id: str, spec: TaskSpec, task: SessionTask) -> TaskRecord:
        """Run something on record: what it returns or raises is kept."""
        tasks = await self._tasks("spawn_managed_task", session_id)
        return await tasks.spawn(session_id, spec, task)

    async def cancel_managed_task(self, session_id: str, task_id: str) -> None:
        await (await self._tasks("cancel_managed_task", session_id)).cancel(session_id, task_id)

    async def register_background_task(
        self, session_id: str, spec: TaskSpec, cancel: TaskCancel | None = None
    ) -> TaskRecord:
        """Put something on record that the caller runs; `cancel` ends it."""
        tasks = await self._tasks("register_background_task", session_id)
        return await tasks.register(session_id, spec, cancel)

    async def unregister_background_task(self, session_id: str, task_id: str) -> None:
        if self.is_open:
            tasks = await self._tasks("unregister_background_task", session_id)
            await tasks.unregister(session_id, task_id)

    async def complete_background_task(self, session_id: str, task_id: str, state: TaskState) -> None:
        if self.is_open:
            tasks = await self._tasks("complete_background_task", session_id)
            await tasks.complete(session_id, task_id, state)

    async def transition_background_task_live_state(
        self, session_id: str, task_id: str, state: TaskState
    ) -> None:
        if self.is_open:
            tasks = await self._tasks("transition_background_task_live_state", session_id)
            await tasks.transition(session_id, task_id, state)

    async def list_background_tasks(self, session_id: str) -> list[TaskRecord]:
        """The session's tasks, oldest first, those that are over included."""
        await self._tasks("list_background_tasks", session_id)
        return await self._directory.store.tasks(session_id=session_id)

    async def cancel_background_task(self, session_id: str, task_id: str) -> TaskRecord:
        """End a task as its kind wants it: a monitor's processes, a subagent's sessions, or what runs."""
        return await (await self._tasks("cancel_background_task", session_id)).cancel(session_id, task_id)

    async def cancel_all_background_tasks(self, session_id: str) -> list[TaskRecord]:
        return await (await self._tasks("cancel_all_background_tasks", session_id)).cancel_all(session_id)

    async def validate_async_handles_visible(self, session_id: str, handle_ids: Sequence[str]) -> None:
        """`TaskNotFound` for the first id that is no task of the session."""
        await self._tasks("validate_async_handles_visible", session_id)
        for task_id in handle_ids:
            if await self._directory.store.task(session_id, task_id) is None:
                raise TaskNotFound(session_id, task_id)

    async def transfer_async_handles(
        self, from_session_id: str, to_session_id: str, handle_ids: Sequence[str]
    ) -> None:
        """Give tasks to another session, which may be one above: all of them or none."""
        tasks = await self._tasks("transfer_async_handles", from_session_id)
        await self._head("transfer_async_handles", to_session_id, upward=True)
        await tasks.transfer(from_session_id, to_session_id, handle_ids)

    async def cancel_unreferenced_async_handles(
        self, session_id: str, keep_handle_ids: Sequence[str]
    ) -> list[TaskRecord]:
        """End the live tasks of a session except those in *keep_handle_ids*."""
        tasks = await self._tasks("cancel_unreferenced_async_handles", session_id)
        return await tasks.cancel_all(session_id, keep_handle_ids)

    async def _tasks(self, method: str, session_id: str) -> Tasks:
        await self._head(method, session_id)
        return self._background.tasks
