"""Runs the application under uvicorn: addresses that are safe to listen on, limits of connections, shutdown.

Rules
-----
1. An address other than loopback needs TLS, a trusted proxy, or the operator's word that it is safe.
2. A connection that sends no complete request head within `HEAD_S` seconds, or more than `HEAD_BYTES` of it,
   is closed.
3. On SIGTERM the server first takes no new turns and lets running ones end (`grace_s`), then ends streams,
   closes connections and gives up its leases, so that another process can continue.
"""

from __future__ import annotations

import asyncio
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen, and why that is safe."""

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
    """Return whether only programs on this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class LimitedProtocol(HttpToolsProtocol):
    """HTTP/1.1 that closes connections whose request head is too slow or too large."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("Request head too large.")

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._stop_waiting()
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        self.transport.close()


class StandfastServer(uvicorn.Server):
    """uvicorn's server, which drains the application before it closes connections."""

    def __init__(self, config: uvicorn.Config, app: ServerApp, grace_s: float) -> None:
        super().__init__(config)
        self._app = app
        self._grace_s = grace_s
        self.on_started: Callable[[list[tuple[str, int]]], None] | None = None
        self.announcing: asyncio.Future[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal. Once the server has shut down in order, the process ends as any other does."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_started is not None:
            bound = [one.getsockname()[:2] for server in self.servers for one in server.sockets]
            self.on_started(bound)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then close. A second Ctrl-C closes at once."""
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
        timeout_keep_alive=15,
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
        raise NotConfigured("serving needs more packages", hint="pip install 'standfast[server]'") from None
