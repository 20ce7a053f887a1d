"""The outcomes of turns, and the waits of unfinished ones.

Rule: a wait ends exactly once. Every kind has a time (`due_at`) after which it counts as ended.
"""

from __future__ import annotations

import enum
from typing import Literal, final

import msgspec

from standfast.errors.codes import ErrorObject
from standfast.model.canonical import Json
from standfast.model.frame import FrameSwitch
from standfast.model.limits import U64

WaitKind = Literal["approval", "timer", "completion"]


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits. `wait_id` is the approval's id, the completion's token, or the timer's name.

    A call that waits for a timer has the result `value` when the timer is due.
    """

    wait_id: str
    kind: WaitKind
    call_id: int
    due_at: U64
    value: Json = None


class Approved(msgspec.Struct, frozen=True, kw_only=True, tag="approved", omit_defaults=True):
    """A person, `by`, approved the call; `arguments` and positional `args`, if given, replace the call's.

    `answer` is the answer to the tool's question, if it asked one. `grant` is the id of the grant by which
    the call was approved without asking.
    """

    arguments: dict[str, Json] | None = None
    args: list[Json] | None = None
    by: str | None = None
    answer: dict[str, Json] | None = None
    grant: str | None = None


class Denied(msgspec.Struct, frozen=True, kw_only=True, tag="denied", omit_defaults=True):
    """A person, `by`, denied the call."""

    reason: str | None = None
    by: str | None = None


class Expired(msgspec.Struct, frozen=True, kw_only=True, tag="expired"):
    """The wait timed out."""


class Elapsed(msgspec.Struct, frozen=True, kw_only=True, tag="elapsed"):
    """The timer is due."""


class Completed(msgspec.Struct, frozen=True, kw_only=True, tag="completed"):
    """The call's result was delivered from outside."""

    value: Json = None


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The call's failure was delivered from outside."""

    error: ErrorObject


WaitOutcome = Approved | Denied | Expired | Elapsed | Completed | Failed


class StopReason(enum.StrEnum):
    """Why a turn ended without an answer."""

    CANCELLED = "cancelled"
    TURN_BUDGET = "turn_budget"
    NO_PROGRESS = "no_progress"
    PLUGIN_ABORT = "plugin_abort"
    PROVIDER_ERROR = "provider_error"
    TOOL_ERROR = "tool_error"
    CONTEXT_OVERFLOW = "context_overflow"
    OUTPUT_INVALID = "output_invalid"
    INTERRUPTED = "interrupted"


@final
class Finished(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="finished", omit_defaults=True):
    """The model gave its answer; `value` is that answer converted to `output_type`."""

    text: str
    value: Json = None


@final
class FrameSwitched(msgspec.Struct, frozen=True, kw_only=True, tag="frame_switched"):
    """The turn ended by opening a frame."""

    switch: FrameSwitch


@final
class Waiting(msgspec.Struct, frozen=True, kw_only=True, tag="waiting"):
    """The turn is parked until one of these waits ends."""

    waits: tuple[Wait, ...]


@final
class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag="stopped"):
    """The turn ended without an answer."""

    reason: StopReason
    error: ErrorObject


Ended = Finished | FrameSwitched | Stopped
"""The final outcomes."""

Outcome = Finished | FrameSwitched | Waiting | Stopped
