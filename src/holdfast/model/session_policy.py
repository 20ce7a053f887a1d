"""What a session runs with, and what may be changed about it."""

from __future__ import annotations

import msgspec

from holdfast.model.canonical import Json
from holdfast.model.usage import UsageLimits


class SessionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's settings as they hold for one session. Plugins may change them when it is configured."""

    model: str = ""
    instructions: str = ""
    limits: UsageLimits = UsageLimits()
    settings: dict[str, Json] = msgspec.field(default_factory=dict)
