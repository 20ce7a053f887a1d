"""Requests to a server: errors as exceptions, retries of repeatable requests, streams that reconnect.

Rules
-----
1. A request is retried only if a repetition changes nothing: it reads, or it has an idempotency key.
2. A broken stream resumes after the last event id; the caller gets every event once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from standfast.errors import Code, RequestRefused, ServerUnreachable
from standfast.runtime.http_values import Problem

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
QUIET_S: Final = 45.0
"""A stream that is silent for this long is dead: the server sends a heartbeat every 15 s."""
_BUSY: Final = (502, 503, 504)

T = TypeVar("T")


class StreamedEvent(msgspec.Struct, frozen=True):
    """One event of a stream, undecoded."""

    id: str
    name: str
    data: str


class ServerConnection:
    """An HTTP client for one server and one token. Use it on one event loop."""

    def __init__(self, url: str, token: str | None, *, retry_s: float, timeout_s: float) -> None:
        headers = {"user-agent": "standfast-client"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._retry_s = retry_s
        self._http = httpx2.AsyncClient(
            base_url=url.rstrip("/"),
            headers=headers,
            timeout=httpx2.Timeout(timeout_s, connect=10.0),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: bytes | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
        patient: bool = False,
    ) -> httpx2.Response:
        """Send a request and return a successful response; raise `RequestRefused` for any other.

        A *patient* request has no time limit.
        """
        sent = dict(headers or {})
        if body is not None:
            content = msgspec.json.encode(body)
            sent["content-type"] = "application/json"
        chosen = {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in (query or {}).items()
            if value is not None
        }
        timeout: Any = httpx2.Timeout(None, connect=10.0) if patient else httpx2.USE_CLIENT_DEFAULT
        pauses = self._pauses(repeatable or method == "GET")
        while True:
            try:
                response = await self._http.request(
                    method, path, content=content, params=chosen, headers=sent, timeout=timeout
                )
            except httpx2.TransportError as error:
                if not await pauses.wait():
                    raise ServerUnreachable(f"{self._http.base_url}: {_words(error)}") from error
                continue
            if response.is_success:
                return response
            if response.status_code not in _BUSY or not await pauses.wait():
                raise refusal(response)

    async def get(self, path: str, kind: type[T], **query: Any) -> T:
        """Read a value of this type."""
        return _decoded(await self.send("GET", path, query=query), kind)

    async def call(self, method: str, path: str, kind: type[T], body: Any = None, **options: Any) -> T:
        """Send a request that changes state, and return the value of the response."""
        return _decoded(await self.send(method, path, body=body, **options), kind)

    async def events(
        self,
        path: str,
        after: str | None = None,
        *,
        start: Mapping[str, Any] | None = None,
        moved: list[str] | None = None,
    ) -> AsyncIterator[StreamedEvent]:
        """Yield the events of a stream, reconnecting when it breaks, until the caller stops.

        With *start*, the first request has those arguments; the URL in its response, which is put into
        *moved*, continues the stream.
        """
        pauses, last = self._pauses(True), after or ""
        while True:
            first = start is not None and not moved
            asked: dict[str, Any] = {"method": "GET", "url": moved[0] if moved else path}
            if first and start is not None:
                asked = dict(start)
            headers = {"accept": "text/event-stream", **asked.pop("headers", {})}
            if last:
                headers["last-event-id"] = last
            try:
                timeout = httpx2.Timeout(10.0, read=QUIET_S)
                async with self._http.stream(headers=headers, timeout=timeout, **asked) as response:
                    if not response.is_success:
                        await response.aread()
                        if response.status_code not in _BUSY or not await pauses.wait():
                            raise refusal(response)
                        continue
                    if first and moved is not None and "location" in response.headers:
                        moved.append(response.headers["location"])
                    async for event in _parsed(response.aiter_lines()):
                        pauses.reset()
                        last = event.id or last
                        yield event
            except httpx2.TransportError as error:
                if not await pauses.wait():
                    raise ServerUnreachable(f"{self._http.base_url}: {_words(error)}") from error
            else:
                await pauses.wait()  # the server has ended the stream, as it does when it shuts down

    def _pauses(self, allowed: bool) -> _Pauses:
        return _Pauses(self._retry_s if allowed else 0.0)


class _Pauses:
    """Exponential pauses between attempts, up to a total time."""

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self.reset()

    def reset(self) -> None:
        self._next_s = FIRST_PAUSE_S
        self._left_s = self._total_s

    async def wait(self) -> bool:
        """Wait before the next attempt; return False if no time is left for one."""
        if self._left_s <= 0:
            return False
        pause_s = self._next_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients that reconnect at once
        self._left_s -= pause_s
        self._next_s = min(2 * self._next_s, LONGEST_PAUSE_S)
        await asyncio.sleep(pause_s)
        return True


async def _parsed(lines: AsyncIterator[str]) -> AsyncIterator[StreamedEvent]:
    """Yield the events in the lines of a stream, dropping one that is cut off."""
    identity = name = ""
    data: list[str] = []
    async for line in lines:
        if not line:
            if data:
                yield StreamedEvent(identity, name, "\n".join(data))
            identity, name, data = "", "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif field == "id":
            identity = value


def refusal(response: httpx2.Response) -> RequestRefused:
    """Convert an error response into an exception."""
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except msgspec.DecodeError:
        text = response.text[:200]
        return RequestRefused(response.status_code, Code.RUNTIME_ERROR, f"the server answered: {text}")
    return RequestRefused(problem.status, problem.code, problem.detail, hint=problem.hint)


def _decoded(response: httpx2.Response, kind: type[T]) -> T:
    if kind is bytes:
        return response.content  # type: ignore[return-value]
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError as error:
        raise ServerUnreachable(f"the server's answer cannot be read: {error}") from error


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
