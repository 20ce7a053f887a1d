"""JSON-RPC 2.0, one value per line, with requests in both directions.

Theory of operation
-------------------
`RpcPeer.serve` reads lines and starts a task for each request, so a slow request delays no other.
`RpcPeer.request` sends a request to the other side and waits for its response, which `serve` receives.

Rules
-----
1. A line of more than `max_line_bytes` is rejected and skipped; no more than that is ever buffered.
2. Up to `MAX_REQUESTS` requests are handled at once; further ones are rejected until one has ended.
3. A line that is not JSON-RPC gets the error that the specification defines for it, and the connection stays.
4. When the input ends, `serve` answers the requests in progress before it returns. Cancelling it cancels
   them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec

from standfast.errors import Code, InvalidArgument, OutsideError, RequestRefused, StandfastError

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
SERVER_ERROR: Final = -32000
MAX_REQUESTS: Final = 256
MAX_BATCH: Final = 100
_CODES: Final[dict[str, int]] = {
    Code.METHOD_NOT_FOUND: METHOD_NOT_FOUND,
    Code.INVALID_ARGUMENT: INVALID_PARAMS,
    Code.INVALID_SESSION_ID: INVALID_PARAMS,
    Code.INVALID_TOOL_NAME: INVALID_PARAMS,
}
"""The JSON-RPC codes of our error codes; any other is `SERVER_ERROR`."""
_log: Final = logging.getLogger("standfast.rpc")

Handle = Callable[[str, Any], Awaitable[Any]]
Read = Callable[[], Awaitable[bytes]]
Write = Callable[[bytes], Awaitable[None]]


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request, or a notification if it has no `id`."""

    jsonrpc: str
    method: str
    params: Any = None
    id: str | int | float | msgspec.UnsetType | None = msgspec.UNSET


