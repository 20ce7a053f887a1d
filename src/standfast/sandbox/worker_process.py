"""A worker process that Standfast starts, and the channel to it.

A worker is a program that reads frames from its standard input and writes frames to the same socket, or to
its standard output if the channel is a pair of pipes. The engine defines the content of the frames. To stop a
run, the host kills the worker; a thread that waits for the worker's answer then finds the channel closed.

A frame longer than `max_frame` breaks the protocol, and the worker is killed. One thread at a time talks to a
worker. Any thread may call `kill`. A worker that loses its host exits by itself, because its channel ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from standfast.errors import EngineFailed
from standfast.sandbox.frames_between import MAX_FRAME, Frames, FrameTooLarge

_PIPE_BYTES: Final = 1 << 20
"""Large enough that sending a state of many megabytes does not switch processes every 64 KB."""


class WorkerDied(Exception):
    """The channel ended: the process was killed, crashed, or broke the protocol."""


class WorkerChannel(NamedTuple):
    """A channel to a worker: the host's end, the worker's stdin, and its stdout if that is another handle."""

    frames: Frames
    stdin: int
    stdout: int | None = None


def socket_line(max_frame: int = MAX_FRAME) -> tuple[WorkerChannel, socket.socket]:
    """Create a channel over one socket pair; return it and the host's socket."""
    ours, theirs = socket.socketpair()
    return WorkerChannel(Frames.over(ours, max_frame), theirs.detach()), ours


def pipe_line(max_frame: int = MAX_FRAME) -> WorkerChannel:
    """Create a channel with a pipe for each direction. Pipes wake the other side faster than sockets."""
    stdin, writes = os.pipe()
    reads, stdout = os.pipe()
    for handle in (stdin, reads):
        with contextlib.suppress(
            OSError, AttributeError
        ):  # the kernel limits the total size of a user's pipes
            fcntl.fcntl(handle, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return WorkerChannel(Frames(reads, writes, max_frame), stdin, stdout)


class WorkerProcess:
    """One process. The constructor starts it and does not wait until it is ready."""

    def __init__(
        self, command: Sequence[str], line: WorkerChannel, *, env: Mapping[str, str] | None = None
    ) -> None:
        self._killing = threading.Lock()
        self._frames = line.frames
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603
                list(command),
                stdin=line.stdin,
                stdout=subprocess.DEVNULL if line.stdout is None else line.stdout,
                stderr=subprocess.DEVNULL,
                env=None if env is None else dict(env),
                start_new_session=True,
            )
        except OSError as error:
            self._frames.close()
            raise EngineFailed(f"a worker process cannot be started: {error}") from error
        finally:
            for handle in line[1:]:
                if handle is not None:
                    os.close(handle)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status as in `subprocess`; None while the process runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, data: bytes) -> bytes:
        """Send a frame, wait for the next one and return it."""
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

    def send_raw(self, data: bytes) -> None:
        """Send *data* without a header; a frame before it states its size."""
        try:
            self._frames.send_raw([data])
        except OSError:
            raise WorkerDied from None

    def receive_raw(self, size: int) -> bytes:
        """Return the *size* bytes that follow a frame."""
        try:
            return b"".join(self._frames.receive_raw(size))
        except (OSError, EOFError):
            raise WorkerDied from None

    def has_unread(self) -> bool:
        """Return whether there is anything to read, even if only the end of the channel. Never blocks."""
        return self._frames.has_unread()

    def kill(self) -> None:
        """Kill the process and everything in its process group."""
        with self._killing:
            self._kill()

    def _kill(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process, close the channel and wait for the process to end."""
        self.kill()
        self._frames.close()
        self._process.wait()
