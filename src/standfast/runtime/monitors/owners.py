"""Whether the process that looks after a monitor is gone."""

from __future__ import annotations

from typing import Final

from standfast.model.task import TaskRecord
from standfast.runtime.lease_owners import owner_is_dead
from standfast.runtime.process_identity import machine

HEARTBEAT_MS: Final = 20_000
"""So often a monitor that runs is written anew, whether something happened or not."""
SILENT_MS: Final = 90_000
"""After so long nobody elsewhere looks after it any more, be it that a machine was started anew."""


def owner_is_gone(task: TaskRecord, now_ms: int) -> bool:
    """Nobody has it, its process is provably dead, or is on another machine and has long been silent."""
    if not task.owner or owner_is_dead(task.owner):
        return True
    where = task.owner.rpartition("/")[0].rsplit(":", 2)[0]
    return where != machine() and now_ms - task.updated_at > SILENT_MS
