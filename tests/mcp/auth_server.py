"""A real authorization server and an MCP server that trusts it, on local ports.

The authorization server is made of the SDK's own handlers, which check PKCE, redirect addresses and client
secrets. Every person consents at once. `AuthServer` counts the requests, and tests can change its metadata.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


@dataclass
class AuthServer:
    """The authorization server: an in-memory provider for the SDK's handlers."""

    url: str
    lifetime_s: int = 3600
    seen: Counter[str] = field(default_factory=Counter)
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict)
    codes: dict[str, AuthorizationCode] = field(default_factory=dict)
    access: dict[str, AccessToken] = field(default_factory=dict)
    refresh: dict[str, RefreshToken] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    resource: dict[str, Any] = field(default_factory=dict)

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.seen["register"] += 1
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        self.seen["authorize"] += 1
        code = AuthorizationCode(
            code=secrets.token_urlsafe(24),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        assert authorization_code.resource is not None
        return self._issue(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.seen["refresh"] += 1
        del self.refresh[refresh_token.token]  # each works once
        return self._issue(client.client_id, scopes, f"{self.url}/mcp")

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return None if found is None or (found.expires_at or 0) < time.time() else found

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.seen["revoke"] += 1
        self.access.clear()
        self.refresh.clear()

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise NotImplementedError

    def _issue(self, client_id: str, scopes: list[str], resource: str) -> OAuthToken:
        token = OAuthToken(
            access_token=secrets.token_urlsafe(24),
            refresh_token=secrets.token_urlsafe(24),
            expires_in=self.lifetime_s,
            scope=" ".join(scopes),
        )
        expires = int(time.time()) + self.lifetime_s
        self.access[token.access_token] = AccessToken(
            token=token.access_token,
            client_id=client_id,
            scopes=scopes,
            expires_at=expires,
            resource=resource,
        )
        assert token.refresh_token is not None
        self.refresh[token.refresh_token] = RefreshToken(
            token=token.refresh_token, client_id=client_id, scopes=scopes
        )
        return token

    # Its metadata

    async def metadata_page(self, request: Any) -> JSONResponse:
        self.seen["metadata"] += 1
        plain = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "revocation_endpoint": f"{self.url}/revoke",
            "scopes_supported": ["read", "write"],
            "code_challenge_methods_supported": ["S256"],
        }
        return JSONResponse({**plain, **self.metadata})

    async def resource_page(self, request: Any) -> JSONResponse:
        plain = {"resource": f"{self.url}/mcp", "authorization_servers": [self.url]}
        return JSONResponse({**plain, **self.resource})


class Guarded:
    """The MCP server, which requires tokens of the authorization server; `erase` needs the scope `write`."""

    def __init__(self, app: Any, issuer: AuthServer) -> None:
        self._app, self._issuer = app, issuer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = b""
        while scope["method"] == "POST":
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        given = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        token = await self._issuer.load_access_token(given)
        where = f'resource_metadata="{self._issuer.url}/.well-known/oauth-protected-resource/mcp"'
        if token is None or token.resource != f"{self._issuer.url}/mcp":
            self._issuer.seen["401"] += 1
            return await self._refuse(send, 401, f'Bearer scope="read", {where}')
        params = (json.loads(body).get("params") or {}) if body else {}
        if params.get("name") == "erase" and "write" not in token.scopes:
            challenge = f'Bearer error="insufficient_scope", scope="write", {where}'
            return await self._refuse(send, 403, challenge)

        sent = False

        async def again() -> Any:
            nonlocal sent
            if sent or scope["method"] != "POST":
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)

    async def _refuse(self, send: Any, status: int, challenge: str) -> None:
        headers = [(b"www-authenticate", challenge.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def auth_server() -> Iterator[AuthServer]:
    """Run both servers on one port, on their own thread."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    issuer = AuthServer(f"http://127.0.0.1:{port}")
    server = MCPServer("guarded", log_level="ERROR")
    server.add_tool(lambda: "secret", name="look", description="Look.", structured_output=False)
    server.add_tool(lambda: "gone", name="erase", description="Erase.", structured_output=False)
    mcp_app = server.streamable_http_app(host="127.0.0.1")
    routes = create_auth_routes(
        issuer,
        AnyHttpUrl(issuer.url),
        client_registration_options=ClientRegistrationOptions(
            enabled=True, valid_scopes=["read", "write"], default_scopes=["read", "write"]
        ),
        revocation_options=RevocationOptions(enabled=True),
    )
    ours = [
        Route("/.well-known/oauth-authorization-server", issuer.metadata_page),
        Route("/.well-known/oauth-protected-resource/mcp", issuer.resource_page),
        *(one for one in routes if "well-known" not in one.path),
        Route("/mcp", Guarded(mcp_app, issuer)),
    ]
    app = Starlette(routes=ours, lifespan=mcp_app.router.lifespan_context)
    runner = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        while not runner.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield issuer
    finally:
        runner.should_exit = True
        thread.join(30)
