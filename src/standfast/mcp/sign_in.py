"""OAuth sign-in to an MCP server: the SDK's flow, and the parts that it leaves to the application.

Theory of operation
-------------------
The SDK discovers the authorization server, registers a client, uses PKCE, and checks state, issuer and
resource. This module adds the rest: credentials outlive the process, tokens are refreshed before a person is
asked, the sign-in page redirects to a port on this machine, and the URLs in a server's metadata are checked
before any request is sent to them.

Rules
-----
1. Without a person (`open_page`) nothing is registered and no page is opened: the call fails and says how to
   sign in.
2. A server's metadata may only lead to https URLs on the public internet. Only a server that is itself on a
   private network may lead to private addresses, and only one on this machine to http.
3. The connection goes to the address that was checked, even if the name later resolves differently.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.utils import extract_field_from_www_auth, union_scopes
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl

from standfast.errors import McpServerFailed, McpSignInRequired, StandfastError
from standfast.mcp.contracts import clean_text
from standfast.mcp.credentials import SIGN_IN_S, CredentialFile, Credentials, McpSignIn
from standfast.tools.builtin.http import Address, is_public, system_addresses

_CALLBACK: Final = "/callback"
_MAX_HEAD_BYTES: Final = 16384


class SignIn(OAuthClientProvider):
    """The credentials of one server, for the HTTP client. It is also the SDK's token storage."""

    def __init__(
        self, server: str, url: str, settings: McpSignIn, file: CredentialFile, *, anew: bool = False
    ) -> None:
        self.problem: StandfastError | None = None
        self.signed_in = False
        self._anew = anew
        self._scopes = " ".join(settings.scopes) or None
        self._server = server
        self._settings = settings
        self._file = file
        self._listener: asyncio.Server | None = None
        self._returned: asyncio.Future[dict[str, str]] | None = None
        self._state = ""
        address = f"http://127.0.0.1:{settings.redirect_port}{_CALLBACK}"
        super().__init__(
            url,
            OAuthClientMetadata(client_name="Standfast", redirect_uris=[AnyUrl(address)]),
            storage=self,
            redirect_handler=self._show_page,
            callback_handler=self._await_return,
            client_metadata_url=settings.metadata_url,
        )

    # What the SDK stores

    async def _initialize(self) -> None:
        """Load the credentials with their metadata, so that a token is refreshed where it was issued."""
        stored = await asyncio.to_thread(self._file.read)
        if stored.metadata is not None:
            self.context.oauth_metadata = OAuthMetadata.model_validate(stored.metadata)
        if stored.resource is not None:
            found = ProtectedResourceMetadata.model_validate(stored.resource)
            self.context.protected_resource_metadata = found
            self.context.auth_server_url = str(found.authorization_servers[0])
        await super()._initialize()
        self.context.token_expiry_time = stored.expires_at
        if self._anew and self.context.current_tokens is not None:
            self._scopes = union_scopes(self.context.current_tokens.scope, self._scopes)
            self.context.clear_tokens()

    async def get_tokens(self) -> OAuthToken | None:
        found = (await asyncio.to_thread(self._file.read)).tokens
        return None if found is None else OAuthToken.model_validate(found)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        context, self.signed_in = self.context, True
        await asyncio.to_thread(
            self._file.write,
            Credentials(
                client=_written(context.client_info),
                tokens=_written(tokens),
                expires_at=context.token_expiry_time,
                metadata=_written(context.oauth_metadata),
                resource=_written(context.protected_resource_metadata),
            ),
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        if self._settings.client_id is not None:
            method = "client_secret_basic" if self._settings.client_secret else "none"
            return OAuthClientInformationFull(
                client_id=self._settings.client_id,
                client_secret=self._settings.client_secret,
                redirect_uris=self.context.client_metadata.redirect_uris,
                token_endpoint_auth_method=method,
            )
        found = (await asyncio.to_thread(self._file.read)).client
        return None if found is None else OAuthClientInformationFull.model_validate(found)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store nothing yet: the next attempt registers a client without tokens again."""

    # The flow of one request

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow, answered = super()._auth_flow(request), False
        try:
            step = await anext(flow)
            while True:
                if step is request and not answered:
                    answered, response = True, (yield request)
                    if response.status_code == 401 and await self._has_newer_token():
                        self._add_auth_header(request)
                        response = yield request
                    elif response.status_code == 401 and self.context.can_refresh_token():
                        renewed = yield await self._admitted(await self._refresh_token())
                        if await self._handle_refresh_response(renewed):
                            self._add_auth_header(request)
                            response = yield request
                    response = await self._prepare(response)
                else:
                    response = yield step if step is request else await self._admitted(step)
                step = await flow.asend(response)
        except StopAsyncIteration:
            self._anew = False
        except StandfastError as error:
            self.problem = error
            raise
        except Exception as error:
            said = clean_text(str(error).strip() or type(error).__name__, 300)
            self.problem = McpServerFailed(self._server, f"did not complete the sign-in: {said}")
            raise self.problem from None
        finally:
            await flow.aclose()
            if self._listener is not None:
                self._listener.close()
                self._listener = None

    async def _has_newer_token(self) -> bool:
        """Load the token if another process has refreshed it; return whether one has."""
        used = self.context.current_tokens
        stored = await self.get_tokens()
        if used is None or stored is None or stored.access_token == used.access_token:
            return False
        await self._initialize()
        return True

    async def _prepare(self, response: httpx2.Response) -> httpx2.Response:
        """Prepare the SDK's sign-in: raise if there is no person, else listen for the redirect.

        Return the response for the SDK, with the user's scopes added, because the SDK requests only the
        scopes that the server names.
        """
        more = response.status_code == 403 and (
            extract_field_from_www_auth(response, "error") == "insufficient_scope"
        )
        if response.status_code != 401 and not more and not (self._anew and self._scopes):
            return response
        named = extract_field_from_www_auth(response, "scope")
        if self._settings.open_page is None:
            scopes = clean_text(named or "", 200)
            what = f"requires sign-in with the scopes {scopes!r}" if more else "requires sign-in"
            raise McpSignInRequired(self._server, what)
        await self._listen()
        wanted = set((union_scopes(named, self._scopes) or "").split())
        client = None if self._settings.client_id is not None else self.context.client_info
        if client is not None and client.scope is not None and not wanted <= set(client.scope.split()):
            self.context.client_info = None  # the client was registered for fewer scopes
        if not self._scopes:
            return response
        if not more:
            self.context.oauth_metadata = None  # rediscover it, as the SDK does for 401
        where = extract_field_from_www_auth(response, "resource_metadata")
        challenge = f'Bearer error="insufficient_scope", scope="{" ".join(sorted(wanted))}"'
        challenge += f', resource_metadata="{where}"' if where else ""
        return httpx2.Response(403, headers={"WWW-Authenticate": challenge}, request=response.request)

    async def _perform_authorization_code_grant(self) -> tuple[str, str]:
        metadata = self.context.oauth_metadata
        if metadata is not None and "S256" not in (metadata.code_challenge_methods_supported or ()):
            raise OAuthFlowError("the authorization server does not support PKCE with S256")
        return await super()._perform_authorization_code_grant()

    # The page that a person signs in on

    async def _listen(self) -> None:
        """Listen on the port of the registered redirect URI, or on another if that is taken."""
        registered = self.context.client_info.redirect_uris if self.context.client_info else None
        known = urlsplit(str(registered[0])).port if registered else None
        ports = [self._settings.redirect_port] if self._settings.redirect_port else [known or 0, 0]
        self._returned = asyncio.get_running_loop().create_future()
        for port in ports:
            with suppress(OSError):
                self._listener = await asyncio.start_server(
                    self._answer, "127.0.0.1", port, limit=_MAX_HEAD_BYTES
                )
                break
        if self._listener is None:
            raise McpServerFailed(
                self._server,
                f"cannot redirect a sign-in to port {ports[0]}, which is in use",
                hint="choose another redirect_port",
            )
        number = self._listener.sockets[0].getsockname()[1]
        address = AnyUrl(f"http://127.0.0.1:{number}{_CALLBACK}")
        self.context.client_metadata.redirect_uris = [address]
        if self._settings.client_id is None and registered and address not in registered:
            self.context.client_info = None  # the authorization server may compare ports

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the browser, accepting the redirect if its state is that of this sign-in."""
        status, text = "404 Not Found", "There is nothing here."
        try:
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
            target = urlsplit(head.split(" ", 2)[1])
            found = {key: values[0] for key, values in parse_qs(target.query).items()}
            if target.path == _CALLBACK and self._returned is not None and found.get("state") == self._state:
                status, text = "200 OK", "You are signed in. You can close this page."
                if "error" in found:
                    text = "Signing in failed. You can close this page."
                if not self._returned.done():
                    self._returned.set_result(found)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, IndexError, ValueError):
            status, text = "400 Bad Request", "This is not the response of a sign-in page."
        body = f"<!doctype html><title>Standfast</title><p>{text}</p>".encode()
        with suppress(OSError):
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
            writer.close()

    async def _show_page(self, address: str) -> None:
        assert self._settings.open_page is not None
        await self._check_address(address)
        self._state = parse_qs(urlsplit(address).query)["state"][0]
        shown = await asyncio.to_thread(self._settings.open_page, address)
        if inspect.isawaitable(shown):
            await shown

    async def _await_return(self) -> AuthorizationCodeResult:
        assert self._returned is not None
        async with asyncio.timeout(SIGN_IN_S):
            found = await self._returned
        if "error" in found:
            raise OAuthFlowError(f"{found['error']} {found.get('error_description', '')}".strip())
        return AuthorizationCodeResult(
            code=found.get("code", ""), state=found.get("state"), iss=found.get("iss")
        )

    async def revoke(self) -> None:
        """Revoke the tokens at the authorization server, if it supports revocation."""
        await self._initialize()
        metadata, tokens = self.context.oauth_metadata, self.context.current_tokens
        if metadata is None or metadata.revocation_endpoint is None or tokens is None:
            return
        fields = {"token": tokens.refresh_token or tokens.access_token}
        if self.context.client_info is not None:
            fields["client_id"] = self.context.client_info.client_id
        data, headers = self.context.prepare_token_auth(fields, {})
        request = httpx2.Request("POST", str(metadata.revocation_endpoint), data=data, headers=headers)
        async with httpx2.AsyncClient(timeout=10, trust_env=False) as client:
            (await client.send(await self._admitted(request))).raise_for_status()

    # Addresses

    async def _admitted(self, request: httpx2.Request) -> httpx2.Request:
        """Return *request* directed at a checked address; raise `McpServerFailed` if it may not be sent."""
        host = request.url.host
        address = await self._check_address(str(request.url))
        if address is not None and str(address) != host:
            request.extensions["sni_hostname"] = host
            request.url = request.url.copy_with(host=str(address))  # the Host header keeps the name
        return request

    async def _check_address(self, url: str) -> Address | None:
        """Return the address to connect to, None to let the system choose; raise if the URL is forbidden."""
        target, own = urlsplit(url), urlsplit(self.context.server_url)
        if (target.scheme, target.netloc) == (own.scheme, own.netloc):
            return None
        found = await self._addresses(target.hostname or "", target.port or 443)
        if any(one.is_link_local for one in found):  # where clouds serve machine credentials
            raise McpServerFailed(self._server, f"leads to a private address: {clean_text(url, 200)!r}")
        if target.scheme != "https" and not all(one.is_loopback for one in found):
            raise McpServerFailed(self._server, f"leads to {clean_text(url, 200)!r}, which is not https")
        if all(is_public(one) for one in found):
            return found[0]
        trusted = await self._addresses(own.hostname or "", own.port or 443)
        if all(is_public(one) for one in trusted):
            raise McpServerFailed(self._server, f"leads to a private address: {clean_text(url, 200)!r}")
        if any(one.is_loopback for one in found) and not any(one.is_loopback for one in trusted):
            raise McpServerFailed(self._server, f"leads to this machine: {clean_text(url, 200)!r}")
        return None if "localhost" in (target.hostname or "") else found[0]

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            found = await asyncio.to_thread(system_addresses, host, port)
            return sorted((ipaddress.ip_address(one) for one in found), key=lambda one: one.version)
        except (OSError, ValueError) as error:
            raise McpServerFailed(self._server, f"leads to {host!r}: {error}") from None


def _written(value: Any) -> dict[str, Any] | None:
    written: dict[str, Any] | None = None
    if value is not None:
        written = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return written
