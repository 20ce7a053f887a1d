"""What is known about a sandbox session besides its variables."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from standfast.model.ids import SessionIdField, check_session_id
from standfast.model.language import Language
from standfast.model.limits import U32, U64, SessionLimits, none_means_defaults

SNAPSHOT_VERSION: Final = 2
_DEFAULT_LIMITS: Final = SessionLimits()


class SessionMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Times are milliseconds since 1970."""

    id: SessionIdField = "default"
    created_at: U64 = 0
    last_used_at: U64 = 0
    language: Language = Language.PYTHON
    limits: SessionLimits = SessionLimits()
    snapshot_version: U32 = SNAPSHOT_VERSION

    def __post_init__(self) -> None:
        check_session_id(self.id)
        none_means_defaults(self, _DEFAULT_LIMITS)


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session as `list` and `show` present it. Its `engine` is fixed when it is made."""

    meta: SessionMeta
    engine: str = "monty"
    state: Literal["idle", "waiting_for_approval"] = "idle"
    state_bytes: int = 0
    expires_at: U64 | None = None
    approvals: list[str] = msgspec.field(default_factory=list)
