"""A piece of the model's reasoning."""

from __future__ import annotations

import msgspec


class ReasoningStreamed(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning_streamed"):
    """A piece of the model's reasoning."""

    turn_id: str
    text: str
