"""A task that goes on beside the session's turns was registered, has changed, or is over."""

from __future__ import annotations

import msgspec

from standfast.model.task import TaskRecord


class TaskChanged(msgspec.Struct, frozen=True, kw_only=True, tag="task_changed"):
    """A task that goes on beside the session's turns was registered, has changed, or is over."""

    record: TaskRecord
