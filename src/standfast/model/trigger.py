"""What wakes sessions from outside: named sources, what occurred there, and who is to hear of it.

Rules
-----
1. An occurrence is known by its source and key. However often it is told, it is delivered once.
2. A delivery is a queued input of the session, written together with the occurrence.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from standfast.model.canonical import Json
from standfast.model.limits import U64
from standfast.model.session import SessionIdField, check_session_id

SourceName = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]
OccurrenceKey = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a source occurs by itself: at the times of a cron expression, every so often, or once.

    `timezone` is that of the cron expression. What was missed while nobody ran is made up for once, not for
    each time (`catch_up="once"`), or not at all.
    """

    cron: str | None = None
    every_ms: Annotated[int, msgspec.Meta(ge=1_000)] | None = None
    at_ms: U64 | None = None
    timezone: str = "UTC"
    catch_up: Literal["once", "skip"] = "once"


class Trigger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source and the session that hears of it.

    `prompt` is what the turn is told; `{payload}` in it is the occurrence's payload as JSON. With `schedule`
    the source occurs by itself, next at `next_at`.
    """

    name: SourceName
    source: SourceName
    session_id: SessionIdField
    prompt: str = "{payload}"
    schedule: Schedule | None = None
    next_at: U64 | None = None
    created_at: U64 = 0
    enabled: bool = True

    def __post_init__(self) -> None:
        check_session_id(self.session_id)


class Occurrence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something happened at a source."""

    source: SourceName
    key: OccurrenceKey
    at_ms: U64
    payload: Json = None
