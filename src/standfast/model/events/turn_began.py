"""A turn runs, for the first time or again after a crash or a wait."""

from __future__ import annotations

import msgspec

from standfast.model.ids import SessionIdField, check_session_id


class TurnBegan(msgspec.Struct, frozen=True, kw_only=True, tag="turn_began"):
    """A turn runs, for the first time or again after a crash or a wait."""

    turn_id: str
    session_id: SessionIdField
    resumed: bool = False

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
