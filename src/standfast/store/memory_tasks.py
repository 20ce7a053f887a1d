"""The tasks, triggers and occurrences that `MemorySessionStore` keeps.

Rule: whatever can be refused is refused before the first change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from standfast.errors import TaskNotFound
from standfast.model.task import TaskRecord
from standfast.model.trigger import Occurrence, Trigger
from standfast.store import rules
from standfast.store.rules import PlacedTask


class MemoryTasks:
    """All tasks of one store, by session and id."""

    def __init__(self) -> None:
        self._seq = itertools.count(1)
        self._sessions: dict[str, dict[str, PlacedTask]] = {}

    def get(self, session_id: str, task_id: str) -> TaskRecord | None:
        found = self._sessions.get(session_id, {}).get(task_id)
        return None if found is None else found.record

    def all(self, session_id: str | None, live: bool) -> list[TaskRecord]:
        """Tasks of one session or of all, oldest first."""
        found = [it for it in self._of(session_id) if not live or not it.record.state.is_terminal]
        return [it.record for it in sorted(found, key=rules.task_order)]

    def has_live(self, session_id: str) -> bool:
        return any(not it.record.state.is_terminal for it in self._of(session_id))

    def add(self, record: TaskRecord) -> None:
        rules.require_room(self.get(record.session_id, record.id))
        self._put(PlacedTask(record, next(self._seq)))

    def change(self, session_id: str, task_id: str, change: rules.TaskChange) -> TaskRecord:
        placed = self._require(session_id, task_id)
        after = rules.changed_task(placed.record, change)
        self._put(PlacedTask(after, placed.seq))
        return after

    def move(self, from_id: str, to_id: str, task_ids: tuple[str, ...], now_ms: int) -> None:
        """Give tasks to another session, all or none."""
        found = [self._require(from_id, task_id) for task_id in dict.fromkeys(task_ids)]
        if from_id == to_id:
            return
        for placed in found:
            rules.require_room(self.get(to_id, placed.record.id))
        for placed in found:
            self.remove(from_id, placed.record.id)
            self._put(PlacedTask(rules.moved_task(placed.record, to_id, now_ms), placed.seq))

    def remove(self, session_id: str, task_id: str) -> bool:
        tasks = self._sessions.get(session_id, {})
        gone = tasks.pop(task_id, None) is not None
        if gone and not tasks:
            del self._sessions[session_id]
        return gone

    def drop_session(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def _of(self, session_id: str | None) -> Iterator[PlacedTask]:
        if session_id is not None:
            return iter(self._sessions.get(session_id, {}).values())
        return itertools.chain.from_iterable(tasks.values() for tasks in self._sessions.values())

    def _require(self, session_id: str, task_id: str) -> PlacedTask:
        if (found := self._sessions.get(session_id, {}).get(task_id)) is None:
            raise TaskNotFound(session_id, task_id)
        return found

    def _put(self, placed: PlacedTask) -> None:
        record = placed.record
        self._sessions.setdefault(record.session_id, {})[record.id] = placed


class MemoryTriggers:
    """All triggers of one store by name, and what occurred by source and key."""

    def __init__(self) -> None:
        self._triggers: dict[str, Trigger] = {}
        self._occurrences: dict[tuple[str, str], int] = {}

    def put(self, trigger: Trigger) -> None:
        self._triggers[trigger.name] = trigger

    def get(self, name: str) -> Trigger | None:
        return self._triggers.get(name)

    def all(self) -> list[Trigger]:
        """All triggers, by name."""
        return sorted(self._triggers.values(), key=lambda trigger: trigger.name)

    def remove(self, name: str) -> bool:
        return self._triggers.pop(name, None) is not None

    def advance(self, trigger: Trigger) -> None:
        if rules.moves_on(self._triggers.get(trigger.name), trigger):
            self._triggers[trigger.name] = trigger

    def is_known(self, occurrence: Occurrence) -> bool:
        return (occurrence.source, occurrence.key) in self._occurrences

    def note(self, occurrence: Occurrence) -> None:
        self._occurrences[occurrence.source, occurrence.key] = occurrence.at_ms

    def due_sessions(self) -> set[str]:
        """The sessions that a trigger is going to wake at some time."""
        return {it.session_id for it in self._triggers.values() if rules.due_at(it) is not None}

    def drop_session(self, session_id: str) -> None:
        gone = [name for name, it in self._triggers.items() if it.session_id == session_id]
        for name in gone:
            del self._triggers[name]

    def prune(self, before_ms: int) -> int:
        """Delete the occurrences before that time; return how many."""
        old = [place for place, at_ms in self._occurrences.items() if at_ms < before_ms]
        for place in old:
            del self._occurrences[place]
        return len(old)
