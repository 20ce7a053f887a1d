"""The jail: a process that sees only a Python, cannot reach other processes, and dies with its host.

There are two kinds; if neither works, no code is run::

    bubblewrap   separate namespaces: a file system with a few read-only directories and a private /tmp, no
                 network, no other processes, no privileged user id
    landlock     if the system forbids namespaces or bubblewrap is missing: the host's namespaces, but only
                 listed files can be opened, and no process can be reached

In both, before any code runs, the guest drops every capability, limits its resources and installs a filter of
system calls: no sockets, no new processes, no signals, no administration of the kernel (`guest.confine`). A
supervisor kills it when the host's end of the socket is closed (`guest.boot`). A jail is for one session.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from standfast.errors import CodeExecutionUnavailable, EngineFailed, InvalidArgument
from standfast.sandbox.cpython import messages
from standfast.sandbox.cpython.guest import seccomp
from standfast.sandbox.cpython.guest.clearing import remove
from standfast.sandbox.cpython.guest.confine import landlock_version
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
"""The environment of the interpreter and its libraries. It is cleared before guest code runs."""
NAMESPACES: Final = (
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
GUEST: Final = str(Path(__file__).parent / "guest")
_PICKLER: Final = "cloudpickle"
_OTHERS_PACKAGES: Final = ("site-packages", "dist-packages")
_LIBRARY_DIRS: Final = ("/lib64", "/usr/lib64", "/lib/{arch}", "/usr/lib/{arch}")
_LIBRARY_FILES: Final = ("/lib/ld-linux-aarch64.so.1", "/etc/ld.so.cache")
_DATA: Final = ("/usr/share/zoneinfo",)
_looking: Final = threading.Lock()
"""`sysconfig` is not thread-safe: a second thread could read variables that the first is still computing."""


@dataclass(frozen=True, slots=True)
class JailReport:
    """The kind of jail that this machine supports, None if it supports none, and the reason."""

    kind: JailKind | None
    reason: str

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
    """Determine which jail this machine supports; `kind` restricts the choice to one."""
    problems = {"bubblewrap": _try_bubblewrap(), "landlock": _try_landlock()}
    wrapped, locked = problems.values()
    if sys.platform != "linux":
        return JailReport(None, "jails need Linux")
    if not seccomp.knows(machine := os.uname().machine):
        return JailReport(None, f"there is no filter of system calls for {machine}")
    if kind != "landlock" and not wrapped:
        return JailReport("bubblewrap", "namespaces are allowed")
    if kind != "bubblewrap" and not locked:
        why = "it was requested" if kind else f"bubblewrap cannot be used: {wrapped}"
        return JailReport("landlock", why)
    wanted = [kind] if kind else [*problems]
    return JailReport(None, "; ".join(f"{name}: {problems[name]}" for name in wanted))


def _try_bubblewrap() -> str | None:
    """Return why bubblewrap cannot be used; None if it can."""
    program = shutil.which("bwrap")
    if program is None:
        return "bwrap is not installed"
    command = [program, *NAMESPACES, "--ro-bind", "/", "/", "--", program, "--version"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.decode("utf-8", "replace").strip()[:200]


def _try_landlock() -> str | None:
    if sys.platform != "linux":
        return "the system is not Linux"
    return None if landlock_version() else "the kernel has no landlock"


class JailProcess(WorkerProcess):
    """A jailed process. `guest_pid` is the guest's process id in the host, once it is ready."""

    def __init__(self, command: Sequence[str], home: str | None) -> None:
        line, self._socket = socket_line(MAX_FRAME)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before the first message
        super().__init__(command, line, env=_ENVIRONMENT)
        self.home = home
        self.guest_pid = 0
        self._inside: list[int] = []

    def wait_until_ready(self) -> None:
        """Wait for the guest's first message, whose credentials have its process id."""
        try:
            self._socket.settimeout(_READY_S)
            _, extra, _, _ = self._socket.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_PEEK)
            pids = [_CREDENTIALS.unpack(item)[0] for _, kind, item in extra if kind == socket.SCM_CREDENTIALS]
            frame = self.receive()
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
            message, _ = messages.read_message(frame, messages.NO_RUN)
            problem = (
                message.message if isinstance(message, messages.GuestUnready) else "it sent no process id"
            )
        except (OSError, WorkerDied, messages.UnreadableMessage) as error:
            message, pids, problem = None, [], str(error) or "its process ended"
        if not isinstance(message, messages.GuestReady) or not pids or pids[0] <= 0:
            self.close()
            raise EngineFailed(f"a jail cannot be started: {problem}", hint="run `standfast doctor`")
        self.guest_pid = pids[0]
        with contextlib.suppress(OSError), self._killing:
            self._inside = [os.pidfd_open(self.guest_pid)]
            with open(f"/proc/{self.guest_pid}/stat", "rb") as file:
                supervisor = int(file.read().rpartition(b")")[2].split()[1])
            self._inside.append(os.pidfd_open(supervisor))

    def _kill(self) -> None:
        """Kill every process of the jail, even if the process that was started has exited."""
        super()._kill()
        for handle in self._inside:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self, patience_s: float) -> bool:
        """Kill the jail; return whether all its processes exited within `patience_s`.

        Call `close` afterwards.
        """
        self.kill()
        until = time.monotonic() + patience_s
        if self.status is None:
            started = os.pidfd_open(self.pid)
            _ends_before(started, until)
            os.close(started)
        return self.status is not None and all(_ends_before(handle, until) for handle in self._inside)

    def close(self) -> None:
        """End the process, wait for guest and supervisor, which are not its children, and clean up."""
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
    """Return whether the process of the pidfd `handle` ends before `until`."""
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    return bool(ended.poll(max(0.0, until - time.monotonic()) * 1000))


