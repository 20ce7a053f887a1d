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


def same_provider(model_id: str, other_id: str) -> bool:
    """Whether two models are of one provider: the part of their names before the colon."""
    return model_id.partition(":")[0] == other_id.partition(":")[0]
