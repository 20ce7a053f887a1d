"""What a session runs with, and what may be changed about it."""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.model.canonical import Json
from standfast.model.limits import none_means_defaults
from standfast.model.usage import UsageLimits

_DEFAULT_LIMITS: Final = UsageLimits()


class SessionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's settings as they hold for one session. Plugins may change them when it is configured."""

    model: str = ""
    instructions: str = ""
    limits: UsageLimits = UsageLimits()
    settings: dict[str, Json] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        none_means_defaults(self, _DEFAULT_LIMITS)


def same_provider(model_id: str, other_id: str) -> bool:
    """Whether two models are of one provider: the part of their names before the colon."""
    return model_id.partition(":")[0] == other_id.partition(":")[0]
