"""Server-sent events, parsed from bytes that come in pieces of any size.

Theory of operation
-------------------
A line ends with LF, CRLF or CR, an event with an empty line. Line ends are made LF as the bytes come in, so
that an event is whatever stands before two of them. What has no end yet is kept in pieces and joined once, so
that a large event costs its size however small the pieces are. Nearly all chunks are one event that is named
as the one before and has one line of data; its data is cut out, anything else is read line by line.

Rules
-----
1. However a stream is cut, the events are the same, and each is given as soon as its last byte is there.
2. Comments, ids and unknown fields are passed over. An event whose data is empty is none: no vendor says
   anything with it, and some servers keep a connection alive that way.
3. An event is bounded; what is larger is refused before it is held as a whole.
"""

from __future__ import annotations

from typing import Final

from standfast.errors import Code, ModelError
from standfast.providers.http.dialect import ServerEvent

MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"
_LONGEST_RETRY: Final = 9
_new: Final = tuple.__new__  # what a named tuple's own constructor calls


class EventParser:
    """Makes events of a stream's bytes. `retry_ms` is how long the server asks to wait, if it does."""

    __slots__ = (
        "_after_cr",
        "_at_line_end",
        "_before",
        "_bom",
        "_clear",
        "_line_end",
        "_mark",
        "_max_bytes",
        "_name",
        "_other",
        "_pieces",
        "_size",
        "_start",
        "_stop",
        "retry_ms",
    )

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.retry_ms: int | None = None
        self._max_bytes = max_event_bytes
        self._bom: bytes | None = b""  # what may be the beginning of one; None once that is settled
        self._after_cr = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._at_line_end = False
        self._clear = False  # nothing of what came before has a bearing on what comes
        self._expect(b"", b"\n")

    def feed(self, data: bytes) -> list[ServerEvent]:
        """The events that these bytes complete."""
        if self._clear and data.startswith(self._before):
            start = self._start
            end = data.find(self._mark, start)
            whole = start < end <= self._max_bytes and data[end:] == self._stop
            if whole and data.find(self._other, start, end) < 0:
                return [_new(ServerEvent, (self._name, data[start:end]))]
        return self._feed_any(data)

    def _expect(self, name: bytes, line_end: bytes) -> None:
        """Take it that the next event has this name and these line ends: with most chunks that is right."""
        self._name, self._line_end = name.decode(errors="replace"), line_end
        self._before = b"event: %s%sdata: " % (name, line_end) if name else b"data: "
        self._start = len(self._before)
        self._stop = line_end + line_end
        self._mark, self._other = (b"\n", b"\r") if line_end == b"\n" else (b"\r", b"\n")

    def _feed_any(self, data: bytes) -> list[ServerEvent]:
        line_end = b"\r\n" if b"\r\n" in data else b"\n"
        if line_end != self._line_end:
            self._expect(b"", line_end)
        found = self._split(data)
        self._clear = not (self._pieces or self._after_cr or self._bom is not None)
        return found

    def _split(self, data: bytes) -> list[ServerEvent]:
        if self._bom is not None:
            data = self._without_bom(data)
        if self._after_cr or b"\r" in data:
            data = self._with_plain_line_ends(data)
        if self._pieces:
            if not self._ends_event(data):
                self._keep(data)
                return []
            data = self._joined(data)
        blocks = data.split(b"\n\n")
        if rest := blocks.pop():
            self._keep(rest)
        return [event for block in blocks if (event := self._event(block)) is not None]

    def end(self) -> list[ServerEvent]:
        """The event that the stream ends with, if only its empty line is missing."""
        whole = self._at_line_end and bool(self._pieces)
        block = self._joined(b"")
        event = self._event(block[:-1]) if whole else None
        return [] if event is None else [event]

    def _without_bom(self, data: bytes) -> bytes:
        data = (self._bom or b"") + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._bom = data
            return b""
        self._bom = None
        return data.removeprefix(_BOM)

    def _with_plain_line_ends(self, data: bytes) -> bytes:
        """The LF of a CRLF that was cut in two is left out: its CR has ended the line already."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if data.endswith(b"\r"):
            self._after_cr = True
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _ends_event(self, data: bytes) -> bool:
        return (self._at_line_end and data.startswith(b"\n")) or b"\n\n" in data

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
        return self._of_lines(block)

    def _of_lines(self, block: bytes) -> ServerEvent | None:
        """The event of lines of any kind."""
        name, data = b"", []
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
            elif field == b"retry" and value.isdigit() and len(value) <= _LONGEST_RETRY:
                self.retry_ms = int(value)
        said = b"\n".join(data)
        if not said:
            return None
        self._expect(name, self._line_end)
        return ServerEvent(self._name, said)
