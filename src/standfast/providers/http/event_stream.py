"""One POST that is answered with a stream of events.

A `StreamClient` belongs to one model and keeps its connections open between calls. A response is read chunk
by chunk as its events are requested; nothing reads ahead, so a slow consumer slows the server down. After the
last event the client waits briefly for the end of the body, so that the connection can be reused.

Rules
-----
1. A call is one request to one URL. A redirect is an error: the key goes only where the user sent it.
2. A caller that leaves before the last event closes the connection immediately.
3. Every wait has a deadline, every size a limit.
4. An httpx2 exception holds the request, and so the key: none leaves this file, not even as the context of
   another one. Every text that leaves has been scrubbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from standfast.errors import Code, InvalidArgument, ModelError
from standfast.providers.http.clients import LoopClients
from standfast.providers.http.deadlines import DeadlineExceeded, Deadlines, WaitTimer
from standfast.providers.http.dialect import HttpCall, ServerEvent
from standfast.providers.http.endpoint import Endpoint
from standfast.providers.http.failures import ExplainResponse, connection_error, deadline_error
from standfast.providers.http.sse import EventParser

if TYPE_CHECKING:
    import httpx2

MAX_REPLY_BYTES: Final = 256 * 1024 * 1024
MAX_ERROR_BYTES: Final = 64 * 1024
EVENT_STREAM: Final = "text/event-stream"
_LINGER_S: Final = 0.1
_ERROR_BODY_S: Final = 5.0


class StreamClient:
    """Sends calls to one endpoint. Close it, or let the event loop do so when it ends."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        deadlines: Deadlines | None = None,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._deadlines = deadlines or Deadlines()
        self._max_reply_bytes = max_reply_bytes
        self._clients = LoopClients(self._deadlines.connect_s)

    def __repr__(self) -> str:
        return f"StreamClient({self._endpoint.base_url!r})"

    @asynccontextmanager
    async def post(self, call: HttpCall, explain: ExplainResponse) -> AsyncIterator[ReplyStream]:
        """Send *call* and close the response with the context; raise `explain(...)` if it is not a stream."""
        client = await self._clients.get()
        stream = ReplyStream(self._endpoint, self._deadlines, self._max_reply_bytes)
        try:
            await stream.open(client, self._request(client, call), explain)
            yield stream
        finally:
            await stream.close()

    async def close(self) -> None:
        await self._clients.close()

    def _request(self, client: httpx2.AsyncClient, call: HttpCall) -> httpx2.Request:
        import httpx2

        endpoint = self._endpoint
        try:
            return client.build_request(
                "POST",
                endpoint.url(call.path),
                headers=endpoint.headers(call),
                content=msgspec.json.encode(call.body),
            )
        except (httpx2.InvalidURL, ValueError, TypeError) as error:
            problem = endpoint.secret.scrub(str(error))
        raise InvalidArgument(f"the call to {endpoint.base_url} cannot be written: {problem}")


