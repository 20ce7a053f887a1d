"""The client for servers reached over streamable HTTP, with limits on their responses.

The SDK follows redirects only within the endpoint's origin and limits the size of an event. Rule: a response
is never decompressed, and has at most `MAX_RESPONSE_BYTES`, whatever its headers say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

MAX_RESPONSE_BYTES: Final = 64 << 20
MAX_EVENT_BYTES: Final = 16 << 20
CONNECT_S: Final = 30.0
READ_S: Final = 300.0


@asynccontextmanager
async def http_transport(
    url: str, headers: Mapping[str, str], auth: Any, refused: Callable[[int], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """Connect to the endpoint at *url*; *auth*, if given, adds credentials to each request.

    *refused* is called with the status of each response that is an error; the SDK does not report it.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class LimitedBody(httpx2.AsyncByteStream):
        """The body of a response, up to its limit."""

        def __init__(self, body: Any) -> None:
            self._body, self._left = body, MAX_RESPONSE_BYTES

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._body:
                self._left -= len(chunk)
                if self._left < 0:
                    raise httpx2.ReadError(f"the response has more than {MAX_RESPONSE_BYTES} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._body.aclose()

    async def limit(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            refused(response.status_code)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise httpx2.ReadError("the response is compressed, which was not asked for")
        response.stream = LimitedBody(response.stream)

    async with (
        httpx2.AsyncClient(
            headers={**headers, "Accept-Encoding": "identity"},
            auth=auth,
            timeout=httpx2.Timeout(CONNECT_S, read=READ_S),
            event_hooks={"response": [limit]},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_EVENT_BYTES) as streams,
    ):
        yield streams
