"""Standfast served as an MCP server, on stdio or over HTTP.

Rule: over HTTP every request needs the token, and its Host and Origin must be known.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import NotConfigured
from standfast.mcp.joined import joined
from standfast.mcp.questions import DECIDE_WITH
from standfast.mcp.serving import McpService
from standfast.ports.trace import TraceSink
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.app import App
from standfast.runtime.data_dir import DataDir
from standfast.runtime.sandbox import Sandbox, SandboxOptions

if TYPE_CHECKING:
    from mcp.server import Server

TOKEN_VARIABLE: Final = "STANDFAST_MCP_TOKEN"  # noqa: S105 - the name of a variable
MIN_TOKEN_CHARS: Final = 16
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ServedParts:
    """What is served: a sandbox, the agents of an app, and their trace file, if there is one.

    `own` is the user's own MCP server, whose tools are offered too. `decide_with` is the command with which a
    person decides an approval in this store.
    """

    sandbox: SandboxOptions
    app: App | None = None
    trace: TraceSink | None = None
    trace_file: str | None = None
    own: object | None = None
    decide_with: str = DECIDE_WITH


@asynccontextmanager
async def open_server(offer: ServedParts) -> AsyncIterator[Server[Any]]:
    """Open the sandbox and the runtime over the data directory, and a server over both."""
    options, app = offer.sandbox, offer.app
    store = None if options.data_dir is None else DataDir(options.data_dir).database
    runtime = Runtime(store, trace=offer.trace) if app is None else app.runtime(store, trace=offer.trace)
    async with Sandbox(options) as sandbox, runtime:
        agents = tuple(runtime.agents.values())
        service = McpService(
            sandbox, runtime, agents, trace_file=offer.trace_file, decide_with=offer.decide_with
        )
        server = service.server()
        yield server if offer.own is None else joined(server, offer.own)


async def serve_stdio(offer: ServedParts) -> None:
    """Serve one client on stdin and stdout until it closes them."""
    from mcp.server.stdio import stdio_server

    async with open_server(offer) as server, stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def service_token(file: Path) -> str:
    """Return the token in the environment, else the one in *file*, which is created on first use."""
    given, source = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    if given is None:
        source = str(file)
        try:
            given = file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            given = secrets.token_urlsafe(32)
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                made.write(given)
    if len(given) < MIN_TOKEN_CHARS:
        raise NotConfigured(
            f"the token in {source} must have at least {MIN_TOKEN_CHARS} characters, got {len(given)}",
            hint=f"choose a longer one, or remove it: Standfast then makes one in {file.name}",
        )
    return given


class RequireToken:
    """An ASGI app that forwards requests with the bearer token and answers 401 to all others."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                headers = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; raise `NotConfigured` if that is impossible."""
    made = None
    try:
        if port > 65535:  # the C library would take it modulo 65536
            raise OverflowError("the port must be at most 65535")
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, number)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except (OSError, OverflowError) as error:
        if made is not None:
            made.close()
        problem = getattr(error, "strerror", None) or error
        raise NotConfigured(
            f"cannot listen on {host}:{port}: {problem}", hint="choose another address: --listen HOST:PORT"
        ) from None
    return made


async def serve_http(
    offer: ServedParts, listener: socket.socket, host: str, token: str, names: Sequence[str] = ()
) -> None:
    """Serve clients at `/mcp` until the process is interrupted.

    *host* is the name of this host in the URL that clients use; *names* are further ones.
    """
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    known = [host, *names] if host not in LOOPBACK else [*LOOPBACK, *names]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*known, *(f"{name}:*" for name in known)],
        allowed_origins=[f"http://{name}:*" for name in known],
    )
    async with open_server(offer) as server:
        web = server.streamable_http_app(host=host, transport_security=security)
        config = uvicorn.Config(RequireToken(web, token), log_level="warning")
        await uvicorn.Server(config).serve(sockets=[listener])