class _Response(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request from this side."""

    id: str | int | float | None
    result: Any = None
    error: dict[str, Any] | None = None


class RpcPeer:
    """One side of a connection. *handle* answers the other side's requests."""

    def __init__(self, read: Read, write: Write, handle: Handle, *, max_line_bytes: int = 16 << 20) -> None:
        self._read = read
        self._write = write
        self._handle = handle
        self._max_line_bytes = max_line_bytes
        self._writing = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0

    async def serve(self) -> None:
        """Answer requests until the input ends or the other side cannot be written to."""
        try:
            with contextlib.suppress(OSError):  # the other side is gone; its requests still complete
                async for line in self._lines():
                    if line is None:
                        limit = f"a line may have {self._max_line_bytes:,} bytes"
                        await self._send(_failure(None, INVALID_REQUEST, limit, Code.REQUEST_TOO_LARGE))
                    elif line.strip():
                        await self._take(line)
            for waiting in self._asked.values():
                if not waiting.done():
                    waiting.set_exception(OutsideError("the connection has ended"))
            if self._running:
                await asyncio.wait(self._running)
        finally:
            for task in self._running:
                task.cancel()

    async def request(self, method: str, params: Any) -> Any:
        """Send a request and return its result; raise `OutsideError` if the other side returns an error."""
        self._last_id += 1
        number, waiting = self._last_id, asyncio.get_running_loop().create_future()
        self._asked[number] = waiting
        try:
            await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return await waiting
        except OSError as error:
            raise OutsideError(f"{method}: the connection has ended: {error}") from None
        finally:
            del self._asked[number]

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        await self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def _lines(self) -> AsyncIterator[bytes | None]:
        """Yield lines, None for one that is too long."""
        kept, skipping = bytearray(), False
        while data := await self._read():
            first, *rest = data.split(b"\n")
            for piece in (first, *rest[:-1]) if rest else ():
                kept += piece
                yield None if skipping or len(kept) > self._max_line_bytes else bytes(kept)
                kept, skipping = bytearray(), False
            kept += rest[-1] if rest else first
            if len(kept) > self._max_line_bytes:
                kept, skipping = bytearray(), True
        if kept or skipping:
            yield None if skipping else bytes(kept)

    async def _take(self, line: bytes) -> None:
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            await self._send(_failure(None, PARSE_ERROR, f"this is not JSON: {error}"))
            return
        if isinstance(value, list):
            if not 0 < len(value) <= MAX_BATCH:
                problem = f"a batch has 1 to {MAX_BATCH} requests, got {len(value)}"
                await self._send(_failure(None, INVALID_REQUEST, problem))
            else:
                await self._start(self._answer(value))
        elif isinstance(value, dict) and "method" not in value and ("result" in value or "error" in value):
            self._settle(value)
        else:
            await self._start(self._answer(value))

    async def _start(self, answering: Any) -> None:
        if len(self._running) >= MAX_REQUESTS:
            answering.close()
            problem = f"{MAX_REQUESTS} requests are being answered; wait for one of them"
            await self._send(_failure(None, SERVER_ERROR, problem, Code.RATE_LIMITED))
            return
        task = asyncio.get_running_loop().create_task(answering)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, value: Any) -> None:
        """Answer a request, or a batch of them with one message; notifications get no answer."""
        response: Any
        if isinstance(value, list):
            found = await asyncio.gather(*(self._response(one) for one in value))
            response = [one for one in found if one is not None]
        else:
            response = await self._response(value)
        if response:
            with contextlib.suppress(OSError):  # the client is gone; the result is in the store
                await self._send(response)

    async def _response(self, value: Any) -> dict[str, Any] | None:
        """Return the response to a request, None for a notification."""
        try:
            asked = msgspec.convert(value, _Request)
            if asked.jsonrpc != "2.0":
                raise msgspec.ValidationError(f'`jsonrpc` must be "2.0", got {asked.jsonrpc[:20]!r}')
        except msgspec.ValidationError as error:
            known = value.get("id") if isinstance(value, dict) else None
            number = known if isinstance(known, (str, int, float)) else None
            return _failure(number, INVALID_REQUEST, str(error))
        try:
            result = await self._handle(asked.method, asked.params)
            response = {"jsonrpc": "2.0", "id": asked.id, "result": result}
        except StandfastError as error:
            number, shown = _CODES.get(error.code, SERVER_ERROR), error.error_object()
            problem = {"code": number, "message": error.message, "data": shown}
            response = {"jsonrpc": "2.0", "id": asked.id, "error": problem}
        except Exception:
            _log.exception("%s failed", asked.method)
            response = _failure(asked.id, -32603, "internal error", Code.RUNTIME_ERROR)
        return None if asked.id is msgspec.UNSET else response

    def _settle(self, value: dict[str, Any]) -> None:
        """Deliver a response to the request that waits for it."""
        try:
            given = msgspec.convert(value, _Response)
        except msgspec.ValidationError:
            return
        waiting = self._asked.get(given.id) if isinstance(given.id, int) else None
        if waiting is None or waiting.done():
            return
        if given.error is None:
            waiting.set_result(given.result)
        else:
            waiting.set_exception(OutsideError(str(given.error.get("message", "refused"))[:500]))

    async def _send(self, value: Any) -> None:
        line = msgspec.json.encode(value) + b"\n"
        async with self._writing:
            await self._write(line)


def no_method(method: str, hint: str | None = None) -> RequestRefused:
    """Return the error of a request whose method does not exist."""
    return RequestRefused(404, Code.METHOD_NOT_FOUND, f"there is no method {method[:80]!r}", hint=hint)


def converted(params: Any, kind: Any) -> Any:
    """Convert a request's parameters into the struct *kind*; raise `InvalidArgument` if they do not match."""
    try:
        return msgspec.convert({} if params is None else params, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"params: {error}") from None


def _failure(number: Any, code: int, message: str, ours: str = Code.INVALID_ARGUMENT) -> dict[str, Any]:
    shown = {"code": code, "message": message, "data": {"code": str(ours), "message": message}}
    return {"jsonrpc": "2.0", "id": number, "error": shown}
