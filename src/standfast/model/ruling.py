"""The decision of the hooks of one stage, as the journal stores it.

Rule: a ruling is complete; replaying it needs neither the plugins nor their inputs.
"""

from __future__ import annotations

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.limits import UsageEntry
from standfast.model.message import UserMessage
from standfast.model.session import PluginNode


class Ruling(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The decision of a stage's hooks. A plugin's `abort` or a hook's `failure` ends the turn.

    `usage` and `model_calls` are those of the hooks' own model calls.
    """

    messages: tuple[UserMessage, ...] = ()
    events: tuple[PluginNode, ...] = ()
    abort: ErrorObject | None = None
    failure: ErrorObject | None = None
    usage: tuple[UsageEntry, ...] = ()
    model_calls: int = 0

    @property
    def ends_turn(self) -> ErrorObject | None:
        """The error that ends the turn, if any."""
        return self.abort or self.failure


class CallRuling(Ruling, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The decision about a call before it runs. `failure` fails only the call; `settled` gives its result."""

    arguments: dict[str, Json] | None = None
    settled: bool = False
    value: Json = None
    error: ErrorObject | None = None


NOTHING_SAID = Ruling()
"""The ruling of a stage whose hooks decided nothing."""
