"""What a session without a model runs its code with."""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.model.language import Language
from standfast.model.limits import U64, SessionLimits

SANDBOX_AGENT: Final = "(sandbox)"
"""The agent's name in the records of turns without a model. No agent can have it."""


class CodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Language and engine are fixed when the session is made. Past `expires_at` the session is deleted."""

    language: Language
    engine: str
    limits: SessionLimits
    expires_at: U64 | None = None
