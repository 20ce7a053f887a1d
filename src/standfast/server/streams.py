"""Event streams (SSE). An event's id is its cursor, so a client that reconnects resumes where it left off.

Theory of operation
-------------------
A stream is a response that iterates over events and writes each one. One task of the server,
`OpenStreams.tend`, maintains all of them: it sends heartbeats, and ends streams whose reader has stalled,
whose credential is no longer valid, or that must end because the server shuts down. So a stream needs no
timers of its own.

Rules
-----
1. A slow reader delays only its own stream; events that it does not read are not buffered for it. It gets a
   `Gap` instead.
2. Ending a stream ends nothing else. The turn that it showed continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final

import msgspec

from standfast.errors import SessionNotFound

HEARTBEAT_S: Final = 15.0
QUIET_S: Final = 5.0
SLOW_READER_S: Final = 60.0
_TEND_S: Final = 1.0
_HEARTBEAT: Final = b":\n\n"
_encode: Final = msgspec.json.Encoder().encode

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]


def sse(event: msgspec.Struct, cursor: object = None, name: str = "") -> bytes:
    """Encode an event for a stream, named *name* or by its tag."""
    kind = name or str(event.__struct_config__.tag)
    if cursor is None:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(event))
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (str(cursor).encode(), kind.encode(), _encode(event))


class EventStream:
    """An ASGI response that writes an iterator's chunks until it ends or the client disconnects."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        streams: OpenStreams,
        *,
        still_valid: Callable[[], Awaitable[bool]],
        on_close: Callable[[], None],
        may_end: Callable[[], Awaitable[bool]] | None = None,
        media_type: str = "text/event-stream; charset=utf-8",
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self._chunks = chunks
        self._streams = streams
        self._on_close = on_close
        self._may_end = may_end
        self.still_valid = still_valid
        self.status_code = 200
        self.raw_headers = [
            (b"content-type", media_type.encode()),
            (b"x-accel-buffering", b"no"),  # proxies must not buffer events
            *(headers or []),
        ]
        self._send: Send | None = None
        self._task: asyncio.Task[None] | None = None
        self.sent_at = monotonic()
        self.sending_since: float | None = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self._send = send
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._task = asyncio.ensure_future(self._write())
            left = asyncio.ensure_future(_until_disconnect(receive))
            self._streams.open.add(self)
            try:
                await asyncio.wait((self._task, left), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._streams.open.discard(self)
                self._task.cancel()
                await asyncio.wait((self._task,))
                left.cancel()
            if self.sending_since is None and not left.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            if not self._task.cancelled():
                with suppress(SessionNotFound):  # deleted: a client that reconnects gets status 404
                    self._task.result()
        finally:
            self._on_close()

    async def _write(self) -> None:
        try:
            async for chunk in self._chunks:
                await self.write(chunk)
        finally:
            close = getattr(self._chunks, "aclose", None)
            if close is not None:
                await close()

    async def write(self, chunk: bytes) -> None:
        """Send one chunk, waiting while the client's buffer is full."""
        assert self._send is not None
        self.sending_since = self.sent_at = monotonic()
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self.sending_since = None

    def end(self) -> None:
        """End the stream; the client can resume after its last event id."""
        if self._task is not None:
            self._task.cancel()

    async def tend(self, now: float) -> None:
        """End the stream if its reader stalls or lost its access; send a heartbeat if it is quiet."""
        if self.sending_since is not None:
            if now - self.sending_since > SLOW_READER_S:
                self.end()
        elif not await self.still_valid() or (
            self._may_end is not None and now - self.sent_at > QUIET_S and await self._may_end()
        ):
            self.end()
        elif now - self.sent_at > HEARTBEAT_S and self.sending_since is None:
            await self.write(_HEARTBEAT)


class OpenStreams:
    """The open streams of one application, and the task that maintains them."""

    def __init__(self) -> None:
        self.open: set[EventStream] = set()
        self._tending: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._tending is None or self._tending.done():
            self._tending = asyncio.get_running_loop().create_task(self._tend())

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(_TEND_S)
            now = monotonic()
            for stream in list(self.open):
                with suppress(Exception):  # a stream that cannot be written to ends by itself
                    await stream.tend(now)

    def end_all(self) -> None:
        """End every stream, so that clients reconnect to another process."""
        for stream in list(self.open):
            stream.end()

    async def close(self) -> None:
        self.end_all()
        if self._tending is not None:
            self._tending.cancel()
            with suppress(asyncio.CancelledError):
                await self._tending
            self._tending = None


async def _until_disconnect(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
