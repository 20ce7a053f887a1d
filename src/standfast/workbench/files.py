"""Session attachments for browsers: images are displayed, other files are downloaded."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from standfast.server.attachments import read_attachment
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.workbench.conversation_html import IMAGES

_SAFE: Final = "default-src 'none'; sandbox; frame-ancestors 'none'"
ROUTES: Final = Routes()


@ROUTES.add("GET", "/sessions/{session_id}/files/{digest}", Scope.READ)
async def file(call: Call) -> Response:
    """Send one attachment of a session."""
    found = await read_attachment(call)
    media_type = found.headers["x-attachment-type"]
    if media_type in IMAGES:
        found.headers["content-type"] = media_type
        found.headers["content-disposition"] = "inline"
        found.headers["cache-control"] = "private, max-age=3600"
    found.headers["content-security-policy"] = _SAFE
    return found
