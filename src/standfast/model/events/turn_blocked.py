"""A turn, or a queued input, cannot run in this process."""

from __future__ import annotations

import msgspec

from standfast.errors import ErrorObject


class TurnBlocked(msgspec.Struct, frozen=True, kw_only=True, tag="turn_blocked"):
    """A turn, or a queued input, cannot run in this process: `error` says what is missing.

    The turn stays as it is, and the runtime tries again. For a queued input `turn_id` is empty.
    """

    error: ErrorObject
    turn_id: str = ""
    input_id: str = ""
