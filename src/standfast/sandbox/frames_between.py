"""Frames between two processes: a length (u32, big endian) and that many bytes.

One thread at a time sends, and one receives. A thread that waits gets an error when the other process ends. A
small frame is sent with one system call and received with one: waking the other process dominates the cost of
a conversation.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Final

HEADER: Final = struct.Struct(">I")
MAX_FRAME: Final = 256 << 20
_CHUNK: Final = 1 << 15
"""The allocator reuses a buffer of this size; a larger one is requested from the system each time."""
_MUCH: Final = 1 << 20


class FrameTooLarge(Exception):
    """The other end announced a frame that is larger than allowed."""


class Frames:
    """One end of a channel. `send` and `receive` raise `OSError` or `EOFError` when the other end is gone."""

    def __init__(self, reads: int, writes: int, max_frame: int = MAX_FRAME) -> None:
        self._reads, self._writes = reads, writes
        self._max_frame = max_frame
        self._rest = b""
        self._socket: socket.socket | None = None

    @classmethod
    def over(cls, sock: socket.socket, max_frame: int = MAX_FRAME) -> Frames:
        """Return a channel over the blocking socket *sock*, which its `close` closes."""
        frames = cls(sock.fileno(), sock.fileno(), max_frame)
        frames._socket = sock
        return frames

    @property
    def has_more(self) -> bool:
        """Whether bytes after the last received frame have already been read."""
        return bool(self._rest)

    def has_unread(self) -> bool:
        """Return whether a frame, part of one, or the end of the channel can be read. Never blocks."""
        if self._rest:
            return True
        arrivals = select.poll()
        arrivals.register(self._reads, select.POLLIN)
        return bool(arrivals.poll(0))

    def send(self, data: bytes) -> None:
        if len(data) <= _CHUNK:
            self._write(HEADER.pack(len(data)) + data)
        else:  # a copy would cost more than another system call
            self._write(HEADER.pack(len(data)))
            self._write(data)

    def send_raw(self, parts: Iterable[bytes | memoryview]) -> None:
        """Send *parts* without a header, about a megabyte at a time; an earlier frame states their size."""
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
        """Yield the next *size* bytes, which the other end sends with `send_raw`, in pieces."""
        while size:
            data = self._rest[:size] or self._more(min(size, _MUCH))
            self._rest = self._rest[len(data) :]
            size -= len(data)
            yield data

    def receive(self) -> bytes:
        """Wait for the next frame and return its content."""
        data = self._rest or self._more()
        while len(data) < HEADER.size:
            data += self._more()
        end = HEADER.size + HEADER.unpack_from(data)[0]
        if end > self._max_frame + HEADER.size:
            raise FrameTooLarge
        if (missing := end - len(data)) > 0:
            parts = [data]
            while missing > 0:
                parts.append(self._more(_CHUNK if missing < _CHUNK else _MUCH))
                missing -= len(parts[-1])
            data = b"".join(parts)
        self._rest = data[end:]
        return data[HEADER.size : end]

    def close(self) -> None:
        handles, self._reads, self._writes = (self._reads, self._writes), -1, -1
        if self._socket is not None:
            self._socket.close()
            return
        for handle in handles:
            if handle >= 0:
                os.close(handle)

    def _more(self, size: int = _CHUNK) -> bytes:
        data = os.read(self._reads, size)
        if not data:
            raise EOFError
        return data

    def _write(self, data: bytes | memoryview) -> None:
        sent = os.write(self._writes, data)
        if sent < len(data):
            rest = memoryview(data)[sent:]
            while rest:
                rest = rest[os.write(self._writes, rest) :]
