"""A local HTTP server that answers like a model vendor, from a script, with faults on demand.

The server answers requests in order with the replies of the script. A vendor's subclass encodes a reply in
the vendor's format: as the events of a stream, or as one object if the request asks for no stream. HTTP is
written by hand, so that every byte can be withheld, cut off or wrong. Every event is a separate chunk.

The server rejects requests that the vendor would reject (`checked`), so that no test passes with one.
`hung_up` is set when a client disconnects before its response is complete, `stalled` when the server has
stopped sending because of its fault.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from standfast.errors import InvalidArgument
from standfast.providers.script import Reply, ScriptedUsage, checked

_HEAD_BYTES: Final = 1024 * 1024
_GARBAGE: Final = b'data: {"garbage": \n\n'


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of a response. Offsets count bytes of the body, blocks are its events, counted from 0.

    status, message, headers: an error instead. body: these bytes instead. redirect: a Location instead.
    cut_at, stall_at: send nothing after that offset, with or without closing the connection. split: the
    number of bytes to send at a time. content_length: the length to claim. order: `duplicate:N`, `swap:N`
    (with the next), `drop:N` or `garbage:N`. reset: reset the connection instead of closing it.
    """

    status: int | None = None
    message: str = "the script fails this call"
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: bytes | None = None
    redirect: str | None = None
    cut_at: int | None = None
    stall_at: int | None = None
    split: int | None = None
    content_length: int | None = None
    order: str | None = None
    reset: bool = False


