"""The HTTP server: agents, sessions, turns and approvals over HTTP, with streams that survive disconnects.

Theory of operation
-------------------
`app.ServerApp` is an ASGI application. A request passes the gate (Host, Origin), is authenticated, and is
dispatched through one table, `routes.ROUTES`: method, path, scope, request type, response type, handler. Each
handler's decorator adds its row. The OpenAPI document and the generated tests come from the same table.
Handlers are thin: they call public methods of `Runtime`, `Session` and `Sandbox` and return values, which are
encoded as JSON.

Rules
-----
1. A turn never depends on a connection. Handlers start turns; the runtime runs them.
2. The credential determines the tenant, and only `tenants` knows how ids map to tenants.
3. Every route needs a credential, except those whose scope is `Scope.PUBLIC` or `Scope.SIGNED`.
4. Another system's protocol is an encoder: its own module in `encoders`, with routes for the same table, over
   the same events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.server.app": "ServerApp create_app",
        "standfast.server.credentials": "Credential Scope Tokens",
        "standfast.server.jwt_auth": "JwtAuth",
        "standfast.server.limits": "Limits",
        "standfast.server.serving": "Listen StandfastServer make_server",
    },
)

if TYPE_CHECKING:
    from standfast.server.app import ServerApp as ServerApp
    from standfast.server.app import create_app as create_app
    from standfast.server.credentials import Credential as Credential
    from standfast.server.credentials import Scope as Scope
    from standfast.server.credentials import Tokens as Tokens
    from standfast.server.jwt_auth import JwtAuth as JwtAuth
    from standfast.server.limits import Limits as Limits
    from standfast.server.serving import Listen as Listen
    from standfast.server.serving import StandfastServer as StandfastServer
    from standfast.server.serving import make_server as make_server
