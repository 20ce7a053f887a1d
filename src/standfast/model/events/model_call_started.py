"""The model is being asked."""

from __future__ import annotations

import msgspec


class ModelCallStarted(msgspec.Struct, frozen=True, kw_only=True, tag="model_call_started"):
    """The model is being asked."""

    turn_id: str
    number: int
    attempt: int = 1
