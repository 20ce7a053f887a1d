"""A model call failed; it is tried again if the turn goes on."""

from __future__ import annotations

import msgspec

from holdfast.errors import ErrorObject


class ModelCallFailed(msgspec.Struct, frozen=True, kw_only=True, tag="model_call_failed"):
    """A model call failed; it is tried again if the turn goes on."""

    turn_id: str
    error: ErrorObject
    retryable: bool
