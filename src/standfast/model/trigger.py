"""Triggers, which wake sessions from outside: named sources, their occurrences, and target sessions.

An occurrence is identified by its source and key. If it is reported again, it is not delivered again. A
delivery is a queued input of the session, written together with the occurrence.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from standfast.model.canonical import Json
from standfast.model.limits import U64
from standfast.model.session import HoldsSessionIds, SessionIdField

SourceName = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]
OccurrenceKey = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The times of a source: a cron expression in `timezone`, an interval, or one moment.

    Times that passed while no process ran give one occurrence (`catch_up="once"`) or none.
    """

    cron: str | None = None
    every_ms: Annotated[int, msgspec.Meta(ge=1_000)] | None = None
    at_ms: U64 | None = None
    timezone: str = "UTC"
    catch_up: Literal["once", "skip"] = "once"


class Trigger(HoldsSessionIds, frozen=True, kw_only=True, omit_defaults=True):
    """A source and the session that gets a turn for each of its occurrences.

    `prompt` is the turn's input; `{payload}` in it is replaced by the occurrence's payload as JSON. With
    `schedule` the source occurs by itself, next at `next_at`.
    """

    name: SourceName
    source: SourceName
    session_id: SessionIdField
    prompt: str = "{payload}"
    schedule: Schedule | None = None
    next_at: U64 | None = None
    created_at: U64 = 0
    enabled: bool = True


class Occurrence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An occurrence at a source."""

    source: SourceName
    key: OccurrenceKey
    at_ms: U64
    payload: Json = None
