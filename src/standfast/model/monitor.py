"""Commands that watch something for a session, and their updates.

Each non-empty line on standard output is an update, on standard error a notice. A monitor keeps its last
`RING` updates; a batch reports how many were dropped before it. A monitor that wakes its session has at most
one wake in progress until its updates are taken.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal

import msgspec

from standfast.errors import ErrorObject
from standfast.model.limits import U64
from standfast.model.task import TaskId

RING: Final = 128
DEFAULT_TIMEOUT_MS: Final = 300_000
MAX_TIMEOUT_MS: Final = 3_600_000
MAX_LINE_CHARS: Final = 4_096
"""Longer lines are truncated."""


class WakePolicy(enum.StrEnum):
    """The effect of an update: it waits to be taken, or a turn is queued for it."""

    NOTIFY = "notify"
    QUEUE_TURN = "queue_turn"


class MonitorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command to run. A string is for the shell, a list is the program and its arguments.

    `arm` says whether it starts by hand or whenever the session is opened; `restart`, whether a command that
    was running when its process died starts again.
    """

    id: TaskId
    command: str | tuple[str, ...]
    description: str = ""
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMEOUT_MS)] = DEFAULT_TIMEOUT_MS
    wake: WakePolicy = WakePolicy.NOTIFY
    arm: Literal["manual", "session_start"] = "manual"
    restart: bool = False


class MonitorState(enum.StrEnum):
    ARMED = "armed"
    RUNNING = "running"
    EXITED = "exited"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self not in (MonitorState.ARMED, MonitorState.RUNNING)


class MonitorUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a monitor's output. `seq` counts the updates of the monitor from 1."""

    monitor_id: TaskId
    seq: U64
    at_ms: U64
    kind: Literal["update", "notice", "end"]
    text: str


class MonitorStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a monitor. `pending` updates are not taken yet; `wakes` says if a wake is in progress."""

    spec: MonitorSpec
    state: MonitorState
    started_at: U64 = 0
    updated_at: U64 = 0
    exit_code: int | None = None
    pending: int = 0
    wakes: bool = False
    error: ErrorObject | None = None


class MonitorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The monitors of a session, in the order of their first start."""

    monitors: tuple[MonitorStatus, ...] = ()


class MonitorUpdateBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The updates of monitors since the last batch, oldest first. `lost` were dropped before them."""

    updates: tuple[MonitorUpdate, ...] = ()
    lost: int = 0
