"""A turn runs, for the first time or again after a crash or a wait."""

from __future__ import annotations

import msgspec


class TurnBegan(msgspec.Struct, frozen=True, kw_only=True, tag="turn_began"):
    """A turn runs, for the first time or again after a crash or a wait."""

    turn_id: str
    session_id: str
    resumed: bool = False
