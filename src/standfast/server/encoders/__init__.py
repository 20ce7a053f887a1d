"""Protocols of other systems, each a thin encoder in its own module, over the same events.

A module here has `ROUTES`, a `standfast.server.calls.Routes`; `all_routes` lists the modules. Its handlers
open sessions with `conversations.open_conversation`, start turns with `turns.start_turn`, read them as
`turn_parts.TurnParts`, and stream with `sessions.stream`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from standfast.server.calls import Route


def all_routes() -> tuple[Route, ...]:
    """Return the routes of every encoder."""
    from standfast.server.encoders import a2a, ag_ui, openai_chat, openai_responses, vercel

    return (*ag_ui.ROUTES, *vercel.ROUTES, *openai_chat.ROUTES, *openai_responses.ROUTES, *a2a.ROUTES)
