"""The triggers and occurrences that `MemorySessionStore` keeps, and the rules that other stores use.

Rule: a trigger moves on only if it is the one that its mover has seen. So whoever was slow neither takes it
back to an earlier time nor undoes what somebody changed about it.
"""

from __future__ import annotations

import msgspec

from standfast.model.trigger import Occurrence, Trigger


def due_at(trigger: Trigger) -> int | None:
    """When the trigger's source occurs by itself; None if it does not."""
    return trigger.next_at if trigger.enabled else None


def moves_on(stored: Trigger | None, advance: Trigger) -> bool:
    """Whether *advance* is the stored trigger with a later time, or with none because it is done."""
    if stored is None or (due := due_at(stored)) is None:
        return False
    seen = msgspec.structs.replace(stored, next_at=advance.next_at, enabled=advance.enabled)
    return seen == advance and (advance.next_at is None or due < advance.next_at)


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
        if moves_on(self._triggers.get(trigger.name), trigger):
            self._triggers[trigger.name] = trigger

    def is_known(self, occurrence: Occurrence) -> bool:
        return (occurrence.source, occurrence.key) in self._occurrences

    def note(self, occurrence: Occurrence) -> None:
        self._occurrences[occurrence.source, occurrence.key] = occurrence.at_ms

    def due_sessions(self) -> set[str]:
        """The sessions that a trigger is going to wake at some time."""
        return {it.session_id for it in self._triggers.values() if due_at(it) is not None}

    def forget_session(self, session_id: str) -> None:
        gone = [name for name, it in self._triggers.items() if it.session_id == session_id]
        for name in gone:
            del self._triggers[name]

    def prune(self, before_ms: int) -> int:
        """Forget what occurred before that time; returns how many."""
        old = [place for place, at_ms in self._occurrences.items() if at_ms < before_ms]
        for place in old:
            del self._occurrences[place]
        return len(old)
