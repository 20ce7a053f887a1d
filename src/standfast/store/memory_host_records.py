"""The part of `MemorySessionStore` that the runtime's services need: children, tasks, triggers."""

from __future__ import annotations

import threading
from collections.abc import Callable

from standfast.model.session import SessionHead
from standfast.model.task import TaskRecord
from standfast.model.trigger import Occurrence, Trigger
from standfast.ports.session_store import QueuedInput
from standfast.store.memory_tables import Tables


class MemoryHostRecords:
    """Sessions that others made, tasks and triggers, in the tables of a store and under its lock."""

    _lock: threading.Lock
    _tables: Tables

    # Sessions that others made

    async def children(self, session_id: str) -> list[SessionHead]:
        with self._lock:
            found = [self._tables.sessions[it].head for it in self._tables.children.get(session_id, ())]
        return sorted(found, key=lambda head: head.created_at)

    async def with_queued(self) -> list[str]:
        """Which sessions could begin a turn; who has waited longest comes first."""
        with self._lock:
            queued = {it.session_id: None for it in self._tables.inputs.values() if it.kind == "queue"}
            return [session_id for session_id in queued if self._tables.sessions[session_id].open is None]

    # Tasks

    async def add_task(self, record: TaskRecord) -> None:
        with self._lock:
            self._tables.row(record.session_id)
            self._tables.tasks.add(record)

    async def change_task(
        self, session_id: str, task_id: str, change: Callable[[TaskRecord], TaskRecord]
    ) -> TaskRecord:
        with self._lock:
            return self._tables.tasks.change(session_id, task_id, change)

    async def task(self, session_id: str, task_id: str) -> TaskRecord | None:
        with self._lock:
            return self._tables.tasks.get(session_id, task_id)

    async def tasks(self, *, session_id: str | None = None, live: bool = False) -> list[TaskRecord]:
        with self._lock:
            return self._tables.tasks.all(session_id, live)

    async def move_tasks(self, from_id: str, to_id: str, task_ids: tuple[str, ...], now_ms: int) -> None:
        with self._lock:
            self._tables.row(from_id)
            self._tables.row(to_id)
            self._tables.tasks.move(from_id, to_id, task_ids, now_ms)

    async def remove_task(self, session_id: str, task_id: str) -> bool:
        with self._lock:
            return self._tables.tasks.remove(session_id, task_id)

    # Triggers

    async def put_trigger(self, trigger: Trigger) -> None:
        with self._lock:
            self._tables.row(trigger.session_id)
            self._tables.triggers.put(trigger)

    async def trigger(self, name: str) -> Trigger | None:
        with self._lock:
            return self._tables.triggers.get(name)

    async def triggers(self) -> list[Trigger]:
        with self._lock:
            return self._tables.triggers.all()

    async def remove_trigger(self, name: str) -> bool:
        with self._lock:
            return self._tables.triggers.remove(name)

    async def replace_trigger(self, seen: Trigger, by: Trigger) -> bool:
        with self._lock:
            if self._tables.triggers.get(seen.name) != seen:
                return False
            self._tables.triggers.put(by)
            return True

    async def occur(
        self, occurrence: Occurrence, inputs: tuple[QueuedInput, ...], advance: Trigger | None = None
    ) -> bool:
        with self._lock:
            known = self._tables.triggers.is_known(occurrence)
            if not known:
                there = tuple(item for item in inputs if item.session_id in self._tables.sessions)
                for item in self._tables.not_known(there):
                    self._tables.add_input(self._tables.sessions[item.session_id], item)
                self._tables.triggers.note(occurrence)
            if advance is not None:
                self._tables.triggers.advance(advance)
            return not known
