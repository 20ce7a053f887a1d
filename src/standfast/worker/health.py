"""The health endpoint of a worker: `/health` and `/ready`, JSON over HTTP.

`/health` is 200 while the worker reaches its store, `/ready` while it claims turns; otherwise both are 503.
They reveal nothing about sessions, so they need no credential.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from standfast.errors import NotConfigured
from standfast.model.canonical import Json

_MAX_HEAD_BYTES: Final = 8 << 10
_TIMEOUT_S: Final = 5.0
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The state of a worker; `body` is the endpoint's response body."""

    healthy: bool
    ready: bool
    body: dict[str, Json]


@contextlib.asynccontextmanager
async def serve_health(
    where: tuple[str, int] | None, report: Callable[[], Awaitable[WorkerReport]]
) -> AsyncIterator[tuple[str, int] | None]:
    """Serve *report* at a host and port, port 0 for any free one; yield the address, None without *where*.

    Raise `NotConfigured` if it cannot be served there.
    """
    if where is None:
        yield None
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                status, body = await _answer(await _request_line(reader), report)
                text = msgspec.json.encode(body)
                head = (
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(text)}\r\nconnection: close\r\n\r\n"
                )
                writer.write(head.encode() + text)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    try:
        server = await asyncio.start_server(answer, *where, limit=_MAX_HEAD_BYTES)
    except OSError as error:
        raise NotConfigured(
            f"cannot serve health on {where[0]}:{where[1]}: {error.strerror or error}",
            hint="give --health a host of this machine and a free port",
        ) from None
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield host, port
    finally:
        server.close()
        await server.wait_closed()


async def _request_line(reader: asyncio.StreamReader) -> list[str]:
    """Return the words of the request line, [] if the head is incomplete or too long."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return []
    return head.partition(b"\r\n")[0].decode("latin-1").split()


async def _answer(
    words: list[str], report: Callable[[], Awaitable[WorkerReport]]
) -> tuple[int, dict[str, Json]]:
    if len(words) != 3:
        return 400, {"error": "this is not an HTTP request"}
    method, path, _ = words
    if path not in ("/health", "/ready"):
        return 404, {"error": "ask for /health or /ready"}
    if method != "GET":
        return 405, {"error": "use GET"}
    state = await report()
    fine = state.healthy and (path == "/health" or state.ready)
    return (200 if fine else 503), {"status": "ok" if fine else "unavailable", **state.body}
