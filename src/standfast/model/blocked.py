"""Why a session's next turn cannot run, as the last process that tried has recorded it."""

from __future__ import annotations

import msgspec

from standfast.errors import ErrorObject
from standfast.model.limits import U64


class Blocked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The turn or the queued input that cannot run, and the reason.

    It is a note: it holds as long as that turn stands still, or that input is queued.
    """

    error: ErrorObject
    at_ms: U64
    turn_id: str = ""
    input_id: str = ""
