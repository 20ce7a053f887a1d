"""A turn as the store knows it."""

from __future__ import annotations

import enum

import msgspec

from standfast.model.call import ExternalCallRecord
from standfast.model.ids import SessionIdField, check_session_id
from standfast.model.limits import U64
from standfast.model.outcome import Outcome
from standfast.model.usage import Usage


class TurnState(enum.StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


class TurnSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a turn once it waits or has ended; its messages are in the graph."""

    outcome: Outcome
    usage: Usage = Usage()
    calls: tuple[ExternalCallRecord, ...] = ()


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One turn at rest. `summary` is there when it waits or has ended."""

    turn_id: str
    session_id: SessionIdField
    state: TurnState
    created_at: U64
    agent: str = ""
    ended_at: U64 | None = None
    idempotency_key: str | None = None
    input_digest: str = ""
    cancel_requested: bool = False
    summary: TurnSummary | None = None

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