class ServedReply(Reply, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reply, and the fault of its transmission."""

    fault: Fault | None = None


Served = str | Mapping[str, Any] | Reply


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request as it arrived. Header names are in lower case; `path` includes the query."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class PreparedResponse:
    """A response, in the pieces in which it is sent."""

    status: int
    headers: dict[str, str]
    pieces: list[bytes]
    fault: Fault
    delay_ms: int = 0
    piece_delay_ms: int = 0


class ModelServer(ABC):
    """Serves a script on its own port: `async with Server([...]) as server`."""

    prefix = ""
    """The end of the vendor's base URL, such as `/v1`."""

    def __init__(self, replies: Iterable[Served] = ()) -> None:
        self.requests: list[SeenRequest] = []
        self.hung_up = asyncio.Event()
        self.stalled = asyncio.Event()
        self.connections = 0
        served: list[Served] = []
        for entry in replies:
            if isinstance(entry, Reply) and not isinstance(entry, ServedReply):
                entry = ServedReply(**{name: getattr(entry, name) for name in Reply.__struct_fields__})
            if isinstance(entry, Reply) and (entry.failure is not None or entry.expect is not None):
                raise InvalidArgument("a served reply has no failure and no expectation", hint="use a fault")
            served.append(entry)
        self._replies = checked(served, ServedReply, source="the server's script")
        self._talks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._mistake: Exception | None = None

    @property
    def base_url(self) -> str:
        if self._server is None:
            raise InvalidArgument("the server has not been started", hint="use `async with`")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self.prefix}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._met, "127.0.0.1", 0, limit=_HEAD_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await self._server.wait_closed()
        if self._mistake is not None and error is None:
            raise self._mistake

    @abstractmethod
    def events(self, request: SeenRequest, reply: Reply) -> list[bytes]:
        """Return the stream as blocks, each with its empty line."""

    @abstractmethod
    def whole(self, request: SeenRequest, reply: Reply) -> dict[str, Any]:
        """Return the answer to a request without a stream."""

    @abstractmethod
    def error_body(self, status: int, message: str) -> dict[str, Any]:
        """Return an error in the vendor's format."""

    def streams(self, request: SeenRequest) -> bool:
        """Return whether the request asks for a stream."""
        return isinstance(request.body, dict) and request.body.get("stream") is True

    def checked(self, request: SeenRequest) -> str | None:
        """Return why the vendor would reject the request, None if it would not."""
        return None

    def answer(self, request: SeenRequest) -> PreparedResponse:
        """Answer the last request."""
        number = len(self.requests)
        if number > len(self._replies):
            return self._error(500, f"request {number} was not expected: the script has {len(self._replies)}")
        reply = self._replies[number - 1]
        fault = reply.fault or Fault()
        if fault.redirect is not None:
            return PreparedResponse(
                fault.status or 307, {"location": fault.redirect, **fault.headers}, [], fault
            )
        if fault.status is not None and fault.body is None:
            return self._error(fault.status, fault.message, fault)
        if problem := self.checked(request):
            return self._error(400, problem)
        if fault.body is not None:
            kind, pieces = "text/event-stream", [fault.body]
        elif self.streams(request):
            kind, pieces = "text/event-stream", _disordered(self.events(request, reply), fault.order)
        else:
            kind, pieces = "application/json", [msgspec.json.encode(self.whole(request, reply))]
        headers = {"content-type": kind, **fault.headers}
        return PreparedResponse(
            fault.status or 200, headers, pieces, fault, reply.delay_ms, reply.chunk_delay_ms
        )

    def _error(self, status: int, message: str, fault: Fault | None = None) -> PreparedResponse:
        fault = fault or Fault()
        body = msgspec.json.encode(self.error_body(status, message))
        return PreparedResponse(status, {"content-type": "application/json", **fault.headers}, [body], fault)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        self.connections += 1
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                try:
                    response = self.answer(request)
                except Exception as error:  # raised again when the server is closed
                    self._mistake = self._mistake or error
                    response = self._error(500, f"the test server failed: {error!r}")
                if not await self._send(response, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        except asyncio.CancelledError:
            pass  # the server is closed; `asyncio.streams` would report a task that ends cancelled
        finally:
            self._talks.discard(talk)
            writer.close()

    async def _send(
        self, answer: PreparedResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send the answer with its fault; return True if the connection can be reused."""
        fault, pieces = answer.fault, answer.pieces
        await asyncio.sleep(answer.delay_ms / 1000)
        length = fault.content_length
        size = {"transfer-encoding": "chunked"} if length is None else {"content-length": str(length)}
        lines = [f"{name}: {value}\r\n" for name, value in {**answer.headers, **size}.items()]
        writer.write(f"HTTP/1.1 {answer.status} As Told\r\n{''.join(lines)}\r\n".encode("latin-1"))
        if fault.split:
            body = b"".join(pieces)
            pieces = [body[start : start + fault.split] for start in range(0, len(body), fault.split)]
        left = min(end for end in (fault.cut_at, fault.stall_at, sum(map(len, pieces))) if end is not None)
        for number, piece in enumerate(pieces):
            piece, left = piece[: max(0, left)], left - len(piece)
            if not piece:
                continue
            if number and answer.piece_delay_ms:
                await asyncio.sleep(answer.piece_delay_ms / 1000)
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if length is None else piece)
            await writer.drain()
        if fault.stall_at is not None:
            await writer.drain()
            self.stalled.set()
            while await reader.read(_HEAD_BYTES):
                pass  # send nothing until the client disconnects
            self.hung_up.set()
            return False
        if fault.reset:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        if fault.cut_at is not None or length is not None:
            writer.close()
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _read_request(reader: asyncio.StreamReader) -> SeenRequest | None:
    """Read the next request of a connection, None if there is none."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        decoded = None
    return SeenRequest(method, path, headers, decoded)


def cut_text(text: str, size: int) -> list[str]:
    """Split *text* into pieces of *size* characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def usage_of(reply: Reply) -> ScriptedUsage:
    """Return the usage that a reply reports; one input token unless the script sets it."""
    return reply.usage or ScriptedUsage(input=1, output=max(1, len(reply.whole_text()) // 4))


def event_block(event: dict[str, Any]) -> bytes:
    """Encode a server-sent event that is named after its `type`."""
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(event))


def _disordered(blocks: list[bytes], order: str | None) -> list[bytes]:
    if order is None:
        return blocks
    kind, _, number = order.partition(":")
    at = int(number)
    before, block, after = blocks[:at], blocks[at : at + 1], blocks[at + 1 :]
    match kind:
        case "duplicate":
            return before + block + block + after
        case "swap":
            return before + after[:1] + block + after[1:]
        case "drop":
            return before + after
        case "garbage":
            return [*before, _GARBAGE, *after]
        case _:
            raise InvalidArgument(f"{order!r} is not an order of events")
