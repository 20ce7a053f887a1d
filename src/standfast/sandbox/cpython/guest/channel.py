"""The socket to the host. A frame has a length (u32, big endian), JSON, and optionally a binary part.

Frames to the host have the nonce of their run between the length and the JSON. The host sends a new nonce
with each run, so that it can distinguish frames of this run from those that an earlier run wrote. Values for
the host are plain JSON; values from the host may contain bytes and tuples, and are then *tagged* (see
`untag`).

Rules
-----
1. Frames are buffered until the code cannot continue by itself, and then sent together: the host wakes up
   once.
2. The host sends one frame, and only while the guest waits for it.
3. The first printed lines are sent immediately, so that the host has them if the run is killed; later ones
   are buffered briefly. Text far beyond the limit is never sent: the host has ended the run by then.
"""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import threading
import time
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

_HEADER: Final = struct.Struct(">I")
_NONCE_BYTES: Final = 16
_CHUNK: Final = 1 << 14
_MUCH: Final = 1 << 20
_WITH_BYTES: Final = 0x23
_scratch: Final = memoryview(bytearray(_CHUNK))
_decode: Final = json.JSONDecoder().decode
encode: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


class HostChannel:
    """The socket. Any thread may post frames; only the main thread receives."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._kept: list[bytes] = []
        self._buffer = b""
        self._nonce = bytes(_NONCE_BYTES)
        self._sending = threading.RLock()

    def begin(self, nonce: bytes) -> None:
        """Start a run whose frames carry *nonce*, and drop unsent frames of an earlier run."""
        self._nonce = nonce
        self._kept.clear()

    def framed(self, body: bytes) -> bytes:
        return _HEADER.pack(_NONCE_BYTES + len(body)) + self._nonce + body

    def post(self, text: str, data: bytes | None = None) -> None:
        """Buffer a frame for the next `flush`; raise UnicodeEncodeError, and buffer nothing, for bad text."""
        body = text.encode()
        if data is None:
            self._kept.append(self.framed(body))
        else:
            size = _HEADER.pack(_NONCE_BYTES + 5 + len(body) + len(data))
            self._kept += (size + self._nonce + b"#" + _HEADER.pack(len(body)) + body, data)

    def flush(self) -> None:
        with self._sending:
            kept, self._kept = self._kept, []
            self._write(kept[0] if len(kept) == 1 else b"".join(kept))

    def ask(self, text: str) -> dict[str, Any]:
        """Send a frame after the buffered ones, wait for the host's answer, and return it."""
        body = text.encode()
        if self._kept:
            self.post(text)
            self.flush()
        else:
            with self._sending:
                self._write(self.framed(body))
        return self.receive()[0]

    def receive(self) -> tuple[dict[str, Any], Payload]:
        """Wait for a frame of the host, which is trusted; return its JSON and its unread binary part."""
        frame = self._buffer or os.read(self._handle, _CHUNK)
        if len(frame) > 4 and frame[4] != _WITH_BYTES and 4 + _HEADER.unpack_from(frame)[0] == len(frame):
            self._buffer = b""
            return _decode(frame[4:].decode()), Payload(self, 0)
        self._buffer = frame
        size = _HEADER.unpack(self._take(4))[0]
        first = self._take(1)
        if first != b"#":
            return _decode((first + self._take(size - 1)).decode()), Payload(self, 0)
        text = self._take(_HEADER.unpack(self._take(4))[0])
        return _decode(text.decode()), Payload(self, size - 5 - len(text))

    def read_into(self, room: memoryview) -> int:
        """Read the next bytes into *room*, which they may not fill; return their number."""
        if not self._buffer:
            return os.readv(self._handle, [room]) or os._exit(0)
        part, self._buffer = self._buffer[: len(room)], self._buffer[len(room) :]
        room[: len(part)] = part
        return len(part)

    def _write(self, data: bytes) -> None:
        sent = os.write(self._handle, data) if data else 0
        while sent < len(data):
            sent += os.write(self._handle, memoryview(data)[sent:])

    def _take(self, size: int) -> bytes:
        if len(self._buffer) < size:
            parts, have = [self._buffer], len(self._buffer)
            while have < size:
                data = os.read(self._handle, _CHUNK if size - have < _CHUNK else _MUCH)
                if not data:
                    os._exit(0)
                parts.append(data)
                have += len(data)
            self._buffer = b"".join(parts)
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


