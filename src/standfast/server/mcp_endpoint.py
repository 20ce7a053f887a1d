"""MCP at `/mcp`: this server's sandbox and agents, behind its credentials, limits and tenants.

Rule: every request is authorized by its own credential: `read` lists and reads, `run` calls tools, and
`approve` lets the client's person decide. Another tenant's sessions do not exist for the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from starlette.responses import Response

from standfast.errors import ServiceUnavailable
from standfast.mcp.callers import McpCaller
from standfast.model.approval import Approval
from standfast.model.session import SessionHead
from standfast.runtime.session_views import is_past
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.problems import forbidden
from standfast.server.streams import Receive, Send
from standfast.server.tenants import METADATA_KEY, new_session_id, owns_id

PATH: Final = "/mcp"
ROUTES: Final = Routes()
"""Not in the OpenAPI document, because the protocol describes itself."""


class CredentialCaller(McpCaller):
    """The holder of a credential, as a client of the MCP server."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.tenant = call.tenant

    def may(self, scope: str) -> bool:
        return self._call.credential.allows(Scope(scope))

    def require(self, scope: str) -> None:
        if not self.may(scope):
            raise forbidden(
                f"this needs the scope {scope}",
                f"create a token with `standfast tokens create --scope {scope}`",
            )
        if scope == Scope.RUN:
            self._call.server.require_serving()

    def own_id(self, given: str) -> str:
        return new_session_id(self._call.tenant, given)

    def owns(self, head: SessionHead) -> bool:
        return head.tenant == self._call.tenant and not is_past(head, self._call.runtime.now_ms())

    def owns_id(self, stored: str) -> bool:
        return owns_id(self._call.tenant, stored)

    @property
    def metadata(self) -> dict[str, Any] | None:
        return {METADATA_KEY: self._call.tenant} if self._call.tenant else None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a turn or run against its credential, and make a shutdown wait for it."""
        server, task = self._call.server, asyncio.current_task()
        assert task is not None
        with server.limiter.use_turn(self._call.credential.id):
            server.turns.add(task)
            try:
                yield
            finally:
                server.turns.discard(task)

    def decided_by(self, client: str) -> str:
        return self._call.credential.identity

    def decided(self, approval: Approval) -> None:
        detail = f"decided {approval.capability} in {approval.session_id} by MCP"
        self._call.audit("decision", approval.approval_id, detail)


class McpResponse(Response):
    """The MCP server's response, with the headers of this server."""

    def __init__(self, call: Call) -> None:
        super().__init__(None, 200)
        self.raw_headers = []
        self._call = call

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        async def send_on(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *self.raw_headers]}
            await send(message)

        call = self._call
        await call.server.mcp.handle(scope, receive, send_on, CredentialCaller(call), call.credential.id)


@ROUTES.add("GET", PATH, Scope.READ)
@ROUTES.add("POST", PATH, Scope.READ)
@ROUTES.add("DELETE", PATH, Scope.READ)
async def serve_mcp(call: Call) -> Response:
    """Handle a request of the Model Context Protocol."""
    server = call.server
    if server.mcp is None:
        try:
            from standfast.mcp.mount import McpMount
            from standfast.mcp.serving import McpService
        except ImportError:
            raise ServiceUnavailable(
                "MCP", "this server lacks the MCP SDK: pip install 'standfast[mcp]'"
            ) from None
        agents = tuple(server.agents.values())
        service = McpService(server.sandbox, server.runtime, agents, trace_file=server.trace_file)
        server.mcp = McpMount(service, max_body_bytes=server.limiter.limits.body_bytes)
    return McpResponse(call)
