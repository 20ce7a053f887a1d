"""A parser of server-sent events for bytes that arrive in chunks of any size.

A line ends with LF, CRLF or CR, an event with an empty line. The parser converts line ends to LF as bytes
arrive, so an event is whatever precedes two LFs. It keeps the chunks of an unfinished event in a list and
joins them once, so a large event costs its size however small the chunks are. Nearly every chunk is one event
that has the name of the previous one and one line of data: `feed` slices out its data; everything else is
parsed line by line.

Rules
-----
1. The events do not depend on how the stream is chunked, and each is returned with its last byte.
2. Comments, ids, unknown fields and events with empty data are skipped. No vendor sends anything in an empty
   event, and some servers use one as a keep-alive.
3. The size of an event is limited; a larger one is rejected before all of it is buffered.
"""

from __future__ import annotations

from typing import Final

from standfast.errors import Code, ModelError
from standfast.providers.http.dialect import ServerEvent

MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"
_MAX_RETRY_DIGITS: Final = 9
_new: Final = tuple.__new__  # what a named tuple's constructor calls


class EventParser:
    """Converts bytes into events. `retry_ms` is the delay that the server requests, if any."""

    __slots__ = (
        "_after_cr", "_at_line_end", "_before", "_bom", "_clear", "_line_end", "_mark", "_max_bytes",
        "_name", "_other", "_pieces", "_size", "_start", "_stop", "retry_ms",
    )  # fmt: skip

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.retry_ms: int | None = None
        self._max_bytes = max_event_bytes
        self._bom: bytes | None = b""  # a possible prefix of a BOM; None once decided
        self._after_cr = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._at_line_end = False
        self._clear = False  # no earlier byte affects the next event
        self._expect(b"", b"\n")

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Return the events that *data* completes."""
        if self._clear and data.startswith(self._before):
            start = self._start
            end = data.find(self._mark, start)
            whole = start < end <= self._max_bytes and data[end:] == self._stop
            if whole and data.find(self._other, start, end) < 0:
                return [_new(ServerEvent, (self._name, data[start:end]))]
        return self._feed_any(data)

    def _expect(self, name: bytes, line_end: bytes) -> None:
        """Prepare the fast path of `feed` for another event with this name and these line ends."""
        self._name, self._line_end = name.decode(errors="replace"), line_end
        self._before = b"event: %s%sdata: " % (name, line_end) if name else b"data: "
        self._start = len(self._before)
        self._stop = line_end + line_end
        self._mark, self._other = (b"\n", b"\r") if line_end == b"\n" else (b"\r", b"\n")

    def _feed_any(self, data: bytes) -> list[ServerEvent]:
        line_end = b"\r\n" if b"\r\n" in data else b"\n"
        if line_end != self._line_end:
            self._expect(b"", line_end)
        self._clear = False
        if self._bom is not None:
            data = self._bom + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._bom, data = data, b""
            else:
                self._bom, data = None, data.removeprefix(_BOM)
        if self._after_cr and data:  # the CR of a split CRLF has already ended the line
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._pieces:
            if not (self._at_line_end and data.startswith(b"\n")) and b"\n\n" not in data:
                self._keep(data)
                return []
            data = self._joined(data)
        blocks = data.split(b"\n\n")
        if rest := blocks.pop():
            self._keep(rest)
        self._clear = not (self._pieces or self._after_cr or self._bom is not None)
        return [event for block in blocks if (event := self._event(block)) is not None]

    def end(self) -> list[ServerEvent]:
        """Return the last event of the stream, if only its empty line is missing."""
        whole = self._at_line_end and bool(self._pieces)
        block = self._joined(b"")
        event = self._event(block[:-1]) if whole else None
        return [] if event is None else [event]

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._pieces.append(data)
        self._at_line_end = data.endswith(b"\n")
        self._size += len(data)
        self._check(self._size)

    def _joined(self, data: bytes) -> bytes:
        whole = b"".join((*self._pieces, data))
        self._pieces.clear()
        self._size = 0
        self._at_line_end = False
        return whole

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise ModelError(
                f"the model's server sent an event of more than {self._max_bytes:,} bytes",
                code=Code.RESPONSE_TOO_LARGE,
            )

    def _event(self, block: bytes) -> ServerEvent | None:
        if len(block) > self._max_bytes:
            self._check(len(block))
        start = self._start
        if block.startswith(self._before) and len(block) > start and block.find(b"\n", start) < 0:
            return _new(ServerEvent, (self._name, block[start:]))
        name, data = b"", []
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
            elif field == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                self.retry_ms = int(value)
        if not (joined := b"\n".join(data)):
            return None
        self._expect(name, self._line_end)
        return ServerEvent(self._name, joined)
