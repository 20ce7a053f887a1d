"""What this model call has streamed is void: it failed, or was cancelled."""

from __future__ import annotations

import msgspec


class TextRetracted(msgspec.Struct, frozen=True, kw_only=True, tag="text_retracted"):
    """What this model call has streamed is void: it failed, or was cancelled."""

    turn_id: str
    number: int
    chars: int
