"""A node of the history, read back."""

from __future__ import annotations

import msgspec

from standfast.model.node import Payload


class NodeCommitted(msgspec.Struct, frozen=True, kw_only=True, tag="node_committed"):
    """A node of the history, read back."""

    node_id: str
    depth: int
    frame: str
    caused_by: str
    at_ms: int
    payload: Payload
