"""Frames over a socket: a length (u32, big endian) and that many bytes.

Rules
-----
1. One thread at a time sends, and one receives. Another may close the socket, or end its other side: whoever
   waits finds the end.
2. A frame is sent with one call of the system, and a small one is received with one: both sides of a
   conversation cost what it costs to wake the other.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

HEADER: Final = struct.Struct(">I")
MAX_FRAME: Final = 256 << 20
_CHUNK: Final = 1 << 15
"""A buffer that the allocator has at hand; a larger one is asked of the system each time."""
_MUCH: Final = 1 << 20


class FrameTooLarge(Exception):
    """The other side announced more than is allowed."""


class FramedSocket:
    """One end. Both methods raise `OSError` or `EOFError` when the other is gone."""

    def __init__(self, sock: socket.socket, max_frame: int = MAX_FRAME) -> None:
        self._socket = sock
        self._max_frame = max_frame
        self._rest = b""

    def send(self, data: bytes) -> None:
        self._socket.sendall(HEADER.pack(len(data)) + data)

    def receive(self) -> bytes:
        """The next frame, waited for."""
        data = self._rest or self._more()
        while len(data) < HEADER.size:
            data += self._more()
        end = HEADER.size + HEADER.unpack_from(data)[0]
        if end > self._max_frame + HEADER.size:
            raise FrameTooLarge
        if len(data) < end:
            data = self._completed(data, end)
        self._rest = data[end:]
        return data[HEADER.size : end]

    def _completed(self, data: bytes, end: int) -> bytes:
        parts, missing = [data], end - len(data)
        while missing > 0:
            parts.append(self._more(_CHUNK if missing < _CHUNK else _MUCH))
            missing -= len(parts[-1])
        return b"".join(parts)

    def _more(self, size: int = _CHUNK) -> bytes:
        data = self._socket.recv(size)
        if not data:
            raise EOFError
        return data

    def close(self) -> None:
        self._socket.close()
