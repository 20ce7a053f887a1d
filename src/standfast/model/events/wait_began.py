"""A call waits for a person, a time or somebody outside."""

from __future__ import annotations

import msgspec

from standfast.model.wait import Wait


class WaitBegan(msgspec.Struct, frozen=True, kw_only=True, tag="wait_began"):
    """A call waits for a person, a time or somebody outside."""

    turn_id: str
    wait: Wait
