"""The MCP server as part of an ASGI application that checks credentials itself."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from standfast.mcp.callers import SCOPE_KEY, McpCaller
from standfast.mcp.serving import McpService


class McpMount:
    """A streamable HTTP endpoint over a service, bound to the loop that creates it.

    The application has already checked Host, Origin and the credential. A session of revision 2025-11-25 can
    be used only with the credential that opened it.
    """

    def __init__(self, service: McpService, *, max_body_bytes: int) -> None:
        self._manager = StreamableHTTPSessionManager(
            service.server(),
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=max_body_bytes,
        )
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()

        async def run() -> None:
            async with self._manager.run():
                self._ready.set()
                await self._stop.wait()

        self._running = asyncio.ensure_future(run())

    async def handle(self, scope: Any, receive: Any, send: Any, caller: McpCaller, owner: str) -> None:
        """Handle a request of *caller*; *owner* identifies its credential."""
        await self._ready.wait()
        user = AuthenticatedUser(AccessToken(token="", client_id=owner, scopes=[]))
        await self._manager.handle_request({**scope, SCOPE_KEY: caller, "user": user}, receive, send)

    async def close(self) -> None:
        """End every session and stream."""
        self._stop.set()
        await asyncio.wait((self._running,))
