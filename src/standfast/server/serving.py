"""Serves the application with uvicorn: safe listening addresses, connection limits, graceful shutdown.

Rules
-----
1. An address other than loopback needs TLS, a trusted proxy, or the operator's explicit consent.
2. A connection that does not send a complete request head within `HEAD_S` seconds, or sends more than
   `HEAD_BYTES` of it, is closed.
3. On SIGTERM the server first rejects new turns and waits for running ones (`grace_s`), then ends streams,
   closes connections and releases its leases, so that another process can take over.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from standfast.errors import InvalidArgument, NotConfigured
from standfast.server.app import ServerApp

HEAD_S: Final = 20.0
HEAD_BYTES: Final = 64 * 1024
MAX_CONNECTIONS: Final = 10_000
_COLLECT_AFTER: Final = 10_000
"""The number of new objects that triggers a garbage collection. With Python's default of 700, the objects of
concurrent turns are scanned repeatedly, which takes a fifth of a server's time and finds nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """The address to listen on, and what makes it safe."""

    host: str = "127.0.0.1"
    port: int = 8000
    tls_cert: str | None = None
    tls_key: str | None = None
    trusted_proxy: str | None = None
    insecure: bool = False
    grace_s: float = 30.0

    def check(self) -> None:
        """Raise `InvalidArgument` if the address is not safe to listen on."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("TLS needs both --tls-cert and --tls-key")
        if self.trusted_proxy is not None:
            try:
                ipaddress.ip_network(self.trusted_proxy, strict=False)
            except ValueError:
                raise InvalidArgument(
                    f"--trusted-proxy {self.trusted_proxy!r} is not an address range", hint="write 10.0.0.0/8"
                ) from None
        if not (is_loopback(self.host) or self.tls_cert or self.trusted_proxy or self.insecure):
            raise InvalidArgument(
                f"{self.host} can be reached from other machines, and connections to it are not encrypted",
                hint="add --tls-cert and --tls-key, or --trusted-proxy CIDR, or --insecure",
            )

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach *host*."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class LimitedProtocol(HttpToolsProtocol):
    """HTTP/1.1 that closes connections whose request head is too slow or too large.

    A connection has one timer, which checks when the wait for a head began: one timer per request would cost
    more than the rest of this class.
    """

    _timer: asyncio.TimerHandle | None = None
    _awaiting_since: float | None = None
    """When the wait for a request head began; None while a request is served."""
    _in_head = True
    _head_bytes = 0
    _piece_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._awaiting_since = self.loop.time()
        self._timer = self.loop.call_later(HEAD_S, self._look)

    def data_received(self, data: bytes) -> None:
        self._piece_bytes = len(data)
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            if self._awaiting_since is not None:
                self.send_400_response("Request head too large.")
            else:  # the previous response is still being written
                self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._piece_bytes > HEAD_BYTES:  # a single chunk can hold a complete head that is too large
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > HEAD_BYTES:
                raise InvalidArgument(f"the request head has {size:,} bytes")  # makes the parser reject it
        self._in_head, self._awaiting_since = False, None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Start the next pipelined request, or wait for its head. uvicorn would set a timer here."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self._awaiting_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Close the connection if it has waited too long for a head; otherwise reschedule this check."""
        left = HEAD_S
        if self._awaiting_since is not None:
            left -= self.loop.time() - self._awaiting_since
        if left <= 0:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(left, self._look)


class StandfastServer(uvicorn.Server):
    """uvicorn's server, which drains the application before it closes connections."""

    def __init__(self, config: uvicorn.Config, app: ServerApp, grace_s: float) -> None:
        super().__init__(config)
        self._app = app
        self._grace_s = grace_s
        self.on_started: Callable[[list[tuple[str, int]]], None] | None = None
        self.announcing: asyncio.Future[None] | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal. The server owns the process, so it may tune the garbage collector."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(_COLLECT_AFTER, 10, 10)
        super().run(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Record a signal, and do not re-raise it after shutdown, so that the process exits normally."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_started is not None:
            bound = [one.getsockname()[:2] for server in self.servers for one in server.sockets]
            self.on_started(bound)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then shut down. A second Ctrl-C shuts down immediately."""
        draining = asyncio.ensure_future(self._app.drain(self._grace_s))
        while not draining.done() and not self.force_exit:
            await asyncio.wait((draining,), timeout=0.1)
        draining.cancel()
        await super().shutdown(sockets)


def make_server(app: ServerApp, listen: Listen) -> StandfastServer:
    """Return a server for the application, ready for `run` or `serve`."""
    listen.check()
    options: dict[str, Any] = {}
    if listen.trusted_proxy is not None:
        options = {"proxy_headers": True, "forwarded_allow_ips": listen.trusted_proxy}
    else:
        options = {"proxy_headers": False}
    config = uvicorn.Config(
        app,
        host=listen.host,
        port=listen.port,
        http=LimitedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=listen.tls_cert,
        ssl_keyfile=listen.tls_key,
        timeout_graceful_shutdown=5,
        limit_concurrency=MAX_CONNECTIONS,
        backlog=2048,
        **options,
    )
    return StandfastServer(config, app, listen.grace_s)


def require_server_extra() -> None:
    """Raise `NotConfigured` if the packages of the extra `server` are not installed."""
    try:
        import httptools  # noqa: F401
        import starlette  # noqa: F401
    except ImportError:
        raise NotConfigured(
            "serving needs packages that are not installed", hint="pip install 'standfast[server]'"
        ) from None
