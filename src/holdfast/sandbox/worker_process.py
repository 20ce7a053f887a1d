"""A worker process of ours, and the socket to it.

Theory of operation
-------------------
A worker is a program whose standard input is a socket: it reads frames from it and writes frames to it; what
they hold is between it and its engine. Whoever stops a run kills the worker, and whoever waits for its answer
then finds the socket at its end.

Rules
-----
1. A frame that is longer than `max_frame` breaks the protocol, and the worker is killed.
2. One thread at a time talks to a worker. `kill` may come from any.
3. A worker that loses its host ends by itself: its socket ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence

from holdfast.errors import EngineFailed
from holdfast.sandbox.framed_socket import MAX_FRAME, FramedSocket, FrameTooLarge


class WorkerDied(Exception):
    """The socket ended: the process was killed, crashed, or broke the protocol."""


class WorkerProcess:
    """One process. Making it starts it, and does not wait until it is ready."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, max_frame: int = MAX_FRAME
    ) -> None:
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
        self._frames = FramedSocket(ours, max_frame)

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
            self._frames.send(data)
        except OSError:
            raise WorkerDied from None

    def receive(self) -> bytes:
        try:
            return self._frames.receive()
        except FrameTooLarge:
            self.kill()
            raise WorkerDied from None
        except (OSError, EOFError):
            raise WorkerDied from None

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
