"""The ASGI application: routes each request to its handler and turns the handler's value into a response.

Rules
-----
1. The order of checks is Host and Origin, credential, rate limit, route, scope, parameters, body. A client
   without a credential learns nothing about routes or sessions.
2. A body is read up to its limit and for at most `BODY_S` seconds; a larger or slower one is rejected.
3. Every response forbids sniffing, framing and caching.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response

from standfast.errors import Code, RequestRefused, StandfastError
from standfast.ports.clock import SystemClock
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.sandbox import Sandbox
from standfast.runtime.sessions.directory import agents_by_name
from standfast.server import mcp_endpoint
from standfast.server.audit import AuditLog
from standfast.server.calls import JSON, BrowserPages, Call, Route, ServerState, convert_query, whole_numbers
from standfast.server.credentials import Authenticator, Credential, Scope, Tokens
from standfast.server.gate import OriginGate
from standfast.server.limits import CredentialLimiter, Limits
from standfast.server.openapi import PATH_PATTERNS, openapi_document
from standfast.server.problems import (
    INVALID_CREDENTIAL,
    NO_CREDENTIAL,
    forbidden,
    malformed,
    problem_response,
    status_of,
    unauthenticated,
)
from standfast.server.routes import ROUTES, RouteTable, published
from standfast.server.session_feed import SessionFeed
from standfast.server.signin import COOKIE
from standfast.server.streams import EventStream, OpenStreams, Receive, Send

BODY_S: Final = 30.0
_CLEAN_S: Final = 600.0
_log: Final = logging.getLogger("standfast.server")
_encode: Final = msgspec.json.Encoder().encode
_PUBLIC: Final = Credential(id="")
_CHECKED_PATH: Final = {name: re.compile(pattern) for name, pattern in PATH_PATTERNS.items()}
_JSON_TYPE: Final = (b"content-type", JSON.encode())
_SAFETY: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]


def create_app(
    runtime: Runtime,
    *,
    agents: Iterable[AgentDefinition[Any, Any]] = (),
    auth: Authenticator | None = None,
    sandbox: Sandbox | None = None,
    limits: Limits | None = None,
    allow_hosts: Iterable[str] = (),
    allow_origins: Iterable[str] = (),
    webhook_secrets: Mapping[str, str] | None = None,
    audit_file: Path | None = None,
    trace_file: str | None = None,
    pages: BrowserPages | None = None,
    publish_agent_card: bool = False,
) -> ServerApp:
    """Return an ASGI application that serves *runtime*. It can also be mounted inside another application.

    Args:
        runtime: if it is not open, the application opens it on startup and closes it on shutdown.
        agents: the agents that clients may use; by default the runtime's own.
        auth: accepts credentials besides the tokens in the store, such as `JwtAuth(...)`.
        sandbox: runs code for clients, over the same data as *runtime*; without it the server runs no code.
        limits: the limits of each credential.
        allow_hosts: host names of this server besides the loopback names.
        allow_origins: origins, such as `https://app.example.com`, whose pages may use this server.
        webhook_secrets: the secret of each webhook source.
        audit_file: the file for decisions, sign-ins and rejected requests; by default they go to the logger
            `standfast.audit`.
        trace_file: the file that the runtime's `JsonlTrace` writes, for `/v1/sessions/{id}/trace`.
        pages: the pages for browsers, such as `standfast.workbench.PAGES`.
        publish_agent_card: serve A2A agent cards to clients without a credential.
    """
    known = agents_by_name(agents) or dict(runtime.agents)
    return ServerApp(
        runtime,
        known,
        OriginGate(allow_hosts, allow_origins),
        CredentialLimiter(limits or Limits(), SystemClock().monotonic),
        auth=auth,
        sandbox=sandbox,
        webhook_secrets=webhook_secrets or {},
        audit=AuditLog(SystemClock(), audit_file),
        trace_file=trace_file,
        pages=pages,
        routes=published(ROUTES) if publish_agent_card else ROUTES,
    )


class ServerApp:
    """The ASGI application. Use it on one event loop, the runtime's."""

    def __init__(
        self,
        runtime: Runtime,
        agents: Mapping[str, AgentDefinition[Any, Any]],
        gate: OriginGate,
        limiter: CredentialLimiter,
        *,
        auth: Authenticator | None,
        sandbox: Sandbox | None,
        webhook_secrets: Mapping[str, str],
        audit: AuditLog,
        trace_file: str | None,
        pages: BrowserPages | None = None,
        routes: tuple[Route, ...] = ROUTES,
    ) -> None:
        self._runtime = runtime
        self._agents = agents
        self._gate = gate
        self._limiter = limiter
        self._auth = auth
        self._sandbox = sandbox
        self._webhook_secrets = webhook_secrets
        self._audit = audit
        self._trace_file = trace_file
        self._pages = pages
        self._page_routes = () if pages is None else pages.routes
        self._routes = routes
        self._table = RouteTable((*routes, *mcp_endpoint.ROUTES, *self._page_routes))
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
        self._state: ServerState | None = None
        self._cleaning: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    @property
    def state(self) -> ServerState:
        """The state that handlers share. The runtime must be open."""
        if self._state is None:
            self._state = ServerState(
                runtime=self._runtime,
                agents=self._agents,
                sandbox=self._sandbox,
                tokens=Tokens(self._runtime.store),
                audit=self._audit,
                limiter=self._limiter,
                streams=OpenStreams(),
                feed=SessionFeed(self._runtime),
                webhook_secrets=self._webhook_secrets,
                trace_file=self._trace_file,
                document=_encode(openapi_document(self._routes)),
            )
            self._state.streams.start()
            self._cleaning = asyncio.get_running_loop().create_task(self._clean(self._state.tokens))
        return self._state

    async def _clean(self, tokens: Tokens) -> None:
        while True:
            try:
                await tokens.forget_expired()
            except StandfastError as error:
                _log.warning("expired codes could not be deleted: %s", error)
            await asyncio.sleep(_CLEAN_S)

    # Start and end

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        opened: list[Runtime | Sandbox] = []
        try:
            for part in (self._runtime, self._sandbox):
                if part is not None and not part.is_open:
                    await part.__aenter__()
                    opened.append(part)
            _ = self.state
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        with contextlib.suppress(asyncio.CancelledError):  # a second Ctrl-C: exit immediately
            await receive()
        await self.close()
        for part in reversed(opened):
            await part.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})

    async def drain(self, grace_s: float) -> None:
        """Reject new turns, wait up to *grace_s* for running ones, then end all streams.

        Turns that are still running stay in the store; closing the runtime releases them to another process.
        """
        state = self.state
        state.draining = True
        if state.turns and grace_s > 0:
            await asyncio.wait(set(state.turns), timeout=grace_s)
        await asyncio.sleep(0)  # let streams send the results of those turns
        state.streams.end_all()
        if state.mcp is not None:
            await state.mcp.close()

    async def close(self) -> None:
        """End the streams and background tasks. The runtime stays open."""
        state, self._state = self._state, None
        if self._cleaning is not None:
            self._cleaning.cancel()
            await asyncio.wait((self._cleaning,))
        if state is not None:
            if state.mcp is not None:
                await state.mcp.close()
            await state.streams.close()
            await state.feed.close()
        self._audit.close()

    # One request

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        response, label = await self._answer(scope, headers, receive)
        counts, key = self.state.counts, (label, response.status_code)
        counts[key] = counts.get(key, 0) + 1
        own = response.raw_headers
        if not isinstance(response, JsonResponse):
            stated = {name for name, _ in own}
            own += [header for header in _SAFETY if header[0] not in stated]
        if "origin" in headers:
            own += self._gate.cors_headers(headers)
        await response(scope, receive, send)

    async def _answer(
        self, scope: Any, headers: Mapping[str, str], receive: Receive
    ) -> tuple[Response | EventStream | JsonResponse, str]:
        """Return the response to a request, and the path of its route."""
        credential, route = _PUBLIC, None
        try:
            method, path = str(scope["method"]), _path(scope)
            found = self._table.find(path)
            public = self._public_route(found, method)
            if public is not None:
                navigable = path == "/signin"
            else:  # a page, which other sites may link to
                navigable = found is not None and method == "GET" and found[0].get("GET") in self._page_routes
            self._gate.check(method, headers, scope["scheme"], navigable=navigable)
            if method == "OPTIONS" and "access-control-request-method" in headers:
                return Response(None, 204, self._gate.preflight_headers(headers)), "OPTIONS"
            if public is None:
                credential = await self._authenticate(scope, headers, method, navigable)
                self._limiter.admit(credential.id)
            else:
                self._limiter.admit(f"!{_client(scope)}")
            route, values = _route(found, method, path)
            self._require_scope(route, credential)
            call = Call(
                server=self.state,
                route=route,
                scope=scope,
                headers=headers,
                credential=credential,
                path=values,
                query=convert_query(route.query, _query(scope)),
                body=await self._body(route, headers, receive),
            )
            return _response(route, await route.handler(call)), route.path
        except StandfastError as error:
            response = self._problem(error, headers, str(scope["path"]))
            if response.status_code in (401, 403, 421, 429):
                self._record_refusal(scope, credential, error, response.status_code)
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            internal = RequestRefused(
                500, Code.RUNTIME_ERROR, "internal error", hint="the server's log has the details"
            )
            response = self._problem(internal, headers, str(scope["path"]))
        return response, route.path if route is not None else "-"

    def _public_route(
        self, found: tuple[dict[str, Route], dict[str, str]] | None, method: str
    ) -> Route | None:
        """Return the route of a request if it needs no credential, else None."""
        route = None if found is None else found[0].get("GET" if method == "HEAD" else method)
        return route if route is not None and route.scope in (Scope.PUBLIC, Scope.SIGNED) else None

    def _problem(self, error: StandfastError, headers: Mapping[str, str], path: str) -> Response:
        if self._pages is None or "text/html" not in headers.get("accept", ""):
            return problem_response(error, path)
        return self._pages.problem(error, status_of(error))

    async def _authenticate(
        self, scope: Any, headers: Mapping[str, str], method: str, navigable: bool
    ) -> Credential:
        token, from_cookie = _token(headers)
        credential = None
        if token:
            credential = await self.state.tokens.authenticate(token)
            if credential is None and self._auth is not None and not from_cookie:
                credential = await self._auth.authenticate(token)
        if credential is None:
            self._limiter.count_failure(_client(scope))
            raise unauthenticated(INVALID_CREDENTIAL if token else NO_CREDENTIAL)
        if from_cookie:
            self._gate.check_cookie(method, headers, scope["scheme"], navigable=navigable)
        return credential

    def _require_scope(self, route: Route, credential: Credential) -> None:
        if route.scope in (Scope.PUBLIC, Scope.SIGNED):
            return
        if not credential.allows(route.scope):
            raise forbidden(
                f"this needs the scope {route.scope}",
                f"create a token with `standfast tokens create --scope {route.scope}`",
            )
        if route.operator_only and credential.tenant:
            raise forbidden("this needs a credential without a tenant")

    async def _body(self, route: Route, headers: Mapping[str, str], receive: Receive) -> Any:
        limits = self._limiter.limits
        limit = limits.attachment_bytes if route.path == "/v1/attachments" else limits.body_bytes
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length[:19]) > limit:
            raise _too_large(limit)
        if route.body is None:
            return None
        if (
            route.body is not bytes
            and headers.get("content-type", "").partition(";")[0].strip().lower() != JSON
        ):
            raise RequestRefused(
                415, Code.INVALID_ARGUMENT, "the body must be JSON", hint=f"send Content-Type: {JSON}"
            )
        try:
            async with asyncio.timeout(BODY_S):
                data = await _read(receive, limit)
        except TimeoutError:
            raise RequestRefused(
                408, Code.INVALID_ARGUMENT, f"the body did not arrive within {BODY_S:g} s", headers=_CLOSE
            ) from None
        if route.body is bytes:
            if not data:
                raise malformed("the body is empty")
            return data
        decoder = self._decoders.get(route.body)
        if decoder is None:
            decoder = self._decoders[route.body] = msgspec.json.Decoder(route.body)
        try:
            return decoder.decode(data)
        except (msgspec.ValidationError, StandfastError) as error:
            return _decode_again(data, route.body, error)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise malformed(f"body: {error}") from None

    def _record_refusal(self, scope: Any, credential: Credential, error: StandfastError, status: int) -> None:
        if not self._limiter.may_record(_client(scope)):
            return
        self._audit.record(
            "refused",
            credential=credential.id,
            tenant=credential.tenant,
            client=_client(scope),
            method=str(scope["method"]),
            path=str(scope["path"]),
            status=status,
            code=str(error.code),
            detail=error.message,
        )


