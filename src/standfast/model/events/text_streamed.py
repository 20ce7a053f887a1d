"""A piece of the reply that is under way."""

from __future__ import annotations

import msgspec


class TextStreamed(msgspec.Struct, frozen=True, kw_only=True, tag="text_streamed"):
    """A piece of the reply that is under way."""

    turn_id: str
    text: str
