"""Injected messages reached the turn."""

from __future__ import annotations

import msgspec

from standfast.model.message import UserMessage


class MessagesDelivered(msgspec.Struct, frozen=True, kw_only=True, tag="messages_delivered"):
    """Injected messages reached the turn."""

    turn_id: str
    messages: tuple[UserMessage, ...]