class Payload(io.RawIOBase):
    """The binary part of a frame, as a file that is read piece by piece."""

    def __init__(self, channel: HostChannel, size: int) -> None:
        self._channel = channel
        self.left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")[: self.left]
        size = self._channel.read_into(room) if room else 0
        self.left -= size
        return size

    def skip(self) -> None:
        """Read and discard the rest, without allocating memory."""
        while self.readinto(_scratch):
            pass


class NotJson(Exception):
    """A value has no JSON form; the argument describes the part without one."""


def to_json(value: object) -> str:
    """Return the value as JSON text."""
    try:
        text = encode(value)
        if not text.isascii():
            text.encode()
        return text
    except RecursionError:
        raise NotJson("a value nested too deeply") from None
    except UnicodeEncodeError:
        raise NotJson("text with a lone surrogate") from None
    except (TypeError, ValueError) as error:
        if "Circular" in str(error):
            raise NotJson("a value that contains itself") from None
        raise NotJson(_first_foreign(value)) from None


def _first_foreign(value: object) -> str:
    """Return the type name of the first part that is not JSON. The value must not contain a cycle."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and item - item != 0:
            return f"float {item}"
        if isinstance(item, int) and item.bit_length() > 14_000:
            return "int of more than 4300 digits"
        if item is None or isinstance(item, (bool, int, float, str)):
            continue
        if isinstance(item, (list, tuple)):
            pending.extend(reversed(item))
        elif isinstance(item, dict):
            foreign = [key for key in item if not isinstance(key, (str, int, float, bool, type(None)))]
            if foreign:
                return f"dict with {type(foreign[0]).__name__} keys"
            pending.extend(item.values())
        else:
            return type(item).__name__
    return "a value that is not JSON"


def untag(value: Any) -> Any:
    """Decode a value that the host tagged, in which each list is `[tag, content]`."""
    if not isinstance(value, list):
        return value
    tag, content = value
    if tag == "list":
        return [untag(item) for item in content]
    if tag == "dict":
        return {untag(key): untag(item) for key, item in content}
    if tag == "bytes":
        return base64.b64decode(content)
    if tag == "float":
        return float(content)
    items = (untag(item) for item in content)
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[tag](items)


_AT_ONCE: Final = 64
_GATHER_BYTES: Final = 8 << 10
_GATHER_S: Final = 0.01
_PIECE: Final = 256 << 10
_FLOOD_FACTOR: Final = 16
_real_monotonic: Final = time.monotonic
"""The real clock. It only decides when output is sent, which guest code cannot observe."""


class Printer:
    """Buffers the output of a run on both streams, with one size limit."""

    def __init__(self, channel: HostChannel) -> None:
        self._channel = channel
        self.begin(0)

    def begin(self, cap: int) -> None:
        """Start a run; *cap* is the number of bytes of output that the host keeps."""
        self._room = _FLOOD_FACTOR * cap + 1
        self._at_once = _AT_ONCE
        self._parts: list[tuple[str, str]] = []
        self._bytes = 0
        self._sent_at = 0.0

    def take(self, stream: str, text: str) -> None:
        if not text or self._room <= 0:
            return
        text = text[: self._room]
        self._room -= len(text)
        self._parts.append((stream, text))
        self._bytes += len(text)
        much = self._bytes > _GATHER_BYTES or self._room <= 0
        if not much and "\n" not in text:
            return
        now = _real_monotonic()
        if self._at_once > 0 or much or now - self._sent_at > _GATHER_S:
            self._at_once -= 1
            self._sent_at = now
            self.post()
            self._channel.flush()

    @property
    def holds(self) -> bool:
        return bool(self._parts)

    def post(self) -> None:
        """Post the buffered text to the channel."""
        parts, self._parts, self._bytes = self._parts, [], 0
        for stream, same in groupby(parts, key=lambda part: part[0]):
            text = "".join(part[1] for part in same).encode("utf-8", "backslashreplace").decode()
            for start in range(0, len(text), _PIECE):
                piece = encode(text[start : start + _PIECE])
                self._channel.post(f'{{"t":"out","stream":"{stream}","text":{piece}}}')


class Stream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of guest code."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, name: str, printer: Printer) -> None:
        self.name = f"<{name}>"
        self._stream = name
        self._printer = printer
        self.buffer = _Bytes(self)

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._printer.take(self._stream, text)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]
        for line in lines:
            self.write(line)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing: text is not buffered for long."""


class _Bytes(io.RawIOBase):
    """The binary `buffer` of a text stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        text = bytes(data)  # type: ignore[call-overload]
        self._stream.write(text.decode("utf-8", "replace"))
        return len(text)
