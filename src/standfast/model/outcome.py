"""How a turn ends, or that it waits."""

from __future__ import annotations

import enum

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.frame import FrameSwitch
from standfast.model.wait import Wait


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


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished", omit_defaults=True):
    """The model gave its answer; `value` is that answer as `output_type` has it."""

    text: str
    value: Json = None


class FrameSwitched(msgspec.Struct, frozen=True, kw_only=True, tag="frame_switched"):
    """The turn ended by opening a frame."""

    switch: FrameSwitch


class Waiting(msgspec.Struct, frozen=True, kw_only=True, tag="waiting"):
    """The turn stands still until one of these waits ends."""

    waits: tuple[Wait, ...]


class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag="stopped"):
    """The turn ended without an answer."""

    reason: StopReason
    error: ErrorObject


Ended = Finished | FrameSwitched | Stopped
"""Outcomes that are final."""

Outcome = Finished | FrameSwitched | Waiting | Stopped
