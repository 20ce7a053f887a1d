"""One POST, answered by a stream of events.

Theory of operation
-------------------
A wire belongs to one model and keeps its connections open from call to call. An answer is read chunk by
chunk as its events are asked for; nothing reads ahead, so a slow consumer slows the server down. Once the
last event has been heard, the end of the body is waited for, briefly, so that the connection can be used
again.

Rules
-----
1. A call is one request to one address. A redirect is refused: the key goes where the user sent it, and
   nowhere else.
2. Whoever leaves an answer before its last event closes the connection at once.
3. Every wait has a deadline, every size a cap.
4. What httpx2 raises holds the request, and so the key: none of it leaves this file, nor is it chained to
   what does. Every text that leaves has been scrubbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from standfast.errors import Code, InvalidArgument, ModelError
from standfast.providers.http.address import Address
from standfast.providers.http.clients import Clients
from standfast.providers.http.deadlines import Deadlines, Overdue, Watch
from standfast.providers.http.dialect import HttpCall, ServerEvent
from standfast.providers.http.failures import Explain, broken, late
from standfast.providers.http.sse import EventParser

if TYPE_CHECKING:
    import httpx2

MAX_REPLY_BYTES: Final = 256 * 1024 * 1024
MAX_ERROR_BYTES: Final = 64 * 1024
EVENT_STREAM: Final = "text/event-stream"
_LINGER_S: Final = 0.1
_ERROR_BODY_S: Final = 5.0


class Wire:
    """The way to one address. Close it, or let the event loop do so when it ends."""

    def __init__(
        self,
        address: Address,
        *,
        deadlines: Deadlines | None = None,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self._address = address
        self._deadlines = deadlines or Deadlines()
        self._max_reply_bytes = max_reply_bytes
        self._clients = Clients(self._deadlines.connect_s)

    def __repr__(self) -> str:
        return f"Wire({self._address.base_url!r})"

    @asynccontextmanager
    async def post(self, call: HttpCall, explain: Explain) -> AsyncIterator[Answer]:
        """Send the call; the answer is closed with the context. What is no stream of events is explained."""
        client = await self._clients.here()
        answer = Answer(self._address, self._deadlines, self._max_reply_bytes)
        try:
            await answer.open(client, self._request(client, call), explain)
            yield answer
        finally:
            await answer.close()

    async def close(self) -> None:
        await self._clients.close()

    def _request(self, client: httpx2.AsyncClient, call: HttpCall) -> httpx2.Request:
        import httpx2

        try:
            return client.build_request(
                "POST",
                self._address.url(call.path),
                headers=self._address.headers(call),
                content=msgspec.json.encode(call.body),
            )
        except (httpx2.InvalidURL, ValueError, TypeError) as error:
            problem = self._address.secret.scrub(str(error))
        raise InvalidArgument(f"the call to {self._address.base_url} cannot be written: {problem}")


class Answer:
    """What comes back. Ask for `more` until there is none, or until the last event has been heard."""

    def __init__(self, address: Address, deadlines: Deadlines, max_bytes: int) -> None:
        import httpx2

        self._address = address
        self._deadlines = deadlines
        self._max_bytes = self._bytes_left = max_bytes
        self._watch = Watch(deadlines.total_s)
        self._parser = EventParser()
        self._response: httpx2.Response | None = None
        self._chunks: AsyncGenerator[bytes] | None = None
        self._next: Callable[[], Awaitable[bytes]] = self._first_chunk
        self._heard_all = self._ended = False
        self._troubles = (Overdue, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError)

    @property
    def retry_ms(self) -> int | None:
        """How long the server has asked to wait before another call, if it has."""
        return self._parser.retry_ms

    def heard_all(self) -> None:
        """Say that nothing which is still to come matters."""
        self._heard_all = True

    async def open(self, client: httpx2.AsyncClient, request: httpx2.Request, explain: Explain) -> None:
        """Send the request and wait for an answer that is a stream of events."""
        self._watch.until("first_byte_s", self._deadlines.first_byte_s)
        try:
            with self._watch:
                response = await client.send(request, stream=True)
        except self._troubles as error:
            failure = self._failure(error)
        else:
            return await self._begin(response, explain)
        raise failure

    async def _begin(self, response: httpx2.Response, explain: Explain) -> None:
        self._response = response
        self._chunks = _chunks_of(response)
        if not _is_event_stream(response):
            self._watch.until("between_chunks_s", min(_ERROR_BODY_S, self._deadlines.between_chunks_s))
            self._next = self._chunks.__anext__
            raise explain(response.status_code, response.headers, await self._read_up_to(MAX_ERROR_BYTES))

    async def more(self) -> list[ServerEvent] | None:
        """The events that come next, as many as arrive together; None at the end."""
        watch = self._watch
        while True:
            try:
                watch.begin()
                data = await self._next()
                watch.end()
            except StopAsyncIteration:
                watch.end()
                self._ended = True
                return self._parser.end() or None
            except asyncio.CancelledError:
                if (overdue := watch.interrupted()) is None:
                    raise
                failure = self._failure(overdue)
                break
            except self._troubles as error:
                watch.interrupted()
                failure = self._failure(error)
                break
            self._bytes_left -= len(data)
            if self._bytes_left < 0:
                raise self._too_large()
            if events := self._parser.feed(data):
                return events
        raise failure  # out here none is being handled that it could be chained to

    async def close(self) -> None:
        """Let go of the connection: for others if the answer was heard to its end, else for good."""
        try:
            if self._heard_all:
                self._watch.until("between_chunks_s", _LINGER_S)
                await self._read_up_to(MAX_ERROR_BYTES)
        finally:
            self._watch.stop()
            with suppress(*self._troubles):
                await self._let_go()

    async def _let_go(self) -> None:
        if self._chunks is not None:
            await self._chunks.aclose()
        if self._response is not None:
            await self._response.aclose()
            if self._ended and not self._heard_all:
                await self._hang_up(self._response)

    async def _hang_up(self, response: httpx2.Response) -> None:
        """Close a connection whose body ended too early: the rest may follow, and must not answer others."""
        connection = response.extensions.get("network_stream")
        if connection is not None:
            await connection.aclose()

    async def _first_chunk(self) -> bytes:
        """From here on, it is the time between chunks that counts."""
        assert self._chunks is not None
        self._next = self._chunks.__anext__
        data = await self._next()
        self._watch.each("between_chunks_s", self._deadlines.between_chunks_s)
        return data

    def _failure(self, error: Exception) -> ModelError:
        if isinstance(error, Overdue):
            failure = late(error.limit, self._deadlines, self._address.base_url)
        else:
            failure = broken(error, self._address, self._deadlines)
        failure.retry_after_ms = self._parser.retry_ms
        return failure

    async def _read_up_to(self, max_bytes: int) -> bytes:
        """As much as comes; a failure only ends it."""
        body = b""
        with suppress(StopAsyncIteration, *self._troubles):
            while len(body) < max_bytes:
                with self._watch:
                    body += await self._next()
        return body[:max_bytes]

    def _too_large(self) -> ModelError:
        return ModelError(
            f"the reply from {self._address.base_url} has more than {self._max_bytes:,} bytes",
            code=Code.RESPONSE_TOO_LARGE,
        )


def _chunks_of(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The body's chunks as they come; what is not encoded goes past everything that could decode it."""
    if "content-encoding" in response.headers:
        return response.aiter_bytes()
    stream = response.stream
    assert isinstance(stream, AsyncIterable)
    chunks = aiter(stream)
    assert isinstance(chunks, AsyncGenerator)
    return chunks


def _is_event_stream(response: httpx2.Response) -> bool:
    """Whether it says so; a server that does not say what it sends is taken at what it sends."""
    kind = response.headers.get("content-type", EVENT_STREAM)
    return response.is_success and kind.partition(";")[0].strip().lower() == EVENT_STREAM
