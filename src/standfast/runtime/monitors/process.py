"""A monitor's command: its environment, its supervisor, its pipes, and its orphans.

Theory of operation
-------------------
Creating a `MonitorProcess` starts only the supervisor, so that its `mark` can be stored; `run` starts the
command. Its output is read when the event loop is free, at most `CHUNK` bytes at a time per stream: a command
that writes faster has to wait, but the loop is never blocked.

Rules
-----
1. The listener gets lines in order, and the end once, after the last line.
2. Dropping a process ends it: the supervisor finds its socket closed, even if this process was killed.
3. All handles are plain file descriptors, so closing the loop early causes no warnings.
4. An orphan is killed only if it has the monitor's random mark in its environment, or descends from a process
   that has. It is opened as a pidfd and checked again, so that a reused pid is never killed.
5. A command gets the environment variables it needs to run programs, and no keys.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec

from standfast.durable.process_identity import machine
from standfast.errors import CommandNotStarted
from standfast.model.limits import U64
from standfast.model.monitor import MAX_LINE_CHARS, RING
from standfast.runtime.monitors.supervisor import GRACE_S

_MAX_LINE_BYTES: Final = 4 * MAX_LINE_CHARS
"""No character has more than four bytes."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of output, and how many lines before them were dropped."""

    texts: tuple[str, ...] = ()
    skipped: int = 0


class LineReader:
    """Splits one stream into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Lines:
        """Return the lines that end in *data*."""
        pieces = (self._rest + data).split(b"\n")
        self._rest = pieces.pop()[:_MAX_LINE_BYTES]
        told = [piece for piece in pieces if not _is_blank(piece)]
        return Lines(tuple(_text(piece) for piece in told[-RING:]), max(0, len(told) - RING))

    def end(self) -> Lines:
        """Return the last line, if it has no line end."""
        rest, self._rest = self._rest, b""
        return Lines() if _is_blank(rest) else Lines((_text(rest),))


def _is_blank(piece: bytes) -> bool:
    return not piece or piece.isspace()


def _text(piece: bytes) -> str:
    return piece[:_MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")[:MAX_LINE_CHARS]


_ROUNDS: Final = 200
_PAUSE_S: Final = 0.005


class ProcessMark(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor of a command, and the token in the environment of all its descendants."""

    machine: str
    pid: U64
    started: str
    token: str


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    started: str


def mark_of(pid: int, token: str) -> ProcessMark:
    found = _look_at(pid)
    return ProcessMark(machine=machine(), pid=pid, started=found.started if found else "?", token=token)


def is_alive(mark: ProcessMark) -> bool:
    """Return whether the supervisor is still the same process."""
    found = _look_at(mark.pid) if mark.machine == machine() else None
    return found is not None and found.started == mark.started and _carries(mark.pid, mark.token)


def end_orphans(mark: ProcessMark) -> int:
    """Kill the remaining processes of a monitor on this machine; return their number. Blocks."""
    killed: set[int] = set()
    for _ in range(_ROUNDS if mark.machine == machine() else 0):
        found = _left_of(mark)
        if not found:
            break
        # The supervisor is killed last: while it lives, no process can escape it.
        for process in [one for one in found if one.pid != mark.pid] or found:
            _kill(process)
            killed.add(process.pid)
        time.sleep(_PAUSE_S)
    return len(killed)


def marked(token: str) -> list[int]:
    """Return the pids of the processes that have a token in their environment."""
    return [process.pid for process in _processes() if _carries(process.pid, token)]


def _left_of(mark: ProcessMark) -> list[_Process]:
    running = {process.pid: process for process in _processes()}
    chosen = {pid for pid in running if _carries(pid, mark.token)}
    grown = -1
    while grown != len(chosen):
        grown = len(chosen)
        chosen |= {process.pid for process in running.values() if process.parent in chosen}
    return [running[pid] for pid in chosen - {os.getpid()}]


