"""The turn is over and on disk."""

from __future__ import annotations

import msgspec

from standfast.model.outcome import Ended
from standfast.model.usage import Usage


class TurnCommitted(msgspec.Struct, frozen=True, kw_only=True, tag="turn_committed"):
    """The turn is over and on disk. It added `nodes` nodes; the path now has `depth`."""

    turn_id: str
    outcome: Ended
    usage: Usage
    depth: int
    nodes: int = 0
