"""The model has replied."""

from __future__ import annotations

import msgspec

from standfast.model.message import RequestedCall
from standfast.model.usage import Usage


class ReplyReceived(msgspec.Struct, frozen=True, kw_only=True, tag="reply_received"):
    """The model has replied."""

    turn_id: str
    text: str
    calls: tuple[RequestedCall, ...] = ()
    usage: Usage = Usage()
    model: str = ""
