"""The tasks that `MemorySessionStore` keeps, and the rules of tasks that other stores use.

Rules
-----
1. Whatever can be refused is refused before the first change.
2. A task keeps its place in the order when it changes and when it moves; one that replaces another is new.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from standfast.errors import InvalidArgument, TaskExists, TaskNotFound
from standfast.model.task import TaskRecord

Change = Callable[[TaskRecord], TaskRecord]


def changed(record: TaskRecord, change: Change) -> TaskRecord:
    """What *change* makes of a task: nothing if the task is over, and never another task."""
    if record.state.is_terminal:
        return record
    after = change(record)
    if (after.session_id, after.id) != (record.session_id, record.id):
        raise InvalidArgument(f"task {record.id!r} cannot become another one", hint="use `move_tasks`")
    return after


def moved(record: TaskRecord, to_id: str, now_ms: int) -> TaskRecord:
    """A task as another session has it."""
    return msgspec.structs.replace(record, session_id=to_id, updated_at=now_ms)


def require_room(there: TaskRecord | None) -> None:
    """`TaskExists` if a task that is not over has the place."""
    if there is not None and not there.state.is_terminal:
        raise TaskExists(there.session_id, there.id)


class Placed(NamedTuple):
    """A task, and its place among those of the same time."""

    record: TaskRecord
    seq: int

    @property
    def order(self) -> tuple[int, int]:
        """Oldest first."""
        return self.record.created_at, self.seq


class MemoryTasks:
    """All tasks of one store, by session and id."""

    def __init__(self) -> None:
        self._seq = itertools.count(1)
        self._sessions: dict[str, dict[str, Placed]] = {}

    def get(self, session_id: str, task_id: str) -> TaskRecord | None:
        found = self._sessions.get(session_id, {}).get(task_id)
        return None if found is None else found.record

    def all(self, session_id: str | None, live: bool) -> list[TaskRecord]:
        """Tasks of one session or of all, oldest first."""
        found = [it for it in self._of(session_id) if not live or not it.record.state.is_terminal]
        return [it.record for it in sorted(found, key=lambda it: it.order)]

    def has_live(self, session_id: str) -> bool:
        return any(not it.record.state.is_terminal for it in self._of(session_id))

    def add(self, record: TaskRecord) -> None:
        require_room(self.get(record.session_id, record.id))
        self._put(Placed(record, next(self._seq)))

    def change(self, session_id: str, task_id: str, change: Change) -> TaskRecord:
        placed = self._require(session_id, task_id)
        after = changed(placed.record, change)
        self._put(Placed(after, placed.seq))
        return after

    def move(self, from_id: str, to_id: str, task_ids: tuple[str, ...], now_ms: int) -> None:
        """Give tasks to another session, all or none."""
        found = [self._require(from_id, task_id) for task_id in dict.fromkeys(task_ids)]
        if from_id == to_id:
            return
        for placed in found:
            require_room(self.get(to_id, placed.record.id))
        for placed in found:
            self.remove(from_id, placed.record.id)
            self._put(Placed(moved(placed.record, to_id, now_ms), placed.seq))

    def remove(self, session_id: str, task_id: str) -> bool:
        tasks = self._sessions.get(session_id, {})
        gone = tasks.pop(task_id, None) is not None
        if gone and not tasks:
            del self._sessions[session_id]
        return gone

    def forget_session(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def _of(self, session_id: str | None) -> Iterator[Placed]:
        if session_id is not None:
            return iter(self._sessions.get(session_id, {}).values())
        return itertools.chain.from_iterable(tasks.values() for tasks in self._sessions.values())

    def _require(self, session_id: str, task_id: str) -> Placed:
        if (found := self._sessions.get(session_id, {}).get(task_id)) is None:
            raise TaskNotFound(session_id, task_id)
        return found

    def _put(self, placed: Placed) -> None:
        record = placed.record
        self._sessions.setdefault(record.session_id, {})[record.id] = placed
