"""A worker process of ours, and the socket to it.

Theory of operation
-------------------
A worker is a program whose standard input is a socket: it reads frames from it and writes frames to it; what
they hold is between it and its engine. Whoever stops a run kills the worker, and whoever waits for its answer
then finds the socket at its end.

Rules
-----
1. A frame is its length (u32, big endian) and that many bytes. One that is longer than `max_frame` breaks the
   protocol, and the worker is killed.
2. One thread at a time talks to a worker. `kill` may come from any.
3. A worker that loses its host ends by itself: its socket ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.errors import EngineFailed

HEADER: Final = struct.Struct(">I")
MAX_FRAME: Final = 256 << 20
_CHUNK: Final = 1 << 18


class WorkerDied(Exception):
    """The socket ended: the process was killed, crashed, or broke the protocol."""


class WorkerProcess:
    """One process. Making it starts it, and does not wait until it is ready."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, max_frame: int = MAX_FRAME
    ) -> None:
        self._max_frame = max_frame
        self._killing = threading.Lock()
        ours, theirs = socket.socketpair()
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603
                list(command),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=None if env is None else dict(env),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise EngineFailed(f"a worker process cannot be started: {error}") from error
        finally:
            theirs.close()
        self._socket = ours

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How the process ended, as `subprocess` tells it; None while it runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, data: bytes) -> bytes:
        """Send a frame and wait for the next one that comes."""
        self.send(data)
        return self.receive()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(HEADER.pack(len(data)) + data)
        except OSError:
            raise WorkerDied from None

    def receive(self) -> bytes:
        size = HEADER.unpack(self._read(HEADER.size))[0]
        if size > self._max_frame:
            self.kill()
            raise WorkerDied
        return self._read(size)

    def kill(self) -> None:
        """End the process at once, with everything in its process group."""
        with self._killing:
            if self._process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and wait for its end, which is near."""
        self.kill()
        self._socket.close()
        self._process.wait()

    def _read(self, size: int) -> bytes:
        """That many bytes; a small frame arrives whole."""
        parts: list[bytes] = []
        while size:
            try:
                data = self._socket.recv(min(size, _CHUNK))
            except OSError:
                data = b""
            if not data:
                raise WorkerDied
            parts.append(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)
