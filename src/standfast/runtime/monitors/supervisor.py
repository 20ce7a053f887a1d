"""The supervisor: a small process between the runtime and a monitor's command. It ends with either of them.

Theory of operation
-------------------
It is a separate program that imports nothing from Standfast. Its standard input is a socket to the runtime,
its standard output and error are the pipes that the command writes to, and descriptor 3 describes the
command::

    runtime  ->  "g" run it, "s" end it, or end of file: the runtime is dead
    runtime  <-  {"started": true} or {"failed": "why"}, then {"exit": code}, each on a line

The command runs in a session and process group of its own. On Linux, orphaned descendants become children of
the supervisor, even if they have left the group, so that all of them can be found and ended.

Rules
-----
1. The command starts only when the runtime says so, because by then the runtime has stored the supervisor's
   identity.
2. When the command ends or has to be ended, all its descendants get SIGTERM, and SIGKILL 200 ms later. If the
   runtime is dead, they are killed immediately.
3. The exit code is sent after all processes have ended, so that the pipes are at their end as well.
"""

from __future__ import annotations

import enum
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Final, NoReturn

GRACE_S: Final = 0.2
REQUEST: Final = 3
"""The descriptor of the file that holds `{"argv": [...], "cwd": ..., "env": {...}}`."""

_LINUX: Final = sys.platform == "linux"
_PDEATHSIG, _SUBREAPER = 1, 36
_GIVE_UP_S: Final = 5.0
_GLANCE_MS: Final = 200


class SupervisorMessage(enum.Enum):
    """A message that a supervisor receives. `CHECK`: look whether a process has ended."""

    GO = "go"
    STOP = "stop"
    LOST = "lost"
    CHECK = "check"


class MessageSource:
    """The source of messages: the runtime's socket, the runtime's death, and signals."""

    def __init__(self, control: int, host: int) -> None:
        self._control = control
        self._host_pid = host
        self._signals = _signal_pipe()
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._signals, select.POLLIN)
        self._host = self._watch_host()

    def wait(self, timeout_s: float | None = None) -> SupervisorMessage:
        limit = None if timeout_s is None else max(0, int(timeout_s * 1000))
        if self._host is None:
            limit = _GLANCE_MS if limit is None else min(limit, _GLANCE_MS)
        ready = {handle for handle, _ in self._poll.poll(limit)}
        if self._host in ready or os.getppid() != self._host_pid:
            return SupervisorMessage.LOST
        if self._control in ready:
            return self._heard()
        if self._signals in ready and signal.SIGTERM in os.read(self._signals, 512):
            return SupervisorMessage.STOP
        return SupervisorMessage.CHECK

    def _heard(self) -> SupervisorMessage:
        try:
            said = os.read(self._control, 64)
        except OSError:
            return SupervisorMessage.LOST
        if not said:
            return SupervisorMessage.LOST
        return SupervisorMessage.STOP if b"s" in said else SupervisorMessage.GO

    def _watch_host(self) -> int | None:
        """Watch for the runtime's death by its pid, since a forked process may keep its socket open."""
        try:
            handle = os.pidfd_open(self._host_pid)
        except (AttributeError, OSError):
            return None
        self._poll.register(handle, select.POLLIN)
        return handle


class ProcessTree:
    """The command and all its descendants. `code` is the command's exit code."""

    def __init__(self, child: int) -> None:
        self.child = child
        self.code: int | None = None

    def reap(self) -> bool:
        """Reap the processes that have ended; return whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.code = os.waitstatus_to_exitcode(status)

    def signal(self, *numbers: int) -> None:
        """Send signals to all descendants and, until the command is reaped, to its process group."""
        others = descendants(os.getpid())
        for number in numbers:
            if self.code is None or not _LINUX:
                with suppress(OSError):
                    os.killpg(self.child, number)
            for pid in others:
                with suppress(OSError):
                    os.kill(pid, number)

    def end(self, messages: MessageSource, *, at_once: bool) -> None:
        """End all processes, and wait a while for those that cannot be killed."""
        if self.reap() and not at_once:
            self._ask(messages)
        give_up = time.monotonic() + _GIVE_UP_S
        while self.reap() and time.monotonic() < give_up:
            self.signal(signal.SIGKILL)
            time.sleep(0.002)
        if not _LINUX:
            self.signal(signal.SIGKILL)

    def _ask(self, messages: MessageSource) -> None:
        deadline = time.monotonic() + GRACE_S
        self.signal(signal.SIGTERM, signal.SIGCONT)  # a stopped process has to continue to handle SIGTERM
        while self.reap() and (left := deadline - time.monotonic()) > 0:
            if messages.wait(left) is SupervisorMessage.LOST:
                return


def main() -> None:
    with suppress(OSError):  # it already leads a session of its own
        os.setsid()
    control = os.dup(0)
    _point_at_nothing(0)
    _set_option(_SUBREAPER, 1)
    messages = MessageSource(control, int(sys.argv[1]))
    message = messages.wait()
    while message is SupervisorMessage.CHECK:
        message = messages.wait()
    if message is SupervisorMessage.GO:
        _supervise(messages, control)


def _supervise(messages: MessageSource, control: int) -> None:
    child, failure = _start(_request())
    _point_at_nothing(1, 2)
    processes = ProcessTree(child)
    _tell(control, {"failed": failure} if failure else {"started": True})
    message = SupervisorMessage.CHECK
    processes.reap()
    while (
        processes.code is None
        and message is not SupervisorMessage.STOP
        and message is not SupervisorMessage.LOST
    ):
        message = messages.wait()
        processes.reap()
    processes.end(messages, at_once=message is SupervisorMessage.LOST)
    _tell(control, {"exit": processes.code})


def descendants(root: int) -> list[int]:
    """Return the pids of all processes below *root*."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if _LINUX else ():
        if name.isdigit():
            below.setdefault(_parent(name), []).append(int(name))
    found, ahead = [], [root]
    while ahead:
        children = below.pop(ahead.pop(), [])
        found += children
        ahead += children
    return found


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return -1


def _request() -> dict[str, Any]:
    with open(REQUEST, "rb") as file:
        request: dict[str, Any] = json.loads(file.read())
    return request


def _start(request: dict[str, Any]) -> tuple[int, str]:
    """Start the command; return its pid, and the problem if it could not be run."""
    ready, gate = os.pipe()
    supervisor = os.getpid()
    child = os.fork()
    if not child:
        os.close(ready)
        _become(request, gate, supervisor)
    os.close(gate)
    with open(ready, "rb") as told:
        return child, told.read().decode("utf-8", "replace")


def _become(request: dict[str, Any], gate: int, supervisor: int) -> NoReturn:
    """Replace this process by the command."""
    where = f"the directory {request['cwd']!r}"
    try:
        os.setsid()
        _set_option(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, which the command would inherit
            signal.signal(number, signal.SIG_DFL)
        if request["cwd"] is not None:
            os.chdir(request["cwd"])
        where = repr(request["argv"][0])
        os.execvpe(request["argv"][0], request["argv"], request["env"])  # noqa: S606
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        os.write(gate, f"{where}: {why}".encode("utf-8", "replace"))
    finally:
        os._exit(127)


def _signal_pipe() -> int:
    """Return a descriptor that can be read when a child has ended or SIGTERM has arrived."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return read


def _set_option(option: int, value: int) -> None:
    if _LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _point_at_nothing(*handles: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in handles:
        os.dup2(nothing, handle)
    os.close(nothing)


def _tell(control: int, said: dict[str, Any]) -> None:
    with suppress(OSError):
        os.write(control, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main()
