"""Frames between two processes: a length (u32, big endian) and that many bytes.

Rules
-----
1. One thread at a time sends, and one receives. Another may close this end, or end the other: whoever waits
   finds the end.
2. A frame is sent with one call of the system, and a small one is received with one: both sides of a
   conversation cost what it costs to wake the other.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Final

HEADER: Final = struct.Struct(">I")
MAX_FRAME: Final = 256 << 20
_CHUNK: Final = 1 << 15
"""A buffer that the allocator has at hand; a larger one is asked of the system each time."""
_MUCH: Final = 1 << 20


class FrameTooLarge(Exception):
    """The other side announced more than is allowed."""


class Frames(ABC):
    """One end. `send` and `receive` raise `OSError` or `EOFError` when the other is gone."""

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._rest = b""

    @property
    def has_more(self) -> bool:
        """Whether something has come after the last frame that was received."""
        return bool(self._rest)

    def has_unread(self) -> bool:
        """Whether `receive` has something to read, be it half a frame or the end of the line. Never waits."""
        if self._rest:
            return True
        arrivals = select.poll()
        arrivals.register(self._reads_from(), select.POLLIN)
        return bool(arrivals.poll(0))

    def send(self, data: bytes) -> None:
        if len(data) <= _CHUNK:
            self._write(HEADER.pack(len(data)) + data)
        else:  # a copy would take more than another call of the system
            self._write(HEADER.pack(len(data)))
            self._write(data)

    def send_raw(self, parts: Iterable[bytes | memoryview]) -> None:
        """Send bytes behind a frame that tells how many they are, in pieces of a megabyte or so."""
        gathered: list[bytes | memoryview] = []
        size = 0
        for part in parts:
            gathered.append(part)
            size += len(part)
            if size >= _MUCH:
                self._write(gathered[0] if len(gathered) == 1 else b"".join(gathered))
                gathered, size = [], 0
        if size:
            self._write(b"".join(gathered))

    def receive_raw(self, size: int) -> Iterator[bytes]:
        """The bytes that `send_raw` sends on the other side, piece by piece."""
        while size:
            data = self._rest[:size] or self._more(min(size, _MUCH))
            self._rest = self._rest[len(data) :]
            size -= len(data)
            yield data

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
        data = self._read(size)
        if not data:
            raise EOFError
        return data

    @abstractmethod
    def _reads_from(self) -> int: ...

    @abstractmethod
    def _read(self, size: int) -> bytes: ...

    @abstractmethod
    def _write(self, data: bytes | memoryview) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class SocketFrames(Frames):
    """Over a socket."""

    def __init__(self, sock: socket.socket, max_frame: int = MAX_FRAME) -> None:
        super().__init__(max_frame)
        self._socket = sock

    def _reads_from(self) -> int:
        return self._socket.fileno()

    def _read(self, size: int) -> bytes:
        return self._socket.recv(size)

    def _write(self, data: bytes | memoryview) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        self._socket.close()


class PipeFrames(Frames):
    """Over two pipes, which wake the other side a little faster."""

    def __init__(self, reads: int, writes: int, max_frame: int = MAX_FRAME) -> None:
        super().__init__(max_frame)
        self._handles = (reads, writes)

    def _reads_from(self) -> int:
        return self._handles[0]

    def _read(self, size: int) -> bytes:
        return os.read(self._handles[0], size)

    def _write(self, data: bytes | memoryview) -> None:
        sent = os.write(self._handles[1], data)
        if sent < len(data):
            rest = memoryview(data)[sent:]
            while rest:
                rest = rest[os.write(self._handles[1], rest) :]

    def close(self) -> None:
        handles, self._handles = self._handles, (-1, -1)
        for handle in handles:
            if handle >= 0:
                os.close(handle)
