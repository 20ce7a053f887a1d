"""The turn waits, and no worker with it."""

from __future__ import annotations

import msgspec

from standfast.model.wait import Wait


class TurnParked(msgspec.Struct, frozen=True, kw_only=True, tag="turn_parked"):
    """The turn waits, and no worker with it."""

    turn_id: str
    waits: tuple[Wait, ...]
