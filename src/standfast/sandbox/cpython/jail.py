"""The jail: a process that sees nothing but a Python, can reach nobody, and dies with its host.

Theory of operation
-------------------
There are two kinds::

    bubblewrap   own namespaces: an own file system with a few read-only directories and a private /tmp, no
                 network, no other processes, nobody's user id
    landlock     where the system forbids namespaces or bubblewrap is missing: the same processes and network
                 as the host's, but nothing can be opened except what is listed, and nobody can be reached

In both the guest puts a filter of system calls on itself (no sockets, no new processes, no signals, nothing
of the kernel's administration), drops every capability and limits its resources before any code runs; see
`guest.confine`. A supervisor of its own kills it when the host's end of the socket is closed (`guest.boot`).

Rules
-----
1. Where neither kind works, code is refused. There is no third kind.
2. A jail is for one session. It is ended, never cleaned.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from standfast.errors import CodeExecutionUnavailable, EngineFailed
from standfast.sandbox.cpython.guest import landlock, seccomp
from standfast.sandbox.cpython.guest.clearing import remove
from standfast.sandbox.cpython.messages import NO_RUN, Failed, Ready, Unreadable, read_message
from standfast.sandbox.cpython.visible import GUEST, Package, interpreter, packages_of
from standfast.sandbox.worker_process import WorkerDied, WorkerProcess, socket_line

JailKind = Literal["bubblewrap", "landlock"]

MAX_FRAME: Final = 96 << 20
MAX_FILES_BYTES: Final = 64 << 20
_NOBODY: Final = "65534"
_READY_S: Final = 60.0
_GONE_S: Final = 2.0
_PROBE_S: Final = 20.0
_ENVIRONMENT: Final = {
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""For the interpreter and its libraries; guest code sees an empty environment."""
_NAMESPACES: Final = (
    "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
    "--unshare-cgroup-try", "--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "jail", "--cap-drop", "ALL",
)  # fmt: skip
_BOOT: Final = """
import importlib.util as u, sys
at = sys.argv.pop(1)
spec = u.spec_from_file_location("standfast_guest", at + "/__init__.py", submodule_search_locations=[at])
sys.modules["standfast_guest"] = module = u.module_from_spec(spec)
spec.loader.exec_module(module)
from standfast_guest.boot import main
main()
"""
_CREDENTIALS: Final = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class JailReport:
    """Which kind of jail is used here, and why; None if there can be none."""

    kind: JailKind | None
    reason: str
    bubblewrap: str
    landlock: str

    def require(self) -> JailKind:
        if self.kind is None:
            raise CodeExecutionUnavailable(
                f"full Python cannot be run here: {self.reason}",
                hint="it needs Linux with bubblewrap and user namespaces, or a kernel with landlock; "
                'engine="monty" runs everywhere',
            )
        return self.kind


@functools.lru_cache(maxsize=4)
def jail_report(kind: JailKind | None = None) -> JailReport:
    """Find out what this machine allows. *kind* asks for one kind and no other."""
    wrapped, locked = _try_bubblewrap(), _try_landlock()
    told = {"bubblewrap": wrapped or "works", "landlock": locked or f"version {landlock.version()}"}
    if problem := _unsupported():
        return JailReport(None, problem, **told)
    if kind != "landlock" and not wrapped:
        return JailReport("bubblewrap", "namespaces are allowed", **told)
    if kind != "bubblewrap" and not locked:
        why = "it was asked for" if kind else f"bubblewrap cannot be used: {wrapped}"
        return JailReport("landlock", why, **told)
    problems = {"bubblewrap": wrapped, "landlock": locked}
    wanted = [kind] if kind else ["bubblewrap", "landlock"]
    return JailReport(None, "; ".join(f"{name}: {problems[name]}" for name in wanted), **told)


def _unsupported() -> str | None:
    if sys.platform != "linux":
        return "it is made for Linux"
    machine = os.uname().machine
    return None if seccomp.knows(machine) else f"there is no filter of system calls for {machine}"