_CLOSE: Final = {"connection": "close"}


def _too_large(limit: int) -> RequestRefused:
    return RequestRefused(
        413,
        Code.REQUEST_TOO_LARGE,
        f"the body is larger than {limit:,} bytes",
        hint="upload large data with POST /v1/attachments",
        headers=_CLOSE,
    )


async def _read(receive: Receive, limit: int) -> bytes:
    """Return the whole body; raise 413 as soon as it exceeds *limit*."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestRefused(400, Code.CANCELLED, "the client disconnected")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _decode_again(data: bytes, kind: Any, problem: Exception) -> Any:
    """Decode a body that writes integers as `1.0`, which JSON Schema also accepts as integers."""
    try:
        return msgspec.convert(whole_numbers(msgspec.json.decode(data)), kind)
    except (msgspec.DecodeError, StandfastError, RecursionError, UnicodeDecodeError):
        raise malformed(f"body: {problem}") from None


class JsonResponse:
    """A response with a JSON body and the headers common to all responses."""

    __slots__ = ("_body", "raw_headers", "status_code")

    def __init__(self, body: bytes, status_code: int) -> None:
        self._body = body
        self.status_code = status_code
        self.raw_headers = [_JSON_TYPE, (b"content-length", b"%d" % len(body)), *_SAFETY]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._body})


def _response(route: Route, value: Any) -> Response | EventStream | JsonResponse:
    """Convert a handler's return value into a response."""
    if isinstance(value, (Response, EventStream)):
        return value
    if route.answer is None:
        return Response(None, route.status)
    return JsonResponse(_encode(value), route.status)


