"""What a call waited for has happened, or its time is over."""

from __future__ import annotations

import msgspec

from standfast.model.wait import WaitOutcome


class WaitOver(msgspec.Struct, frozen=True, kw_only=True, tag="wait_over"):
    """What a call waited for has happened, or its time is over."""

    turn_id: str
    wait_id: str
    outcome: WaitOutcome
