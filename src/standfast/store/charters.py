"""What stores read in a session's charter."""

from __future__ import annotations

from standfast.model.head import SessionHead


def parent_of(head: SessionHead) -> str | None:
    """The session that made this one."""
    return None if head.charter is None else head.charter.parent_session_id