def _try_bubblewrap() -> str | None:
    """Why bubblewrap cannot be used; None if it can."""
    program = shutil.which("bwrap")
    if program is None:
        return "bwrap is not installed"
    command = [program, *_NAMESPACES, "--ro-bind", "/", "/", "--", program, "--version"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.decode("utf-8", "replace").strip()[:200]


def _try_landlock() -> str | None:
    if sys.platform != "linux":
        return "the system is not Linux"
    return None if landlock.version() else "the kernel has no landlock"


class JailProcess(WorkerProcess):
    """A jailed process. `guest_pid` is the guest's own, as the host sees it, once it is ready."""

    def __init__(self, command: Sequence[str], home: str | None) -> None:
        line, self._socket = socket_line(MAX_FRAME)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before anybody can speak
        super().__init__(command, line, env=_ENVIRONMENT)
        self.home = home
        self.guest_pid = 0
        self._inside: list[int] = []

    def wait_until_ready(self) -> None:
        """Wait for the guest's first word, which shows who it is."""
        try:
            self._socket.settimeout(_READY_S)
            frame, pid = self._first_frame()
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
            message, _ = read_message(frame, NO_RUN)
        except (OSError, WorkerDied, Unreadable) as error:
            self.close()
            raise EngineFailed(
                f"a jail cannot be started: {error or 'its process ended'}",
                hint="`standfast doctor` looks for the reason",
            ) from None
        if not isinstance(message, Ready) or pid <= 0:
            self.close()
            why = message.message if isinstance(message, Failed) else "it did not say who it is"
            raise EngineFailed(
                f"a jail cannot be started: {why}", hint="`standfast doctor` looks for the reason"
            )
        self.guest_pid = pid
        with contextlib.suppress(OSError), self._killing:
            self._inside = [os.pidfd_open(pid)]
            self._inside.append(os.pidfd_open(_parent_of(pid)))

    def _first_frame(self) -> tuple[bytes, int]:
        """The frame, and who sent it."""
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        _, extra, _, _ = self._socket.recvmsg(1, room, socket.MSG_PEEK)
        pids = [_CREDENTIALS.unpack(item)[0] for _, kind, item in extra if kind == socket.SCM_CREDENTIALS]
        return self.receive(), (pids[0] if pids else 0)

    def _kill(self) -> None:
        """End every process of the jail, also if the one that was started is gone, and hang up.

        Whoever listens to the guest finds the end of the line, however long the processes take to end.
        """
        super()._kill()
        for handle in self._inside:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self, patience_s: float) -> bool:
        """Kill the jail; whether all of it was gone within *patience_s*. `close` does what is left then."""
        self.kill()
        until = time.monotonic() + patience_s
        if self.status is None:
            started = os.pidfd_open(self.pid)
            _ends_before(started, until)
            os.close(started)
        return self.status is not None and all(_ends_before(handle, until) for handle in self._inside)

    def close(self) -> None:
        """End the process, and wait until guest and supervisor have ended, which are not ours to wait for."""
        super().close()
        until = time.monotonic() + _GONE_S
        for handle in self._inside:
            _ends_before(handle, until)
        with self._killing:
            inside, self._inside = self._inside, []
        for handle in inside:
            os.close(handle)
        if self.home is not None:
            remove(self.home)


def _ends_before(handle: int, until: float) -> bool:
    """Whether a process ends before a moment; *handle* is its pidfd."""
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    return bool(ended.poll(max(0.0, until - time.monotonic()) * 1000))


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


class Jail:
    """Starts jailed processes that are all alike."""

    def __init__(self, kind: JailKind | None = None, packages: Sequence[str] = ()) -> None:
        self.kind = jail_report(kind).require()
        self._packages = packages_of(packages)

    def start(self) -> JailProcess:
        """Start a process, and do not wait until it is ready."""
        if self.kind == "bubblewrap":
            return JailProcess(self._bubblewrap, None)
        home = tempfile.mkdtemp(prefix="standfast-jail-")
        return JailProcess(self._landlock(home), home)

    @functools.cached_property
    def _bubblewrap(self) -> list[str]:
        program = shutil.which("bwrap")
        if program is None:
            raise EngineFailed("bwrap is gone")
        python = interpreter()
        command = [program, *_NAMESPACES, "--as-pid-1", "--clearenv"]
        for name, value in _ENVIRONMENT.items():
            command += ["--setenv", name, value]
        for path in (*python.shared, python.library, python.executable):
            command += ["--ro-bind", path, path]
        for path in python.hidden():
            command += ["--tmpfs", path, "--remount-ro", path]
        command += ["--ro-bind", GUEST, "/standfast_guest", "--dev-bind", "/dev/null", "/dev/null"]
        files = {}
        for package in self._packages:
            binds, files[package.name] = _bound(package)
            command += binds
        command += ["--size", str(MAX_FILES_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"]  # noqa: S108
        config = {"kind": self.kind, "home": "/tmp", "packages": files}  # noqa: S108
        return [*command, "--", *_python(python.executable, "/standfast_guest", config)]

    def _landlock(self, home: str) -> list[str]:
        python = interpreter()
        paths = [path for package in self._packages for path in package.paths]
        config = {
            "kind": self.kind,
            "home": home,
            "packages": {package.name: package.file for package in self._packages},
            "listable": [python.library],
            "readable": [*python.shared, *python.parts(), GUEST, *paths],
            "writable": [home, "/dev/null"],
        }
        return _python(python.executable, GUEST, config)


def _python(executable: str, guest: str, config: dict[str, Any]) -> list[str]:
    config = {**config, "max_file_bytes": MAX_FILES_BYTES}
    return [executable, "-s", "-S", "-P", "-B", "-c", _BOOT, guest, json.dumps(config)]


def _bound(package: Package) -> tuple[list[str], str]:
    """How a package is bound into an own file system, and the file that it begins with there."""
    command: list[str] = []
    for path in package.paths:
        command += ["--ro-bind", path, f"/packages/{os.path.basename(path)}"]
    main = package.paths[0]
    inner = os.path.relpath(package.file, os.path.dirname(main))
    return command, f"/packages/{inner}"
