"""A model call failed; it may be tried again."""

from __future__ import annotations

import msgspec

from standfast.errors import ErrorObject


class ModelCallFailed(msgspec.Struct, frozen=True, kw_only=True, tag="model_call_failed"):
    """A model call failed. `attempt` is which try of it, from 1.

    `retryable` tells that such a failure may pass, `retry_in_ms` that the call is tried again and when. None:
    it is not, for the reason that the end of the turn gives.
    """

    turn_id: str
    error: ErrorObject
    retryable: bool
    attempt: int = 1
    retry_in_ms: int | None = None
