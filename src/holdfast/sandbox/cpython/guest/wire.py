"""Frames on the socket to the host: a length (u32, big endian), JSON, and bytes after it if there are any.

Frames to the host carry the nonce of their run between the length and the JSON. The host sends a new one with
each run, so that it can tell a frame of this run from one that was written in an earlier run.

Rules
-----
1. Frames are kept until the code cannot go on by itself, and then sent at once: one wake-up of the host each.
2. The host answers only where the guest waits, and with one frame.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from typing import Any, Final

_HEADER: Final = struct.Struct(">I")
_NONCE_BYTES: Final = 16
_CHUNK: Final = 1 << 14
_MUCH: Final = 1 << 20
_WITH_BYTES: Final = 0x23
_decode: Final = json.JSONDecoder().decode
encode: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


class Wire:
    """The socket. Any thread may post; only the main thread waits."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._kept: list[bytes] = []
        self._buffer = b""
        self._nonce = bytes(_NONCE_BYTES)
        self._sending = threading.RLock()

    def begin(self, nonce: bytes) -> None:
        """Start a run: its frames carry *nonce*. Drop what an earlier run posted and did not flush."""
        self._nonce = nonce
        self._kept.clear()

    def framed(self, body: bytes) -> bytes:
        """The bytes of a frame that holds *body*."""
        return _HEADER.pack(_NONCE_BYTES + len(body)) + self._nonce + body

    def post(self, text: str, data: bytes | None = None) -> None:
        """Keep a frame for the next `flush`. What is no text raises UnicodeEncodeError and is not kept."""
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
        """Send a frame with those that were kept, and wait for the host's answer."""
        body = text.encode()
        if self._kept:
            self.post(text)
            self.flush()
        else:
            with self._sending:
                self._write(self.framed(body))
        return self.receive()[0]

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Wait for the host. Its frames are well formed."""
        frame = self._buffer or os.read(self._handle, _CHUNK)
        if len(frame) > 4 and 4 + _HEADER.unpack_from(frame)[0] == len(frame):
            frame, self._buffer = frame[4:], b""
        else:
            self._buffer = frame
            frame = self._take(_HEADER.unpack(self._take(4))[0])
        if frame[:1] != b"#":
            return _decode(frame.decode()), b""
        end = 5 + _HEADER.unpack(frame[1:5])[0]
        return _decode(frame[5:end].decode()), frame[end:]

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