def _processes() -> Iterable[_Process]:
    names = os.listdir("/proc") if sys.platform == "linux" else []
    seen = (_look_at(int(name)) for name in names if name.isdigit())
    return [process for process in seen if process is not None]


def _look_at(pid: int) -> _Process | None:
    """Return a live process; None if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].decode().split()
        return None if fields[0] in "ZX" else _Process(pid, int(fields[1]), fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _carries(pid: int, token: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={token}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def _kill(process: _Process) -> None:
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            now = _look_at(process.pid)
            if now is not None and now.started == process.started:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


MARK: Final = "STANDFAST_MONITOR"
"""The environment variable that identifies every process started by a monitor."""

PASSED_ON: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """The command to run. A string is run by the shell."""

    command: str | Sequence[str]
    cwd: str | None
    env: Mapping[str, str]

    @property
    def argv(self) -> list[str]:
        return ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else list(self.command)


CHUNK: Final = 65_536
_START_S: Final = 30.0
_PATIENCE_S: Final = 5.0
_LAST_WORDS_S: Final = 1.0
_SUPERVISOR: Final = os.path.join(os.path.dirname(__file__), "supervisor.py")
_CLOSED: Final = -1
_LOW: Final = 10
"""Descriptors passed to the supervisor are numbered above those that they replace."""


class Listener(Protocol):
    def heard(self, kind: Literal["update", "notice"], lines: Lines) -> None: ...

    def ended(self, code: int | None) -> None:
        """Handle the end of the command and its descendants; *code* is None if it is unknown."""


class MonitorProcess:
    """One command and its supervisor. Used on the loop on which it was created."""

    def __init__(self, command: Command, listener: Listener) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._answered, self._over = asyncio.Event(), asyncio.Event()
        self._failure: str | None = None
        self._code: int | None = None
        self._said = b""
        self._streams: dict[int, tuple[Literal["update", "notice"], LineReader]] = {}
        self._control = _CLOSED
        self._all_gone = False
        self._deadline: asyncio.TimerHandle | None = None
        token = secrets.token_hex(16)
        pid = self._spawn(command, token)
        self.mark = mark_of(pid, token)

    def __del__(self) -> None:
        for handle in (*getattr(self, "_streams", ()), getattr(self, "_control", _CLOSED)):
            _close(handle)

    async def run(self) -> None:
        """Start the command; raise `CommandNotStarted` if that fails."""
        self._loop.add_reader(self._control, self._on_control)
        for handle in self._streams:
            self._loop.add_reader(handle, self._on_stream, handle)
        self._tell(b"g")
        await self._within(_START_S, self._answered)
        if self._failure is not None:
            await self._over.wait()
            raise CommandNotStarted(self._failure)

    def request_stop(self) -> None:
        """Send SIGTERM to the command and its descendants, and SIGKILL 200 ms later."""
        self._tell(b"s")

    async def stop(self) -> None:
        """Request the stop, and wait until no process is left."""
        self.request_stop()
        await self._within(GRACE_S + _PATIENCE_S, self._over)

    async def _within(self, limit_s: float, event: asyncio.Event) -> None:
        """Wait for *event*; kill a supervisor that does not respond within *limit_s*."""
        try:
            async with asyncio.timeout(limit_s):
                await event.wait()
        except TimeoutError:
            await asyncio.to_thread(end_orphans, self.mark)
            await self._over.wait()

    async def abandon(self) -> None:
        """Kill the command immediately, whether it has begun or not."""
        self._loop.remove_reader(self._control)
        _close(self._control)
        self._control = _CLOSED
        await asyncio.to_thread(self._reap)
        self._finish()

    def _spawn(self, command: Command, token: str) -> int:
        """Start a supervisor, which waits for its first message; return its pid."""
        given: list[int] = []
        try:
            ours, theirs = socket.socketpair()
            given.append(_lifted(theirs.detach()))
            ours.setblocking(False)
            self._control = ours.detach()
            for kind in ("update", "notice"):
                read, write = os.pipe()
                given.append(_lifted(write))
                os.set_blocking(read, False)
                self._streams[read] = (kind, LineReader())
            given.append(_request(command, token))
            return os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-B", _SUPERVISOR, str(os.getpid())],
                {MARK: token},
                file_actions=[(os.POSIX_SPAWN_DUP2, handle, place) for place, handle in enumerate(given)],
                setsigmask=[],
                setsigdef=[signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE],
            )
        except (OSError, ValueError, TypeError) as error:
            raise CommandNotStarted(str(error)) from None
        finally:
            for handle in given:
                _close(handle)

    def _tell(self, word: bytes) -> None:
        with suppress(OSError):
            os.write(self._control, word)

    def _on_control(self) -> None:
        data = _read(self._control, 4_096)
        if data is None:
            return
        if not data:
            self._supervisor_ended()
            return
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self._code = said.get("exit", self._code)
            self._failure = said.get("failed", self._failure)
            self._answered.set()

    def _supervisor_ended(self) -> None:
        """Clean up after the supervisor.

        If it sent no exit code, it was killed and its command may be running.
        """
        self._loop.remove_reader(self._control)
        _close(self._control)
        self._control = _CLOSED
        self._reap()
        if not self._answered.is_set():
            self._failure = "its supervisor was killed"
        if self._code is None:
            sweeping = self._loop.run_in_executor(None, end_orphans, self.mark)
            sweeping.add_done_callback(lambda _: self._hear_the_rest())
        else:
            self._hear_the_rest()

    def _hear_the_rest(self) -> None:
        """Read the output that is left in the pipes, for a short time."""
        self._all_gone = True
        if self._streams:
            self._deadline = self._loop.call_later(_LAST_WORDS_S, self._finish)
        else:
            self._finish()

    def _reap(self) -> None:
        """Reap the supervisor. Its socket closes when it ends, so this does not block."""
        with suppress(ChildProcessError):
            os.waitpid(self.mark.pid, 0)

    def _on_stream(self, handle: int) -> None:
        data = _read(handle, CHUNK)
        if data is None:
            return
        kind, reader = self._streams[handle]
        if data:
            self._pass_on(kind, reader.feed(data))
            return
        self._end_stream(handle)
        if not self._streams and self._all_gone:
            self._finish()

    def _end_stream(self, handle: int) -> None:
        self._loop.remove_reader(handle)
        kind, reader = self._streams.pop(handle)
        _close(handle)
        self._pass_on(kind, reader.end())

    def _pass_on(self, kind: Literal["update", "notice"], lines: Lines) -> None:
        if lines.texts:
            self._listener.heard(kind, lines)

    def _finish(self) -> None:
        if self._over.is_set():
            return
        if self._deadline is not None:
            self._deadline.cancel()
        for handle in list(self._streams):
            self._end_stream(handle)
        self._answered.set()
        self._over.set()
        if self._failure is None:
            self._listener.ended(self._code)


def _request(command: Command, token: str) -> int:
    """Return the descriptor of an unnamed file that describes the command."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env = {"PATH": os.defpath, **passed_on, **command.env, MARK: token}
    data = json.dumps({"argv": command.argv, "cwd": command.cwd, "env": env}).encode("utf-8")
    memory = sys.platform == "linux"
    with open(os.memfd_create("monitor"), "w+b") if memory else tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return _lifted(os.dup(file.fileno()))


def _lifted(handle: int) -> int:
    try:
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _LOW)
    finally:
        os.close(handle)


def _read(handle: int, limit: int) -> bytes | None:
    """Return the available bytes: empty at the end of the file, None if there are none yet."""
    try:
        return os.read(handle, limit)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""


def _close(handle: int) -> None:
    if handle >= 0:
        with suppress(OSError):
            os.close(handle)