class Jail:
    """Starts jailed processes of one kind with the same packages."""

    def __init__(self, kind: JailKind | None = None, packages: Sequence[str] = ()) -> None:
        self.kind = jail_report(kind).require()
        try:
            pickler = _package(_PICKLER)  # used by the guest's own code
        except InvalidArgument:
            raise CodeExecutionUnavailable(
                "full Python needs the package cloudpickle", hint="pip install 'standfast[cpython]'"
            ) from None
        others = dict.fromkeys(name for name in packages if name != _PICKLER)
        self._packages = [pickler, *map(_package, others)]

    def start(self) -> JailProcess:
        """Start a process without waiting until it is ready."""
        if self.kind == "bubblewrap":
            return JailProcess(self._bubblewrap, None)
        python, home = _interpreter(), tempfile.mkdtemp(prefix="standfast-jail-")
        paths = [path for package in self._packages for path in package.paths]
        config = {
            "kind": self.kind,
            "home": home,
            "packages": {package.name: package.file for package in self._packages},
            "listable": [python.library],
            "readable": [*python.shared, *python.parts(), GUEST, *paths],
            "writable": [home, "/dev/null"],
        }
        return JailProcess(_python(python.executable, GUEST, config), home)

    @functools.cached_property
    def _bubblewrap(self) -> list[str]:
        program = shutil.which("bwrap")
        if program is None:
            raise EngineFailed("bwrap is no longer installed")
        python = _interpreter()
        command = [program, *NAMESPACES, "--as-pid-1", "--clearenv"]
        for name, value in _ENVIRONMENT.items():
            command += ["--setenv", name, value]
        for path in (*python.shared, python.library, python.executable):
            command += ["--ro-bind", path, path]
        for path in python.hidden():
            command += ["--tmpfs", path, "--remount-ro", path]
        command += ["--ro-bind", GUEST, "/standfast_guest", "--dev-bind", "/dev/null", "/dev/null"]
        files = {}
        for package in self._packages:
            for path in package.paths:
                command += ["--ro-bind", path, f"/packages/{os.path.basename(path)}"]
            inner = os.path.relpath(package.file, os.path.dirname(package.paths[0]))
            files[package.name] = f"/packages/{inner}"
        command += ["--size", str(MAX_FILES_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"]  # noqa: S108
        config = {"kind": self.kind, "home": "/tmp", "packages": files}  # noqa: S108
        return [*command, "--", *_python(python.executable, "/standfast_guest", config)]


def _python(executable: str, guest: str, config: dict[str, Any]) -> list[str]:
    config = {**config, "max_file_bytes": MAX_FILES_BYTES}
    return [executable, "-s", "-S", "-P", "-B", "-c", _BOOT, guest, json.dumps(config)]


# ── the files that a jail shows ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Package:
    """A package that guest code may import: its main file, and the paths that importing it reads."""

    name: str
    file: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs guest code: the host's, without its packages. `shared` are its libraries."""

    executable: str
    library: str
    shared: tuple[str, ...]

    def hidden(self) -> Iterator[str]:
        """Yield the directories inside its library that hold installed packages."""
        yield from (path for name in _OTHERS_PACKAGES if os.path.isdir(path := f"{self.library}/{name}"))

    def parts(self) -> Iterator[str]:
        """Yield the entries of its library that are not hidden."""
        hidden = set(self.hidden())
        yield from (entry.path for entry in os.scandir(self.library) if entry.path not in hidden)


def _interpreter() -> Interpreter:
    """Return the interpreter and the system libraries that it may need."""
    with _looking:
        return _find_interpreter()


@functools.lru_cache(maxsize=1)
def _find_interpreter() -> Interpreter:
    base = getattr(sys, "_base_executable", None) or sys.executable
    library = sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix})
    arch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    shared = [path.format(arch=arch) for path in _LIBRARY_DIRS]
    where, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and where and name:
        shared.insert(0, os.path.join(where, name))
    with contextlib.suppress(OSError):  # where this process loaded its C library from
        maps = Path("/proc/self/maps").read_text().splitlines()
        for path in {line.split(maxsplit=5)[5] for line in maps if line.count(" ") > 5 and ".so" in line}:
            if os.path.basename(path).startswith(("libc.", "libc-", "ld-")):
                shared.append(os.path.dirname(path))
    existing = dict.fromkeys(path for path in (*shared, *_LIBRARY_FILES, *_DATA) if os.path.exists(path))
    return Interpreter(os.path.realpath(base), os.path.realpath(library), tuple(existing))


def _package(name: str) -> Package:
    if not name.isidentifier():
        raise InvalidArgument(f"{name!r} is not the name of a package")
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.has_location or spec.origin is None:
        raise InvalidArgument(
            f"there is no installed package {name!r} that guest code could import",
            hint="install it where Standfast runs; the standard library need not be listed",
        )
    file = os.path.realpath(spec.origin)
    main = os.path.dirname(file) if spec.submodule_search_locations else file
    libraries = os.path.join(os.path.dirname(main), f"{name}.libs")  # where wheels put shared libraries
    return Package(name, file, (main, libraries) if os.path.isdir(libraries) else (main,))
