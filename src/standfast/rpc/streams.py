"""Transports of JSON-RPC: standard input and output, or a unix socket.

Rules
-----
1. Standard output carries only responses: output of Python code or of a child process goes to standard error.
2. A socket is only for the user who started the process: its file has mode 0600, and a connection from
   another user is closed.
3. A socket file that no process listens on is replaced; any other file in its place is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import socket
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Final

from standfast.errors import NotConfigured
from standfast.rpc.json_rpc import Read, Write
from standfast.tools.threads import DaemonThreads

MAX_CONNECTIONS: Final = 64
SLOW_READER_S: Final = 60.0
_CHUNK_BYTES: Final = 1 << 16

Serve = Callable[[Read, Write, str], Awaitable[None]]
"""Serves one connection, given functions to read and write and the name of the user on the other side."""


async def serve_stdio(serve: Serve, stop: asyncio.Event) -> None:
    """Serve standard input and output until the input ends, or *stop* is set and requests have ended."""
    given, taken = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    threads = DaemonThreads("standfast-stdio")  # a blocked read must not keep the process alive

    async def read() -> bytes:
        return await _until(stop, threads.run(lambda: os.read(given, _CHUNK_BYTES)))

    def write_all(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(taken, view) :]

    async def write(data: bytes) -> None:
        await threads.run(lambda: write_all(data))

    try:
        await serve(read, write, this_user())
    finally:
        threads.close()


async def _until(stop: asyncio.Event, reading: Coroutine[None, None, bytes]) -> bytes:
    """Return the data read, or b"" as at the end of the input if *stop* is set first."""
    read, stopped = asyncio.ensure_future(reading), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((read, stopped), return_when=asyncio.FIRST_COMPLETED)
        return read.result() if read.done() else b""
    finally:
        read.cancel()
        stopped.cancel()


async def serve_socket(path: Path, serve: Serve, stop: asyncio.Event) -> None:
    """Serve the connections of a unix socket until *stop* is set and requests have ended."""
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, peer = asyncio.current_task(), writer.get_extra_info("socket")
        _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        is_own = user in (os.geteuid(), 0)
        if not is_own or task is None or len(connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        connections.add(task)
        try:
            await serve(
                lambda: _until(stop, reader.read(_CHUNK_BYTES)),
                lambda data: _send(writer, data),
                _user_name(user),
            )
        finally:
            connections.discard(task)
            writer.close()

    async with _listening(path, connected):
        await stop.wait()
    try:
        if connections:
            await asyncio.wait(connections)
    finally:
        for task in connections:
            task.cancel()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write and wait for a slow reader; abort the connection of one that does not read at all."""
    writer.write(data)
    try:
        async with asyncio.timeout(SLOW_READER_S):
            await writer.drain()
    except TimeoutError:
        writer.transport.abort()
        raise ConnectionResetError("the client does not read") from None


@contextlib.asynccontextmanager
async def _listening(
    path: Path, connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[None]:
    _remove_leftover(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # the file must never be accessible to others, not even briefly
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise NotConfigured(f"cannot listen on {path}: {error.strerror or error}") from None
    finally:
        os.umask(before)
    server = await asyncio.start_unix_server(connected, sock=listener, backlog=MAX_CONNECTIONS)
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _remove_leftover(path: Path) -> None:
    """Remove the socket file of a dead process; raise `NotConfigured` if the path is anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise NotConfigured(f"{path} is not a socket", hint="choose a path that no file has")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise NotConfigured(f"another process listens on {path}", hint="stop it, or choose another path")


def this_user() -> str:
    """Return the name of the user that this process runs as."""
    return _user_name(os.geteuid())


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"
