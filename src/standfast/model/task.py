"""Background tasks of a session, as the store keeps them.

An id is unique among the live tasks of a session; a new task may reuse the id of one that has ended. A
terminal state never changes. A task whose owner is gone is taken over by another process, or fails as
INTERRUPTED.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.limits import U64
from standfast.model.session import HoldsSessionIds, SessionIdField

TaskId = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]


class TaskKind(enum.StrEnum):
    """The kind of a task, which determines how it is cancelled."""

    MONITOR = "monitor"
    SUBAGENT = "subagent"
    OBSERVER = "observer"
    OTHER = "other"


class TaskState(enum.StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    IDLE = "idle"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED)


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task to register. Only its runner reads `body`, which is stored with the record.

    With `handle` its id is an async handle: the task is cancelled once no message of the frame, queued input,
    plugin state or variable of code contains the id.
    """

    id: TaskId
    kind: TaskKind = TaskKind.OTHER
    label: str = ""
    body: Json = None
    handle: bool = False


class TaskRecord(HoldsSessionIds, frozen=True, kw_only=True, omit_defaults=True):
    """A stored task. `owner` is the process that runs it; `result` or `error` is its outcome."""

    session_id: SessionIdField
    id: TaskId
    kind: TaskKind
    state: TaskState
    created_at: U64
    updated_at: U64
    label: str = ""
    owner: str = ""
    body: Json = None
    result: Json = None
    error: ErrorObject | None = None
    handle: bool = False