def _route(
    found: tuple[dict[str, Route], dict[str, str]] | None, method: str, path: str
) -> tuple[Route, dict[str, str]]:
    """Return the route of a path and the values of its parameters; raise 404 or 405."""
    valid = found is not None and all(
        _CHECKED_PATH[name].fullmatch(value) for name, value in found[1].items()
    )
    if found is None or not valid:
        raise RequestRefused(
            404,
            Code.METHOD_NOT_FOUND,
            f"there is nothing at {path[:200]!r}",
            hint="GET /v1/openapi.json lists the routes",
        )
    methods, values = found
    route = methods.get("GET" if method == "HEAD" and "GET" in methods else method)
    if route is None:
        allowed = ", ".join(sorted(methods))
        raise RequestRefused(
            405,
            Code.METHOD_NOT_FOUND,
            f"{method[:20]} is not a method of {path[:200]!r}",
            hint=f"use {allowed}",
            headers={"allow": allowed},
        )
    return route, values


def _path(scope: Any) -> str:
    """Return the request's path relative to this application's mount point."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _query(scope: Any) -> list[tuple[str, str]]:
    text = scope.get("query_string", b"").decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=50, errors="strict") if text else []
    except ValueError as error:
        raise malformed(f"query: {error}") from None


def _client(scope: Any) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _token(headers: Mapping[str, str]) -> tuple[str, bool]:
    """Return the request's token, and whether it came from the cookie."""
    given = headers.get("authorization")
    if given is not None:
        kind, _, token = given.partition(" ")
        return (token.strip() if kind.lower() == "bearer" else ""), False
    cookie = headers.get("cookie")
    if cookie is None:
        return "", False
    try:
        found = SimpleCookie(cookie).get(COOKIE)
    except CookieError:
        return "", False
    return ("" if found is None else found.value), True