class ReplyStream:
    """The response. Call `more` until it returns None, or until the last event, and then `mark_complete`."""

    def __init__(self, endpoint: Endpoint, deadlines: Deadlines, max_bytes: int) -> None:
        import httpx2

        self._endpoint = endpoint
        self._deadlines = deadlines
        self._max_bytes = self._bytes_left = max_bytes
        self._timer = WaitTimer(deadlines.total_s)
        self._parser = EventParser()
        self._response: httpx2.Response | None = None
        self._chunks: AsyncGenerator[bytes] | None = None
        self._next: Callable[[], Awaitable[bytes]] = self._first_chunk
        self._complete = self._ended = False
        self._errors = (DeadlineExceeded, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError)

    @property
    def retry_ms(self) -> int | None:
        """The delay before another call that the server requested, if any."""
        return self._parser.retry_ms

    def mark_complete(self) -> None:
        """Declare that the last event has been read, and that the rest of the body does not matter."""
        self._complete = True

    async def open(
        self, client: httpx2.AsyncClient, request: httpx2.Request, explain: ExplainResponse
    ) -> None:
        """Send *request* and wait for the head of the response."""
        self._timer.limit_all("first_byte_s", self._deadlines.first_byte_s)
        failure = None
        try:
            with self._timer:
                response = await client.send(request, stream=True)
        except self._errors as error:
            failure = self._failure(error)
        if failure is not None:
            raise failure
        self._response = response
        if "content-encoding" in response.headers:
            self._chunks = response.aiter_bytes()
        else:  # a body without an encoding bypasses the decoders
            assert isinstance(response.stream, AsyncIterable)
            chunks = aiter(response.stream)
            assert isinstance(chunks, AsyncGenerator)
            self._chunks = chunks
        if not response.is_success or not _is_event_stream(response):
            self._timer.limit_all("between_chunks_s", min(_ERROR_BODY_S, self._deadlines.between_chunks_s))
            self._next = self._chunks.__anext__
            raise explain(response.status_code, response.headers, await self._read_up_to(MAX_ERROR_BYTES))

    async def more(self) -> list[ServerEvent] | None:
        """Return the next events, as many as arrive together; None at the end."""
        timer = self._timer
        while True:
            try:
                timer.begin()
                data = await self._next()
                timer.end()
            except StopAsyncIteration:
                timer.end()
                self._ended = True
                return self._parser.end() or None
            except asyncio.CancelledError:
                if (passed := timer.interrupted()) is None:
                    raise
                failure = self._failure(passed)
                break
            except self._errors as error:
                timer.interrupted()
                failure = self._failure(error)
                break
            self._bytes_left -= len(data)
            if self._bytes_left < 0:
                raise ModelError(
                    f"the reply from {self._endpoint.base_url} has more than {self._max_bytes:,} bytes",
                    code=Code.RESPONSE_TOO_LARGE,
                )
            if events := self._parser.feed(data):
                return events
        raise failure  # outside the handlers, so that it has no context

    async def close(self) -> None:
        """Release the connection for reuse if the reply is complete; otherwise close it."""
        try:
            if self._complete:
                self._timer.limit_all("between_chunks_s", _LINGER_S)
                await self._read_up_to(MAX_ERROR_BYTES)
        finally:
            self._timer.stop()
            with suppress(*self._errors):
                if self._chunks is not None:
                    await self._chunks.aclose()
                if self._response is not None:
                    await self._response.aclose()
                    connection = self._response.extensions.get("network_stream")
                    if self._ended and not self._complete and connection is not None:
                        # The body ended early: its rest may still arrive, and must not answer another call.
                        await connection.aclose()

    async def _first_chunk(self) -> bytes:
        """Read the first chunk; from then on the deadline between chunks applies."""
        assert self._chunks is not None
        self._next = self._chunks.__anext__
        data = await self._next()
        self._timer.limit_each("between_chunks_s", self._deadlines.between_chunks_s)
        return data

    def _failure(self, error: Exception) -> ModelError:
        if isinstance(error, DeadlineExceeded):
            failure = deadline_error(error.limit, self._deadlines, self._endpoint.base_url)
        else:
            failure = connection_error(error, self._endpoint, self._deadlines)
        failure.retry_after_ms = self._parser.retry_ms
        return failure

    async def _read_up_to(self, max_bytes: int) -> bytes:
        """Read until *max_bytes*, the end or a failure."""
        body = b""
        with suppress(StopAsyncIteration, *self._errors):
            while len(body) < max_bytes:
                with self._timer:
                    body += await self._next()
        return body[:max_bytes]


def _is_event_stream(response: httpx2.Response) -> bool:
    """Return whether the content type, or its absence, means events.

    It may contain the key, so it must not stay in a frame of a traceback: hence a function of its own.
    """
    kind = response.headers.get("content-type", EVENT_STREAM)
    return kind.partition(";")[0].strip().lower() == EVENT_STREAM
