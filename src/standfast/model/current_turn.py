"""The turn that a session is in the middle of."""

from __future__ import annotations

from typing import Literal

import msgspec

from standfast.model.message import Message
from standfast.model.wait import Wait

CurrentState = Literal["running", "waiting", "interrupted"]


class CurrentTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that has not ended, as far as it is on disk; if it runs in this process, as far as it is known.

    `state` is "interrupted" if its process has gone and no other has taken it over yet. The last calls in
    `messages` may have no results yet.
    """

    turn_id: str
    state: CurrentState
    messages: tuple[Message, ...]
    waits: tuple[Wait, ...] = ()
